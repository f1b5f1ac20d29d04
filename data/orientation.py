"""Which way up a photo is, from the metadata beside its pixels."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any

from PIL import Image

_TAG = 0x0112
_XMP = re.compile(rb'tiff:Orientation(?:="|>)([1-8])\b')
#: What makes an image of orientation 2 to 8 upright.
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def orientation(info: Mapping[str | tuple[int, int], Any]) -> tuple[int, str | None]:
    """(1 to 8, warning) from a Pillow image's ``info``; 1 where nothing usable is said.

    EXIF decides, then XMP. The EXIF block is read here and not by Pillow, whose reader reports damage through Python's
    warnings only, which threads share.
    """
    exif, warning = _exif(info), None
    if exif is not None:
        try:
            found = exif_orientation(exif)
        except ValueError as damage:
            found, warning = None, f"damaged EXIF ignored: {damage}"
        if found is not None:
            return found, warning
    xmp = info.get("xmp") or info.get("XML:com.adobe.xmp") or b""
    match = _XMP.search(xmp if isinstance(xmp, bytes) else str(xmp).encode("utf-8", "replace"))
    return (int(match[1]) if match else 1), warning


def _exif(info: Mapping[str | tuple[int, int], Any]) -> bytes | None:
    """The EXIF block: as it is, or in the hexadecimal text that older PNG writers use."""
    exif = info.get("exif")
    if isinstance(exif, bytes):
        return exif
    text = info.get("Raw profile type exif")
    if not isinstance(text, str):
        return None
    try:
        return bytes.fromhex("".join(text.split("\n")[3:]))
    except ValueError:
        return b""


def exif_orientation(exif: bytes) -> int | None:
    """The orientation an EXIF block states (1 to 8), None where it states none; raises ValueError if it is damaged."""
    block = exif
    while block.startswith(b"Exif\0\0"):
        block = block[6:]
    if block[:4] not in (b"II*\0", b"MM\0*") or len(block) < 8:
        raise ValueError("no TIFF header")
    order = "<" if block[:2] == b"II" else ">"
    (directory,) = struct.unpack_from(order + "L", block, 4)
    try:
        (count,) = struct.unpack_from(order + "H", block, directory)
        for entry in range(directory + 2, directory + 2 + 12 * count, 12):
            tag, kind, values = struct.unpack_from(order + "HHL", block, entry)
            if tag == _TAG:
                (value,) = struct.unpack_from(order + ("L" if kind == 4 else "H"), block, entry + 8)
                return value if kind in (3, 4) and values == 1 and 1 <= value <= 8 else None
    except struct.error as error:
        raise ValueError("its directory runs past its end") from error
    return None
