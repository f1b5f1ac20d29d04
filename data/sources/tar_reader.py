"""An open tar, plain or compressed: its headers one after the other, and its members by the place of their header.

A tar says nowhere how many members it has, and a cut one looks whole to most readers. So the walk here reads header by
header and believes an archive only when it ends with the two blocks of zeros that the format asks for.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, BinaryIO, cast

from zellige.data.schema import ErrorKind
from zellige.data.sniff import HEAD_BYTES
from zellige.data.sources.base import ReadError, StoredFile, check_head, check_size, why
from zellige.data.sources.zstd import zstd_open

_COMPRESSED: tuple[tuple[bytes, Callable[[BinaryIO], Any]], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\0", lzma.open),
    (b"\x28\xb5\x2f\xfd", zstd_open),
)
#: The kinds of tarfile.HeaderError, which its type stubs do not know.
_ZeroBlockError, _NothingError, _ShortError = (
    getattr(tarfile, name) for name in ("EOFHeaderError", "EmptyHeaderError", "TruncatedHeaderError")
)
#: What reading a damaged or cut archive may raise, from the storage up.
FAULTS = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError)
_OCTAL = re.compile(rb"([0-7]{1,12})[ \0]*")
_LONGEST_HEADER_BYTES = 8 << 20


def holds_tar(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a tar, compressed or not."""
    for magic, opened in _COMPRESSED:
        if head.startswith(magic):
            try:
                with opened(io.BytesIO(head)) as file:
                    head = file.read(263)
            except FAULTS:
                return False
    return head[257:262] == b"ustar"


