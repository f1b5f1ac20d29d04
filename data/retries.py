"""What is to be answered again: ``retries/0001.json`` lists, by shard, the rows that one ``--retry`` chose.

A part's footer says how many of these files it has seen to; a shard that a later one lists is to be done again, and
until then its part stays as it is. Where the retry found more than the plan had (an archive that was damaged then and
is whole now), the file also holds the items that took the places of failed ones, and ``retries/0001.items.parquet``
those that came on top. That file counts from the moment on that the ``.json`` beside it is there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from zellige.data.files import StoreUnusable, usable
from zellige.data.folder import Folder, read_json, write_json
from zellige.data.schema import ErrorKind, Item

#: Items by shard and place in it.
Places = dict[int, dict[int, Item]]
_NAME = re.compile(r"(\d{4,})\.json")


@dataclass(frozen=True)
class Retry:
    """One retry: the rows it asks for, by shard, and what it changed in the plan."""

    rows: Mapping[int, frozenset[str]]
    replaced: Mapping[int, Mapping[int, Item]]
    added: str | None


class RetryFolder:
    """The retries of one run, numbered from 1; files are never changed once written."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._known: dict[int, Retry] = {}

    def next_number(self) -> int:
        """The number of the next retry, with the folder made; for who alone may plan."""
        with usable(self.folder, "write"):
            self.folder.make()
        return max(self._numbers(), default=0) + 1

    def added_name(self, number: int) -> str:
        """The file whose items a retry adds, or will add, to the plan."""
        return f"{number:04d}.items.parquet"

    def add(self, number: int, kinds: list[str], rows: Mapping[int, list[str]], replaced: Places, added: int) -> None:
        """Ask for ``rows`` (row ids by shard) again, and change the plan; ``added`` items are in ``added_name``."""
        about = {
            "kinds": kinds,
            "shards": {str(index): ids for index, ids in rows.items()},
            "added": added,
            "replaced": [[shard, at, asdict(item)] for shard, items in replaced.items() for at, item in items.items()],
        }
        write_json(self.folder, f"{number:04d}.json", about)

    def wanted(self, index: int, seen: int) -> tuple[int, frozenset[str]]:
        """(last retry that lists shard ``index``, ids of its rows in those after the first ``seen``)."""
        last, ids = 0, frozenset[str]()
        for number, retry in self.all().items():
            if index in retry.rows:
                last = max(last, number)
                ids |= retry.rows[index] if number > seen else frozenset()
        return last, ids

    def last(self) -> dict[int, int]:
        """The last retry that lists a shard, by shard."""
        return {index: number for number, retry in self.all().items() for index in retry.rows}

    def all(self) -> dict[int, Retry]:
        """The retries by their numbers, in order; raises StoreUnusable for a damaged one."""
        for number in self._numbers():
            if number not in self._known:
                name = f"{number:04d}.json"
                try:
                    self._known[number] = self._retry(number, read_json(self.folder, name) or {})
                except (KeyError, AttributeError, TypeError, ValueError) as error:
                    advice = "delete it and ask for the retry again"
                    raise StoreUnusable(f"{self.folder.at(name)} is damaged ({error!r}); {advice}") from error
        return self._known

    def _numbers(self) -> list[int]:
        try:
            names = self.folder.names()
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))

    def _retry(self, number: int, about: dict[str, Any]) -> Retry:
        replaced: Places = {}
        for shard, place, item in about.get("replaced", ()):
            replaced.setdefault(shard, {})[place] = _item(item)
        rows = {int(index): frozenset(ids) for index, ids in about["shards"].items()}
        return Retry(rows, replaced, self.added_name(number) if about.get("added") else None)


def _item(stored: dict[str, Any]) -> Item:
    kind = stored["error_kind"]
    metadata = tuple((name, value) for name, value in stored["metadata"])
    return Item(**{**stored, "metadata": metadata, "error_kind": None if kind is None else ErrorKind(kind)})
