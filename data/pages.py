"""How many pages a document has, from its headers alone: what planning asks of PDF and TIFF files.

| document                              | its items                                                              |
| ------------------------------------- | ---------------------------------------------------------------------- |
| PDF of n pages                        | pages 1 to n                                                           |
| TIFF of one page                      | the file itself, page null                                             |
| TIFF of n pages                       | pages 1 to n; thumbnails, overviews and masks are no pages             |
| TIFF whose chain of directories breaks | the pages before, and one failed item for the page that is not there   |
| encrypted, empty or damaged document  | the file itself, failed                                                |
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, cast

from zellige.data import header_process
from zellige.data.decoded import DecodeError
from zellige.data.schema import ErrorKind, Item
from zellige.data.sniff import HEAD_BYTES, sniff

#: Media types of documents, which may have several pages.
DOCUMENTS = frozenset({"application/pdf", "image/tiff"})
#: No directory of a real file has more entries; BigTIFF could say 2^64.
_MOST_ENTRIES = 65_535
_NEW_SUBFILE_TYPE, _SUBFILE_TYPE = 254, 255
_REDUCED, _MASK = 1, 4


@dataclass(frozen=True)
class Pages:
    """How many pages can be reached; ``missing`` says why there is one more that cannot."""

    count: int
    missing: DecodeError | None = None


def pages_of(source: bytes | BinaryIO, kind: str) -> Pages:
    """The pages of a PDF or TIFF (``kind`` is its media type) from bytes or a seekable file.

    Raises DecodeError for a document that has none that can be reached.
    """
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    if kind == "application/pdf":
        return Pages(*header_process.count_pages(file))
    offsets, missing = tiff_pages(file)
    if not offsets:
        raise missing or DecodeError(ErrorKind.EMPTY, "this TIFF holds no image")
    return Pages(len(offsets), missing)


def page_items(item: Item, file: BinaryIO) -> list[Item]:
    """The items of a whole file, named by ``item`` and open at ``file``: its pages where it has some, or ``item``.

    A document that is found damaged is ``item`` with its error. Raises OSError as ever.
    """
    file.seek(0)
    kind = sniff(file.read(HEAD_BYTES))
    if kind not in DOCUMENTS:
        return [item]
    try:
        pages = pages_of(file, kind)
    except DecodeError as error:
        return [replace(item, error_kind=error.kind, error=error.message)]
    if kind == "image/tiff" and pages.count == 1 and pages.missing is None:
        return [item]
    found = [replace(item, page=page, item_id="") for page in range(1, pages.count + 1)]
    if (missing := pages.missing) is not None:
        page = pages.count + 1
        found.append(replace(item, page=page, item_id="", error_kind=missing.kind, error=missing.message))
    return found


def tiff_pages(file: BinaryIO) -> tuple[list[int], DecodeError | None]:
    """(offsets of the directories that are pages, what broke the chain). TIFF and BigTIFF; reads directories only."""
    directories, fault = _directories(file)
    pages = [offset for offset, is_page in directories if is_page]
    # A file of nothing but reduced images shows the first of them.
    return pages or [offset for offset, _ in directories[:1]], fault


def first_directory_at(file: BinaryIO, offset: int) -> BinaryIO:
    """The TIFF as a reader should get it to see the page at ``offset`` alone: that directory named as the first."""
    file.seek(0)
    head = file.read(16)
    order, big = _layout(head)
    named = head[:8] + struct.pack(order + "Q", offset) if big else head[:4] + struct.pack(order + "L", offset)
    file.seek(0)
    return file if head.startswith(named) else cast(BinaryIO, io.BufferedReader(_Headed(file, named)))


class _Headed(io.RawIOBase):
    """``file`` with ``head`` in place of its first bytes; it may be far larger than memory, so nothing is copied."""

    def __init__(self, file: BinaryIO, head: bytes) -> None:
        self._file, self._head, self._at = file, head, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            self._at = self._file.seek(offset, whence)
        else:
            self._at = offset + (self._at if whence == io.SEEK_CUR else 0)
        return self._at

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._at)
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        if own := self._head[self._at : self._at + len(data)]:
            buffer[: len(own)] = own
        self._at += len(data)
        return len(data)


def _layout(head: bytes) -> tuple[str, bool]:
    return "<" if head[:2] == b"II" else ">", head[2:4] in (b"+\0", b"\0+")


def _directories(file: BinaryIO) -> tuple[list[tuple[int, bool]], DecodeError | None]:
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    head = file.read(16)
    order, big = _layout(head)
    offset_format, count_format, entry_bytes = ("Q", "Q", 20) if big else ("L", "H", 12)
    count_bytes, offset_bytes = struct.calcsize("<" + count_format), struct.calcsize("<" + offset_format)
    found: list[tuple[int, bool]] = []
    seen: set[int] = set()
    try:
        (offset,) = struct.unpack_from(order + offset_format, head, 8 if big else 4)
        while offset:
            if offset in seen:
                return found, DecodeError(ErrorKind.UNREADABLE, "the chain of pages runs in a circle")
            seen.add(offset)
            if offset + count_bytes > size:
                return found, DecodeError(
                    ErrorKind.TRUNCATED, f"the next page is said to be at byte {offset:,} of {size:,}"
                )
            file.seek(offset)
            (count,) = struct.unpack(order + count_format, file.read(count_bytes))
            if not 0 < count <= _MOST_ENTRIES:
                return found, DecodeError(ErrorKind.UNREADABLE, f"the page's directory at byte {offset:,} is damaged")
            entries = file.read(count * entry_bytes)
            # The last directory's link may be cut off: the page is there, only the link is not.
            link = file.read(offset_bytes)
            if len(entries) < count * entry_bytes:
                return found, DecodeError(ErrorKind.TRUNCATED, f"the page's directory at byte {offset:,} is cut short")
            found.append((offset, _is_page(entries, order, entry_bytes)))
            (offset,) = struct.unpack(order + offset_format, link)
    except struct.error:
        return found, DecodeError(ErrorKind.TRUNCATED, "the file ends inside the chain of pages")
    return found, None


def _is_page(entries: bytes, order: str, entry_bytes: int) -> bool:
    """Whether a directory is a page, and not a thumbnail, an overview or a mask."""
    for at in range(0, len(entries), entry_bytes):
        tag, kind = struct.unpack_from(order + "HH", entries, at)
        if tag in (_NEW_SUBFILE_TYPE, _SUBFILE_TYPE):
            (value,) = struct.unpack_from(
                order + ("H" if kind == 3 else "L"), entries, at + (12 if entry_bytes == 20 else 8)
            )
            return not value & (_REDUCED | _MASK) if tag == _NEW_SUBFILE_TYPE else value != 2
    return True
