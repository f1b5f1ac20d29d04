"""Tar archives, plain or compressed with gzip, bzip2, xz or zstd: streamed, never extracted."""

from __future__ import annotations

import io
import tarfile
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import closing
from typing import BinaryIO

from zellige.data.schema import ErrorKind, Item
from zellige.data.sources.base import ReadError, StoredFile, check_same
from zellige.data.sources.members import MemberRules, may_have_pages, member_name, with_pages
from zellige.data.sources.options import SourceOptions
from zellige.data.sources.tar_reader import TarReader

#: Bytes of members that a forward-only reader went past and that another thread may ask for next.
_PASSED_BYTES = 64 << 20


class TarContainer:
    """Every regular member that is an image, by its place among all members; links and the like are counted."""

    def __init__(self, file: StoredFile, options: SourceOptions) -> None:
        self._file = file
        self._rules = MemberRules(file.uri, options)
        self._reader: TarReader | None = None
        self._places = array("q")  # of the headers, by ordinal: eight bytes a member
        self._passed: OrderedDict[int, tuple[str, bytes]] = OrderedDict()
        self._passed_bytes = 0

    @property
    def ignored(self) -> Counter[str]:
        return self._rules.ignored

    def items(self) -> Iterator[Item]:
        members = 0
        with closing(TarReader(self._file)) as reader:
            while (found := self._next(reader, members)) is not None:
                _, info = found
                yield from self._of_member(reader, info, members)
                members += 1

    def read(self, item: Item) -> bytes:
        assert item.ordinal is not None, "an item of an archive has a place in it"
        if item.ordinal in self._passed:
            return self._taken(item)
        if self._reader is None:
            self._reader = TarReader(self._file)
        reader, ordinal = self._reader, item.ordinal
        reached: tarfile.TarInfo | None = None  # its header was read just now, and is not gone back to
        while ordinal >= len(self._places):
            found = reader.next()
            if found is None:
                raise ReadError(ErrorKind.NOT_FOUND, f"the archive holds {len(self._places):,} members now")
            self._places.append(found[0])
            reached = found[1]
            if reader.compressed and len(self._places) <= ordinal and found[1].isreg():
                self._pass(len(self._places) - 1, reader, found[1])
        info = reached or reader.at(self._places[ordinal])
        _check_member(item, _name(info))
        if not info.isreg():
            raise ReadError(ErrorKind.NOT_FOUND, "the file was changed after it was listed: this member is no file now")
        data = reader.read(info)
        if reader.compressed and item.page is not None:
            self._keep(ordinal, _name(info), data)  # its other pages follow
        return data

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None
        self._passed.clear()
        self._places, self._passed_bytes = array("q"), 0

    def _next(self, reader: TarReader, members: int) -> tuple[int, tarfile.TarInfo] | None:
        try:
            return reader.next()
        except ReadError as error:
            if reader.empty:
                raise ReadError(ErrorKind.EMPTY, "the archive is empty (0 bytes)") from error
            lost = f"; {members:,} members are before it, what came after is lost"
            raise ReadError(error.kind, error.message + lost) from error

    def _of_member(self, reader: TarReader, info: tarfile.TarInfo, ordinal: int) -> Iterator[Item]:
        if not info.isreg():
            if not info.isdir():
                self.ignored["not a regular file"] += 1
            return
        name = info.name.encode("utf-8", "surrogateescape")
        item = Item(self._file.uri, member_name(name), ordinal, size_bytes=info.size)
        begun = b""

        def head() -> bytes:
            nonlocal begun
            begun = reader.head(info)
            return begun

        def open_member() -> BinaryIO:
            # A compressed stream goes forward only: what looks about in a member looks about in memory.
            return io.BytesIO(reader.read_on(info, begun)) if reader.compressed else reader.open(info)

        if not self._rules.wants(name, head):
            return
        if not (reader.compressed and may_have_pages(name)) and not reader.whole(info):
            yield _failed(item, ErrorKind.TRUNCATED, "the archive is cut inside this member")
            return
        try:
            yield from with_pages(item, name, open_member)
        except ReadError as error:
            yield _failed(item, error.kind, error.message)

    def _pass(self, ordinal: int, reader: TarReader, info: tarfile.TarInfo) -> None:
        if info.size <= _PASSED_BYTES // 2:
            self._keep(ordinal, _name(info), reader.read(info))

    def _keep(self, ordinal: int, name: str, data: bytes) -> None:
        if ordinal not in self._passed:
            self._passed[ordinal] = name, data
            self._passed_bytes += len(data)
        while self._passed_bytes > _PASSED_BYTES and len(self._passed) > 1:
            self._passed_bytes -= len(self._passed.popitem(last=False)[1][1])

    def _taken(self, item: Item) -> bytes:
        assert item.ordinal is not None
        name, data = self._passed[item.ordinal]
        _check_member(item, name)
        if item.page is None:
            self._passed_bytes -= len(self._passed.pop(item.ordinal)[1])
        return data


def _name(info: tarfile.TarInfo) -> str:
    return member_name(info.name.encode("utf-8", "surrogateescape"))


def _check_member(item: Item, name: str) -> None:
    check_same(item.member, name, f"member {(item.ordinal or 0) + 1:,}")


def _failed(item: Item, kind: ErrorKind, message: str) -> Item:
    return Item(item.uri, item.member, item.ordinal, size_bytes=item.size_bytes, error_kind=kind, error=message)