class TarReader:
    """An open tar: headers one after the other, and members by the place of their header."""

    def __init__(self, file: StoredFile) -> None:
        """Raises ReadError where the file cannot be opened."""
        self._raw = file.open()
        with _Told():
            head = self._raw.read(8)
            self._raw.seek(0)
        opened = next((opened for magic, opened in _COMPRESSED if head.startswith(magic)), None)
        self.compressed = opened is not None
        stream = self._raw if opened is None else opened(self._raw)
        self._size = None if self.compressed else self._raw.seek(0, io.SEEK_END)
        self._stream = stream
        # Asked to write, tarfile reads no first member of its own accord: each header is read here.
        self._tar = tarfile.TarFile(fileobj=io.BytesIO(), mode="w", encoding="utf-8", errors="surrogateescape")
        self._headers = _Headers(stream)
        self._tar.fileobj = cast(BinaryIO, self._headers)
        self._data = cast(tarfile.TarFile, SimpleNamespace(fileobj=stream))  # all that ExFileObject asks for
        self._next = 0
        self.empty = head == b""

    def next(self) -> tuple[int, tarfile.TarInfo] | None:
        """The place of the next header and what it says; None at the end. Raises ReadError at a cut or damage."""
        with _Told():
            place = self._next
            self._stream.seek(place)
            try:
                info = self._header()
            except _ZeroBlockError:  # the first block of zeros
                if len(self._stream.read(tarfile.BLOCKSIZE)) == tarfile.BLOCKSIZE:
                    while self.compressed and self._stream.read(1 << 20):
                        pass  # its checksum is behind the last byte
                    return None
                raise ReadError(ErrorKind.TRUNCATED, "the archive lacks its end mark") from None
            except _NothingError:
                raise ReadError(ErrorKind.TRUNCATED, "the archive ends without its end mark") from None
            except tarfile.HeaderError as error:
                cut = isinstance(error, _ShortError) or not self._stream.read(1)
                kind = ErrorKind.TRUNCATED if cut else ErrorKind.UNREADABLE
                raise ReadError(kind, f"no header at byte {place:,}: {error}") from None
            if info.size < 0 or self._tar.offset <= place:
                raise ReadError(ErrorKind.UNREADABLE, f"the header at byte {place:,} names a negative size")
            self._next = self._tar.offset
            return place, info

    def at(self, place: int) -> tarfile.TarInfo:
        """The member whose header is at ``place``; raises ReadError."""
        with _Told():
            self._stream.seek(place)
            try:
                return self._header()
            except tarfile.HeaderError as error:
                raise ReadError(ErrorKind.UNREADABLE, f"no header at byte {place:,}: {error}") from None

    def whole(self, info: tarfile.TarInfo) -> bool:
        """Whether all bytes of the member are there; a compressed archive is read that far."""
        end = self._next if info.issparse() else info.offset_data + info.size
        if self._size is not None:
            return end <= self._size
        try:
            if end <= info.offset_data or self._stream.tell() == end:
                return True
            return self._stream.seek(end - 1) == end - 1 and self._stream.read(1) != b""
        except FAULTS:
            return False

    def head(self, info: tarfile.TarInfo) -> bytes:
        """The first ``HEAD_BYTES`` of a regular member, as far as they are there."""
        try:
            with self.open(info) as file:
                return file.read(HEAD_BYTES)
        except FAULTS:
            return b""

    def read_on(self, info: tarfile.TarInfo, head: bytes) -> bytes:
        """All bytes of a member whose ``head`` was read last, without a step backwards; raises ReadError."""
        if info.issparse():
            return self.read(info)
        check_size(info.size)
        with _Told():
            self._stream.seek(info.offset_data + len(head))
            return self._complete(info, head + self._stream.read(info.size - len(head)))

    def open(self, info: tarfile.TarInfo) -> io.BufferedReader:
        """A regular member's bytes, seekable."""
        return tarfile.ExFileObject(self._data, info)

    def read(self, info: tarfile.TarInfo) -> bytes:
        """All bytes of a regular member; raises ReadError."""
        check_size(info.size)
        with _Told():
            try:
                file = self.open(info)
                check_head(file.peek(HEAD_BYTES), info.size)
                data = file.read()
            except tarfile.ReadError:
                data = b""
            return self._complete(info, data)

    def _complete(self, info: tarfile.TarInfo, data: bytes) -> bytes:
        if len(data) < info.size:
            raise ReadError(ErrorKind.TRUNCATED, "the archive is cut inside this member")
        return data

    def close(self) -> None:
        self._stream.close()
        self._raw.close()

    def _header(self) -> tarfile.TarInfo:
        place = self._stream.tell()
        block = self._stream.read(tarfile.BLOCKSIZE)
        if (plain := _plain(block, place)) is not None:
            self._tar.offset = plain.offset_data + -(-plain.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
            return plain
        self._headers.ahead = block
        try:
            return tarfile.TarInfo.fromtarfile(self._tar)
        except (ValueError, LookupError, OverflowError) as error:  # extended headers of any content
            raise tarfile.HeaderError(str(error)) from error


class _Headers:
    """The stream as tarfile reads headers from it: an extended header may name any length, and would get it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        #: A block that was read already, and is what ``read`` gives first.
        self.ahead: bytes | None = None
        self.tell, self.seek = stream.tell, stream.seek

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _LONGEST_HEADER_BYTES:
            raise tarfile.HeaderError(f"an extended header of {size:,} bytes")
        if self.ahead is not None:
            block, self.ahead = self.ahead, None
            return block
        return self._stream.read(size)


def _plain(block: bytes, place: int) -> tarfile.TarInfo | None:
    """What the header of a plain file says; None for all that needs a closer look, damage included.

    Nearly all headers are such, and tarfile takes several times as long for each.
    """
    if len(block) != tarfile.BLOCKSIZE or block[156:157] not in b"0\0" or block[257:262] != b"ustar" or block[345]:
        return None
    name, size, checksum = (
        block[:100].partition(b"\0")[0],
        _OCTAL.fullmatch(block, 124, 136),
        _OCTAL.match(block, 148, 156),
    )
    if size is None or checksum is None or name.endswith(b"/"):
        return None
    if sum(block) - sum(block[148:156]) + 8 * 32 != int(checksum[1], 8):
        return None
    info = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
    info.size, info.offset, info.offset_data = int(size[1], 8), place, place + tarfile.BLOCKSIZE
    return info


class _Told:
    """Turns what damaged and cut archives raise into ReadError."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, EOFError):
            raise ReadError(ErrorKind.TRUNCATED, "the compressed archive ends early") from error
        if isinstance(error, (gzip.BadGzipFile, zlib.error, lzma.LZMAError, tarfile.TarError)):
            raise ReadError(ErrorKind.UNREADABLE, f"the archive is damaged: {error}") from error
        if isinstance(error, OSError):
            raise ReadError(*why(error)) from error
