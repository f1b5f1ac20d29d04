"""What earlier runs of a recipe have answered, so that a run may ask only about what is new.

An item that was answered is left out, without being opened, while the version of its file is the same. Where that is
another one its bytes are looked at: what was answered under that name is left out too. All else is new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from zellige.data.report.rows import read_part
from zellige.data.run import Run
from zellige.data.schema import ITEM_QUESTION, Item
from zellige.data.sources.base import ReadError

#: Runs that an item may fail in, with its file unchanged, before it is left alone.
MOST_FAILURES = 3


class Answered:
    """The items that ``runs``, all of one recipe, have rows of. 48 bytes an item are held, whatever the rows are."""

    def __init__(self, runs: Iterable[Run]) -> None:
        """Reads the items and three columns of every part that is whole; raises StoreUnusable for a damaged one."""
        names, versions, contents, failures = bytearray(), bytearray(), bytearray(), bytearray()
        for run in runs:
            for index in sorted(run.whole_shards()):
                for item, ok, content in _outcomes(run, index):
                    if item.file_version is not None:
                        (versions if ok else failures).extend(_version_of(item))
                    if ok and content is not None:
                        names += bytes.fromhex(item.item_id)
                        contents += _content_of(item, content)
        self._names, self._contents = _Digests(names), _Digests(contents)
        self._versions = _Digests(versions + _frequent(failures))

    def new(self, items: Iterable[Item], read: Callable[[Item], bytes]) -> Iterator[Item]:
        """Those of ``items`` that are to be asked about; ``read`` gives an item's bytes, or raises ReadError."""
        looked: tuple[tuple[object, ...], str | None] | None = None
        for item in items:
            if item.file_version is not None and _version_of(item) in self._versions:
                continue
            if item.error_kind is None and bytes.fromhex(item.item_id) in self._names:
                place = (item.uri, item.member, item.ordinal)  # the pages of one document are all its bytes
                if looked is None or looked[0] != place:
                    looked = place, _content(item, read)
                if looked[1] is not None and _content_of(item, looked[1]) in self._contents:
                    continue
            yield item


class _Digests:
    """A set of digests of 16 bytes in sorted arrays: a Python set of them would take six times the memory."""

    def __init__(self, digests: bytes | bytearray) -> None:
        pairs = np.frombuffer(bytes(digests), "<u8").reshape(-1, 2)
        pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
        self._first, self._second = pairs[:, 0].copy(), pairs[:, 1].copy()

    def __contains__(self, digest: bytes) -> bool:
        first, second = np.frombuffer(digest, "<u8")
        begin, end = (int(np.searchsorted(self._first, first, side)) for side in ("left", "right"))
        return bool((self._second[begin:end] == second).any())


def _frequent(digests: bytes | bytearray) -> bytes:
    """Those that occur ``MOST_FAILURES`` times or more."""
    rows: NDArray[np.void] = np.frombuffer(bytes(digests), [("first", "<u8"), ("second", "<u8")])
    found, counts = np.unique(rows, return_counts=True)
    return found[counts >= MOST_FAILURES].tobytes()


def _outcomes(run: Run, index: int) -> Iterator[tuple[Item, bool, str | None]]:
    """(item, whether none of its rows failed, hash of its bytes) for the items of a shard that is answered."""
    table = read_part(run.part_path(index), ["item_id", "status", "content_sha256"])
    failed: set[str] = set()
    contents: dict[str, str | None] = {}
    for item_id, status, content in zip(*(column.to_pylist() for column in table.columns), strict=True):
        contents[item_id] = content
        if status == "failed":
            failed.add(item_id)
    for item in run.shard(index).items:
        yield item, item.item_id not in failed, contents.get(item.item_id)


def _content(item: Item, read: Callable[[Item], bytes]) -> str | None:
    try:
        return hashlib.sha256(read(item)).hexdigest()
    except ReadError:  # a row is to say so
        return None


def _version_of(item: Item) -> bytes:
    return _digest(item, f"version {item.file_version}")


def _content_of(item: Item, sha256: str) -> bytes:
    return _digest(item, f"content {sha256}")


def _digest(item: Item, what: str) -> bytes:
    """The item's own question is part of it: a file of requests may ask another one about the same image."""
    own = dict(item.metadata).get(ITEM_QUESTION, "")
    return hashlib.sha256(f"{item.item_id} {what} {own}".encode("utf-8", "backslashreplace")).digest()[:16]
