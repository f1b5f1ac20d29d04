"""What a source is: it lists items and reads their bytes. What a container is: a file that holds many."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from zellige.data.schema import ErrorKind, Item
from zellige.data.sniff import sniff
from zellige.data.sources.options import SourceOptions

#: The most that is read of one file: what an uncompressed image of the largest size allowed takes at 8 bytes a pixel,
#: and some. Without it one long file, whatever it holds, could take the memory of the machine and so the run with it.
LARGEST_BYTES = 2 << 30

#: A member of an archive that is longer is looked at before it is unpacked into memory.
LOOKED_AT_BYTES = 64 << 20


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
        """The inputs, absolute, which ``open_source`` takes again: what a run stores to be planned again."""
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

    def again(self, uri: str) -> Iterator[Item]:
        """The items there are now where ``items`` gave a failed one with this ``uri``: a file, a folder or an input."""
        ...

    def local_path(self, item: Item) -> bytes | None:
        """The path of an item that is a whole local file; None for members, cells and what is stored elsewhere."""
        ...

    def read(self, item: Item) -> bytes:
        """The item's encoded bytes; raises ReadError. Safe to call from many threads."""
        ...


@dataclass(frozen=True)
class StoredFile:
    """A whole file, local or not. ``size`` is in bytes, None where nobody asked; ``path`` of a local one.

    ``version`` is ``Item.file_version``: None where nobody asked, or the storage does not tell.
    """

    uri: str
    size: int | None
    path: bytes | None
    opener: Callable[[], BinaryIO]
    version: str | None = None

    def open(self) -> BinaryIO:
        """The file, seekable, at its first byte; raises ReadError. The caller closes it."""
        try:
            return self.opener()
        except OSError as error:
            raise ReadError(*why(error)) from error

    def read(self) -> bytes:
        """All its bytes; raises ReadError, ``too_large`` above ``LARGEST_BYTES``."""
        check_size(self.size)
        try:
            with self.open() as file:
                data = file.read(LARGEST_BYTES + 1)
        except OSError as error:
            raise ReadError(*why(error)) from error
        check_size(len(data))
        return data


class Container(Protocol):
    """A file that holds many items: an archive or a table. Used by one thread at a time.

    ``items`` and ``read`` may be asked of two objects in two processes, so ``read`` finds its item by ``ordinal``
    (its place in the file, from 0) and makes sure that it is the one that was listed. Making one opens nothing.
    """

    @property
    def ignored(self) -> Counter[str]:
        """What ``items`` passed by, counted by reason."""
        ...

    def items(self) -> Iterator[Item]:
        """The items in their order, those known to be unreadable with their ``error_kind``, in bounded memory.

        Raises ReadError, at any point, where the file itself is unusable from there on: that becomes one failed item.
        """
        ...

    def read(self, item: Item) -> bytes:
        """The encoded bytes of one item of this file; raises ReadError, also where another has taken its place."""
        ...

    def close(self) -> None:
        """Let go of open files; the next call opens them again."""
        ...


#: Makes the container of a file; opens nothing.
Opener = Callable[[StoredFile, SourceOptions], Container]


def why(error: OSError) -> tuple[ErrorKind, str]:
    """The kind and the words for a file that the system or a storage does not give."""
    missing = isinstance(error, FileNotFoundError) or error.errno in (errno.ENOENT, errno.ENOTDIR)
    return ErrorKind.NOT_FOUND if missing else ErrorKind.UNREADABLE, error.strerror or str(error)


def check_same(planned: object, now: object, what: str) -> None:
    """Raises ReadError where ``what`` is not what it was when the item was listed: its file is another one."""
    if planned != now:
        told = f"the file was changed after it was listed: {what} is {now!r} now and was {planned!r}"
        raise ReadError(ErrorKind.NOT_FOUND, f"{told}; start a new run to read it as it is")


def check_size(size: int | None) -> None:
    """Raises ReadError for what is too long to be held."""
    if size is not None and size > LARGEST_BYTES:
        raise ReadError(ErrorKind.TOO_LARGE, f"{size:,} bytes are more than the limit of {LARGEST_BYTES:,}")


def check_head(head: bytes, size: int) -> None:
    """Raises ReadError for a long member that does not begin as an image: an archive of zeros packs 1 : 1000."""
    kind = sniff(head) or "of no known kind"
    if size > LOOKED_AT_BYTES and not kind.startswith("image/") and kind != "application/pdf":
        raise ReadError(ErrorKind.UNREADABLE, f"{size:,} bytes that are no image, but {kind}; they were not unpacked")
