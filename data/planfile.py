"""``items.parquet``: every item of a run, streamed in and read back shard by shard."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from zellige.data.files import StoreUnusable, usable
from zellige.data.folder import Folder
from zellige.data.schema import ITEMS, ErrorKind, Item, storable

#: Row groups are about this long, so neither their number nor one of them is ever large.
_GROUP_ITEMS = 4096


class PlanFile:
    """The items in shards of ``shard_items``; a shard never spans two row groups."""

    def __init__(self, folder: Folder, name: str, shard_items: int) -> None:
        self._folder, self._name = folder, name
        self._shard_items = shard_items
        self._shards_a_group = max(1, _GROUP_ITEMS // shard_items)
        self._file: pq.ParquetFile | None = None
        self._lock = threading.Lock()  # a file has one position, and the threads of a worker share it

    def exists(self) -> bool:
        return self._folder.has(self._name)

    def write(self, items: Iterable[Item]) -> int:
        """Store all ``items``, whole or not at all, in bounded memory; how many there were."""
        self._folder.clear(self._name)
        stream, count = iter(items), 0

        def fill(file: BinaryIO) -> None:
            nonlocal count
            with pq.ParquetWriter(file, ITEMS, compression="zstd", write_page_checksum=True) as writer:
                while group := list(islice(stream, self._shards_a_group * self._shard_items)):
                    writer.write_table(_to_table(group))
                    count += len(group)

        with usable(self._at, "write"):
            self._folder.put(self._name, fill)
        return count

    def count(self) -> int:
        """How many items there are."""
        return int(self._open().metadata.num_rows)

    def shard_count(self) -> int:
        return -(-self.count() // self._shard_items)

    def shard(self, index: int) -> tuple[Item, ...]:
        """The items of one shard; raises IndexError where there is no such shard."""
        if not 0 <= index < self.shard_count():
            raise IndexError(f"shard {index}: there are {self.shard_count()} shards")
        group, place = divmod(index, self._shards_a_group)
        rows = self._group(group).slice(place * self._shard_items, self._shard_items)
        return tuple(_from_row(row) for row in rows.to_pylist())

    def shard_size(self, index: int) -> int:
        """How many items a shard holds, without reading them."""
        return min(self._shard_items, self.count() - index * self._shard_items)

    def shard_sizes(self) -> list[int]:
        """The same for all shards at once."""
        whole, rest = divmod(self.count(), self._shard_items)
        return [self._shard_items] * whole + [rest] * (rest > 0)

    def items(self) -> Iterator[Item]:
        """All items in order, one row group in memory at a time."""
        for group in range(self._open().num_row_groups):
            yield from map(_from_row, self._group(group).to_pylist())

    @property
    def _at(self) -> Path | str:
        return self._folder.at(self._name)

    def _group(self, index: int) -> pa.Table:
        file = self._open()
        with self._lock, self._undamaged():
            return file.read_row_group(index)

    def _open(self) -> pq.ParquetFile:
        with self._lock, self._undamaged():
            if self._file is None:
                (path,) = self._folder.fetch([self._name])
                self._file = pq.ParquetFile(pa.OSFile(str(path)), page_checksum_verification=True)
            return self._file

    @contextmanager
    def _undamaged(self) -> Iterator[None]:
        """Turn what pyarrow raises on damaged bytes into StoreUnusable."""
        try:
            with usable(self._at, "read"):
                yield
        except pa.ArrowException as error:
            raise StoreUnusable(
                f"{self._at} is damaged ({error}); the answers in parts/ are untouched, start a new run for the rest"
            ) from error


def _to_table(items: list[Item]) -> pa.Table:
    def cell(item: Item, name: str) -> Any:
        value = getattr(item, name)
        return list(value) if name == "metadata" else storable(value) if isinstance(value, str) else value

    return pa.table([pa.array([cell(i, f.name) for i in items], f.type) for f in ITEMS], schema=ITEMS)


def _from_row(row: dict[str, Any]) -> Item:
    kind = row["error_kind"]
    return Item(**{**row, "metadata": tuple(row["metadata"]), "error_kind": None if kind is None else ErrorKind(kind)})
