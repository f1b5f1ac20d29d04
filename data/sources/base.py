"""What a source is: it lists items and reads their bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from zellige.data.schema import ErrorKind, Item


class SourceError(Exception):
    """An input of a kind that cannot be read (wrong usage); the message says what to give instead."""


class ReadError(Exception):
    """The bytes of one item cannot be had: ``kind`` for the row, and a message that says why."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class Source(Protocol):
    """Lists items and reads their bytes; ``items`` gives the same order for the same files, every time."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs as absolute URIs, which ``open_source`` takes again: what a run stores to be planned again."""
        ...

    @property
    def ignored(self) -> Mapping[str, int]:
        """What the last walk passed by, counted by reason ("not an image", "hidden", "not a regular file", …)."""
        ...

    def describe(self) -> str:
        """One line for people."""
        ...

    def items(self) -> Iterator[Item]:
        """Every item once; what is known to be unreadable is an item with its ``error_kind`` set."""
        ...

    def read(self, item: Item) -> bytes:
        """The item's encoded bytes; raises ReadError. Safe to call from many threads."""
        ...
