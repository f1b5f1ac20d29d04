"""Zip archives, by their central directory: members are told apart by their place there, not by their names."""

from __future__ import annotations

import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO, cast

from zellige.data.schema import ErrorKind, Item
from zellige.data.sniff import HEAD_BYTES
from zellige.data.sources.base import ReadError, StoredFile, check_size, why
from zellige.data.sources.members import MemberRules, member_name, with_pages
from zellige.data.sources.options import SourceOptions

_UTF8, _ENCRYPTED = 0x800, 0x1
_FAULTS = (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError)


class ZipContainer:
    """Every member that is an image; encrypted ones fail alone."""

    def __init__(self, file: StoredFile, options: SourceOptions) -> None:
        self._file = file
        self._rules = MemberRules(file.uri, options)
        self._zip: zipfile.ZipFile | None = None
        self._members: list[zipfile.ZipInfo] = []

    @property
    def ignored(self) -> Counter[str]:
        return self._rules.ignored

    def items(self) -> Iterator[Item]:
        try:
            for ordinal, info in enumerate(self._opened()):
                yield from self._of_member(ordinal, info)
        finally:
            self.close()

    def read(self, item: Item) -> bytes:
        members = self._opened()
        if item.ordinal is None or item.ordinal >= len(members):
            raise ReadError(ErrorKind.NOT_FOUND, f"the archive holds {len(members):,} members now")
        info = members[item.ordinal]
        check_size(info.file_size)
        try:
            with self._open(info) as file:
                data = file.read()
        except _FAULTS as error:
            raise _fault(error) from error
        if len(data) < info.file_size:
            raise ReadError(ErrorKind.TRUNCATED, "the archive is cut inside this member")
        return data

    def close(self) -> None:
        if self._zip is not None:
            raw = self._zip.fp
            self._zip.close()
            if raw is not None:
                raw.close()
        self._zip, self._members = None, []

    def _opened(self) -> list[zipfile.ZipInfo]:
        if self._zip is None:
            raw = self._file.open()
            head = b""
            try:
                head = raw.read(4)
                raw.seek(0)
                self._zip = zipfile.ZipFile(raw)
            except (*_FAULTS, zipfile.LargeZipFile) as error:
                raw.close()
                if not head:
                    raise ReadError(ErrorKind.EMPTY, "the archive is empty (0 bytes)") from error
                if head == b"PK\x03\x04" and isinstance(error, zipfile.BadZipFile):
                    raise ReadError(
                        ErrorKind.TRUNCATED, f"the archive lacks its list of members, which is at its end: {error}"
                    ) from error
                raise _fault(error) from error
            self._members = self._zip.infolist()
        return self._members

    def _open(self, info: zipfile.ZipInfo) -> BinaryIO:
        assert self._zip is not None
        return cast(BinaryIO, self._zip.open(info))

    def _of_member(self, ordinal: int, info: zipfile.ZipInfo) -> Iterator[Item]:
        name = _raw_name(info)
        mode = info.external_attr >> 16
        if name.endswith(b"/"):
            return
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG) and info.create_system == 3:
            self.ignored["not a regular file"] += 1
            return
        encrypted = bool(info.flag_bits & _ENCRYPTED)

        def head() -> bytes:
            try:
                with self._open(info) as file:
                    return file.read(HEAD_BYTES)
            except _FAULTS:
                return b""

        if not self._rules.wants(name, head):
            return
        text = member_name(name)
        if encrypted:
            yield self._item(ordinal, text, info, ErrorKind.ENCRYPTED, "this member needs a password")
            return
        try:
            yield from with_pages(self._item(ordinal, text, info), name, lambda: self._open(info))
        except _FAULTS as error:
            fault = _fault(error)
            yield self._item(ordinal, text, info, fault.kind, fault.message)

    def _item(
        self, ordinal: int, name: str, info: zipfile.ZipInfo, kind: ErrorKind | None = None, why: str | None = None
    ) -> Item:
        return Item(self._file.uri, name, ordinal, size_bytes=info.file_size, error_kind=kind, error=why)


def _raw_name(info: zipfile.ZipInfo) -> bytes:
    """The name as its bytes are in the file: zipfile decodes what is not flagged as UTF-8 as code page 437."""
    return info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8 else "cp437")


def _fault(error: Exception) -> ReadError:
    if isinstance(error, NotImplementedError):
        return ReadError(ErrorKind.UNSUPPORTED_FORMAT, f"this member is packed in a way that is not read: {error}")
    if isinstance(error, EOFError):
        return ReadError(ErrorKind.TRUNCATED, "the archive is cut inside this member")
    if isinstance(error, RuntimeError) and "password" in str(error):
        return ReadError(ErrorKind.ENCRYPTED, "this member needs a password")
    if isinstance(error, OSError):
        return ReadError(*why(error))
    return ReadError(ErrorKind.UNREADABLE, f"the archive is damaged: {error}")
