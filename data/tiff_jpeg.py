"""Whether the JPEG streams inside a TIFF are whole.

libtiff reports a damaged stream on the standard error stream only and shows grey for what is lost, so the strips and
tiles are walked before they are decoded.
"""

from __future__ import annotations

from PIL.TiffImagePlugin import TiffImageFile

from zellige.data.decoded import DecodeError
from zellige.data.schema import ErrorKind

_COMPRESSION, _JPEG = 259, 7
#: (offsets, byte counts) of strips, and of tiles.
_PLACES = ((273, 279), (324, 325))
_START, _END = b"\xff\xd8", 0xD9
#: What may follow the pixels of one scan: tables, another scan, a comment, application data.
_SEGMENTS = frozenset((0xC4, 0xDA, 0xDB, 0xDC, 0xDD, 0xFE, *range(0xE0, 0xF0)))
_WITHIN_PIXELS = frozenset((0x00, 0xFF, *range(0xD0, 0xD8)))


def check_jpeg_strips(image: TiffImageFile, data: bytes) -> None:
    """Raises DecodeError where a strip or tile of an opened TIFF is no whole JPEG; other compressions pass."""
    tags = image.tag_v2
    if tags.get(_COMPRESSION) != _JPEG:
        return
    for offsets, counts in _PLACES:
        for number, (offset, count) in enumerate(zip(tags.get(offsets, ()), tags.get(counts, ()), strict=False), 1):
            what = f"the JPEG of part {number}"
            if offset + count > len(data):
                raise DecodeError(ErrorKind.TRUNCATED, f"image/tiff cut short: {what} runs past the end of the file")
            if count and (fault := _fault(data, offset, offset + count)) is not None:
                raise DecodeError(fault[0], f"damaged image/tiff: {what} {fault[1]}")


def _fault(data: bytes, at: int, end: int) -> tuple[ErrorKind, str] | None:
    """What is wrong with the JPEG at ``data[at:end]``; None where its structure is whole."""
    if data[at : at + 2] != _START:
        return ErrorKind.UNREADABLE, "does not begin as one"
    at, scans = at + 2, 0
    while (at := data.find(b"\xff", at, end)) >= 0 and at + 1 < end:
        marker = data[at + 1]
        if scans and marker in _WITHIN_PIXELS:
            at += 1 if marker == 0xFF else 2
        elif marker == _END:
            # Padding may follow, more of the picture may not.
            whole = scans and (end - at < 18 or not data[at + 2 : end].strip(b"\0"))
            return None if whole else (ErrorKind.UNREADABLE, "ends before its pixels do")
        elif marker in _SEGMENTS or (not scans and marker >= 0xC0):
            scans += marker == 0xDA
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        else:
            return ErrorKind.UNREADABLE, f"holds the mark ff {marker:02x} among its pixels"
    return ErrorKind.TRUNCATED, "lacks its end"
