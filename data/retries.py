"""Rows to answer again: ``retries/0001.json`` lists, by shard, the rows that one ``--retry`` chose.

A part's footer says how many of these files it has seen to; a shard that a later one lists is to be done again, and
until then its part stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from zellige.data.files import StoreUnusable, read_json, usable, write_json


class RetryFolder:
    """The retries of one run, numbered from 1; files are never changed once written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[int, dict[int, frozenset[str]]] = {}

    def add(self, kinds: list[str], rows: Mapping[int, list[str]]) -> None:
        """Ask for ``rows`` (row ids by shard) again; for who alone may plan."""
        with usable(self._folder, "write"):
            self._folder.mkdir(exist_ok=True)
            number = max(self._numbers(), default=0) + 1
            shards = {str(index): ids for index, ids in rows.items()}
            write_json(self._folder / f"{number:04d}.json", {"kinds": kinds, "shards": shards})

    def wanted(self, index: int, seen: int) -> tuple[int, frozenset[str]]:
        """(last retry that lists shard ``index``, ids of its rows in those after the first ``seen``)."""
        last, ids = 0, frozenset[str]()
        for number, shards in self._all().items():
            if index in shards:
                last = max(last, number)
                ids |= shards[index] if number > seen else frozenset()
        return last, ids

    def _numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in self._folder.glob("[0-9]*.json"))

    def _all(self) -> dict[int, dict[int, frozenset[str]]]:
        for number in self._numbers():
            if number not in self._known:
                path = self._folder / f"{number:04d}.json"
                try:
                    shards = (read_json(path) or {})["shards"]
                    self._known[number] = {int(index): frozenset(ids) for index, ids in shards.items()}
                except (KeyError, AttributeError, TypeError, ValueError) as error:
                    advice = "delete it and ask for the retry again"
                    raise StoreUnusable(f"{path} is damaged ({error!r}); {advice}") from error
        return self._known
