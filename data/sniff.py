"""What a file is by its bytes. Names and suffixes are never believed."""

from __future__ import annotations

import re
import struct

#: Suffixes that make a file of a walked folder an item without a look at its bytes (lower case, with the dot).
IMAGE_SUFFIXES = frozenset(
    b".jpg .jpeg .jpe .jfif .mpo .png .apng .webp .gif .bmp .dib .tif .tiff .avif .avifs .heic .heif .hif "
    b".jp2 .j2k .jpx .pbm .pgm .ppm .pnm .ico".split()
)
#: How many bytes ``sniff`` wants to see.
HEAD_BYTES = 1024

_MAGIC = (
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"II*\0", "image/tiff"),
    (b"MM\0*", "image/tiff"),
    (b"II+\0", "image/tiff"),
    (b"MM\0+", "image/tiff"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "image/jp2"),
    (b"\xff\x4f\xff\x51", "image/jp2"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"PAR1", "application/vnd.apache.parquet"),
    (b"\x1f\x8b", "application/gzip"),
    (b"8BPS", "image/vnd.adobe.photoshop"),
    (b"\xff\x0a", "image/jxl"),
    (b"\0\0\0\x0cJXL ", "image/jxl"),
    (b"%!PS", "application/postscript"),
)
_BRANDS = {
    b"avif": "image/avif",
    b"avis": "image/avif",
    **dict.fromkeys((b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1"), "image/heic"),
}
_NETPBM = re.compile(rb"P[1-6][ \t\r\n]+[0-9#]")
_HTML = re.compile(rb"<(!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_SVG = re.compile(rb"<svg[\s>]", re.IGNORECASE)


def sniff(head: bytes) -> str | None:
    """The media type of a file that begins with ``head``; None where the bytes say nothing."""
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    if head[4:8] == b"ftyp":
        # The compatible brands decide where the major one is a generic "mif1".
        brands = [head[8:12], *(head[i : i + 4] for i in range(16, min(len(head), int.from_bytes(head[:4], "big")), 4))]
        return "image/avif" if {b"avif", b"avis"} & set(brands) else _BRANDS.get(brands[0], "video/mp4")
    if head[:2] == b"BM" and head[6:10] == bytes(4) and len(head) >= 10:
        return "image/bmp"
    if head[:4] == b"\0\0\1\0" and 0 < int.from_bytes(head[4:6], "little") < 256:
        return "image/x-icon"
    if _NETPBM.match(head):
        return "image/x-portable-anymap"
    text = _text(head)
    # A PDF may have some bytes before its mark, such as the header of a mail or of a printer.
    return "application/pdf" if text in (None, "text/plain") and b"%PDF-" in head else text


def _text(head: bytes) -> str | None:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"<"):
        if _SVG.search(text) and not _HTML.match(text):
            return "image/svg+xml"
        return "text/html" if _HTML.search(text) else "text/xml"
    if not text or any(b < 9 or 13 < b < 32 for b in text):
        return None
    try:
        # The head may end inside a character.
        text.decode("utf-8") if len(head) < HEAD_BYTES else text[:-4].decode("utf-8", "strict")
    except UnicodeDecodeError:
        return None
    return "application/json" if text[:1] in (b"{", b"[") else "text/plain"


def ends_early(data: bytes, kind: str) -> bool:
    """Whether a file of this media type lacks its end, as far as its own structure tells."""
    if kind == "image/jpeg":
        # A thumbnail has an end mark of its own, so the mark must follow the last scan.
        return data.rfind(b"\xff\xd9") <= data.rfind(b"\xff\xda")
    if kind == "image/png":
        return b"IEND\xaeB`\x82" not in data
    if kind == "image/gif":
        return _gif_ends_early(data)
    if kind == "image/webp":
        return len(data) < 8 + int.from_bytes(data[4:8], "little")
    if kind == "image/bmp":
        return len(data) < int.from_bytes(data[2:6], "little")
    if kind == "image/tiff":
        return _tiff_ends_early(data)
    if kind == "image/x-icon":
        entries = struct.iter_unpack("<8xLL", data[6 : 6 + 16 * data[4]][: (len(data) - 6) // 16 * 16])
        return len(data) < 6 + 16 * data[4] or any(offset + size > len(data) for size, offset in entries)
    if kind in ("image/avif", "image/jp2", "image/heic"):
        return _boxes_end_early(data) if data[:4] != b"\xff\x4f\xff\x51" else not data.endswith(b"\xff\xd9")
    return False


def _gif_ends_early(data: bytes) -> bool:
    """Walks the blocks to the end mark: a GIF may have bytes of another kind behind it."""

    def colours(flags: int) -> int:
        return 3 << (flags & 7) + 1 if flags & 0x80 else 0

    at = 13 + colours(data[10]) if len(data) > 10 else len(data)
    while at < len(data):
        if data[at] == 0x3B:
            return False
        if data[at] == 0x2C:
            at += 11 + colours(data[at + 9]) if at + 9 < len(data) else len(data)
        else:
            at += 2
        while at < len(data) and data[at]:
            at += 1 + data[at]
        at += 1
    return True


def _tiff_ends_early(data: bytes) -> bool:
    order = "<" if data[:2] == b"II" else ">"
    big = data[2:4] in (b"+\0", b"\0+")
    header = data[8:16] if big else data[4:8]
    if len(header) < (8 if big else 4):
        return True
    (directory,) = struct.unpack(order + ("Q" if big else "L"), header)
    count = data[directory : directory + (8 if big else 2)]
    if len(count) < (8 if big else 2):
        return True
    (entries,) = struct.unpack(order + ("Q" if big else "H"), count)
    return bool(directory + entries * (20 if big else 12) > len(data))


def _boxes_end_early(data: bytes) -> bool:
    at = 0
    while at + 8 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if size == 1:
            size = int.from_bytes(data[at + 8 : at + 16], "big")
        if size == 0:  # the last box reaches to the end of the file
            return False
        if size < 8:
            return True
        at += size
    return at != len(data)
