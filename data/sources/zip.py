"""Zip archives, by their central directory: members are told apart by their place there, not by their names."""

from __future__ import annotations

import stat
import zipfile
import zlib
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO, cast

from zellige.data.schema import ErrorKind, Item
from zellige.data.sniff import HEAD_BYTES
from zellige.data.sources.base import ReadError, StoredFile, check_head, check_same, check_size, why
from zellige.data.sources.members import MemberRules, member_name, with_pages
from zellige.data.sources.options import SourceOptions
from zellige.data.sources.zip_directory import Directory, find_directory

_PASSWORD = "this member needs a password, and none is ever asked for; name an archive packed anew without one"
_ENCRYPTED = 0x1
#: Entries of the list that are read together, and how many such pages are kept: some megabytes.
_PAGE_ENTRIES, _MOST_PAGES = 1024, 8
_FAULTS = (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError)


class ZipContainer:
    """Every member that is an image; encrypted ones fail alone."""

    def __init__(self, file: StoredFile, options: SourceOptions) -> None:
        self._file = file
        self._rules = MemberRules(file.uri, options)
        self._directory: Directory | None = None
        #: Where in the list each page of entries begins, as far as it was read, and the pages that were used last.
        self._places = array("q", [0])
        self._pages: OrderedDict[int, list[zipfile.ZipInfo]] = OrderedDict()

    @property
    def ignored(self) -> Counter[str]:
        return self._rules.ignored

    def items(self) -> Iterator[Item]:
        try:
            directory, ordinal = self._opened(), -1
            try:
                for ordinal, (_, info) in enumerate(directory.entries()):
                    yield from self._of_member(ordinal, info)
            except (OSError, zipfile.BadZipFile) as error:
                fault = _fault(error)
                raise ReadError(
                    fault.kind, f"{fault.message}; what comes after its first {ordinal + 1:,} members is lost"
                ) from error
            if (ordinal + 1 - directory.count) % (1 << 16):
                told = f"the archive is damaged: it lists {ordinal + 1:,} members of {directory.count:,}"
                raise ReadError(ErrorKind.UNREADABLE, told)
        finally:
            self.close()

    def read(self, item: Item) -> bytes:
        assert item.ordinal is not None, "an item of an archive has a place in it"
        try:
            page = self._page(item.ordinal // _PAGE_ENTRIES)
            if item.ordinal % _PAGE_ENTRIES >= len(page):
                raise ReadError(ErrorKind.NOT_FOUND, f"the archive has no member {item.ordinal + 1:,} any more")
            info = page[item.ordinal % _PAGE_ENTRIES]
            check_same(item.member, _name(info), f"member {item.ordinal + 1:,}")
            check_size(info.file_size)
            with self._open(info) as file:
                check_head(file.peek(HEAD_BYTES), info.file_size)
                data = file.read()
        except _FAULTS as error:
            raise _fault(error) from error
        if len(data) < info.file_size:
            raise ReadError(ErrorKind.TRUNCATED, "the archive is cut inside this member")
        return data

    def close(self) -> None:
        if self._directory is not None:
            self._directory.file.close()
        self._directory = None
        self._pages.clear()
        self._places = array("q", [0])

    def _opened(self) -> Directory:
        if self._directory is None:
            raw = self._file.open()
            head = b""
            try:
                head = raw.read(4)
                self._directory = find_directory(raw)
            except _FAULTS as error:
                raw.close()
                if not head:
                    raise ReadError(ErrorKind.EMPTY, "the archive is empty (0 bytes)") from error
                if head == b"PK\x03\x04" and isinstance(error, zipfile.BadZipFile):
                    raise ReadError(
                        ErrorKind.TRUNCATED, f"the archive lacks its list of members, which is at its end: {error}"
                    ) from error
                raise _fault(error) from error
        return self._directory

    def _page(self, page: int) -> list[zipfile.ZipInfo]:
        """The entries of one page, none behind the last: read together, because elsewhere each look costs a request."""
        while page not in self._pages:
            known = min(page, len(self._places) - 1)
            found: list[tuple[int, zipfile.ZipInfo]] = []
            try:
                found.extend(islice(self._opened().entries(self._places[known]), _PAGE_ENTRIES + 1))
            except zipfile.BadZipFile:
                if not found:
                    raise
                # The list is damaged behind these, which was told when it was listed.
            if known == len(self._places) - 1 and len(found) > _PAGE_ENTRIES:
                self._places.append(found.pop()[0])
            elif known < page:
                return []
            if known == page:
                self._pages[page] = [info for _, info in found[:_PAGE_ENTRIES]]
                if len(self._pages) > _MOST_PAGES:
                    self._pages.popitem(last=False)
        return self._pages[page]

    def _open(self, info: zipfile.ZipInfo) -> zipfile.ZipExtFile:
        if info.flag_bits & _ENCRYPTED:
            raise ReadError(ErrorKind.ENCRYPTED, _PASSWORD)
        return self._opened().open(info)

    def _of_member(self, ordinal: int, info: zipfile.ZipInfo) -> Iterator[Item]:
        name = info.orig_filename.encode("cp437")
        mode = info.external_attr >> 16
        if name.endswith(b"/"):
            return
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG) and info.create_system == 3:
            self.ignored["not a regular file"] += 1
            return

        def head() -> bytes:
            try:
                with self._open(info) as file:
                    return file.read(HEAD_BYTES)
            except (*_FAULTS, ReadError):
                return b""

        if not self._rules.wants(name, head):
            return
        text = member_name(name)
        if info.flag_bits & _ENCRYPTED:
            yield self._item(ordinal, text, info, ErrorKind.ENCRYPTED, _PASSWORD)
            return
        try:
            yield from with_pages(self._item(ordinal, text, info), name, lambda: cast(BinaryIO, self._open(info)))
        except _FAULTS as error:
            fault = _fault(error)
            yield self._item(ordinal, text, info, fault.kind, fault.message)

    def _item(
        self, ordinal: int, name: str, info: zipfile.ZipInfo, kind: ErrorKind | None = None, why: str | None = None
    ) -> Item:
        return Item(self._file.uri, name, ordinal, size_bytes=info.file_size, error_kind=kind, error=why)


def _name(info: zipfile.ZipInfo) -> str:
    return member_name(info.orig_filename.encode("cp437"))


def _fault(error: Exception) -> ReadError:
    if isinstance(error, NotImplementedError):
        return ReadError(ErrorKind.UNSUPPORTED_FORMAT, f"this member is packed in a way that is not read: {error}")
    if isinstance(error, EOFError):
        return ReadError(ErrorKind.TRUNCATED, "the archive is cut inside this member")
    if isinstance(error, OSError):
        return ReadError(*why(error))
    return ReadError(ErrorKind.UNREADABLE, f"the archive is damaged: {error}")
