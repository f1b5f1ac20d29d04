"""Bytes to pixels: upright 8-bit RGB by one table, or an error that names its kind.

The bytes decide what a file is, never its name. The order is header, pixel budget, pixels: what is too large is refused
before a pixel is decoded.

| what is stored                     | what becomes of it                                                             |
| ---------------------------------- | ------------------------------------------------------------------------------ |
| 1, L                               | grey in all three channels                                                     |
| RGB, RGBX, YCbCr, HSV, LAB, P      | RGB (X is dropped, a palette is looked up); 16 bits a channel: value >> 8       |
| LA, La, PA, RGBA, RGBa             | over white                                                                     |
| P, L, 1, RGB, I;16 with tRNS       | over white: the transparent colour or the palette's alpha                      |
| CMYK, YCCK                         | RGB (Adobe's inverted inks are turned back by Pillow)                          |
| I;16, I;16L, I;16B, I;16N          | value >> 8; where no value is over 4,095 it is 12-bit data: value >> 4          |
| I (32 bits)                        | within 0..65,535 as I;16; else the least value is black and the greatest white |
| F (floats)                         | within 0..1: value x 255; else as I, over the finite values                    |
| NaN, -inf, +inf among floats       | black, black, white                                                            |
| an I or F of one value out of range | grey 128: neither end can be told                                              |
| ICC profile                        | transformed to sRGB; unusable or of another colour model: ignored, warning     |
| EXIF or XMP orientation 1 to 8     | turned upright, once; damaged EXIF: pixels kept as they are, warning           |
| animation, several pages           | frame 0 (page 1); ``frames`` counts them                                       |
| MPO                                | its first image                                                                |

No setting of Pillow is read or changed for the budget: images are opened by their plugin's own class, because
``Image.open`` compares sizes with a limit that the whole process shares.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    IcoImagePlugin,
    Image,
    Jpeg2KImagePlugin,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)
from PIL.ImageFile import ImageFile

from zellige.data.orientation import UPRIGHT, orientation
from zellige.data.pixels import to_rgb
from zellige.data.schema import ErrorKind
from zellige.data.sniff import HEAD_BYTES, ends_early, sniff

#: Part of a recipe's ``preprocessing``: raised whenever the table above changes what a pixel becomes.
DECODE_RULES = 1

_OPEN: dict[str, Callable[[BinaryIO, str], ImageFile]] = {
    "image/jpeg": JpegImagePlugin.jpeg_factory,
    "image/png": PngImagePlugin.PngImageFile,
    "image/webp": WebPImagePlugin.WebPImageFile,
    "image/gif": GifImagePlugin.GifImageFile,
    "image/bmp": BmpImagePlugin.BmpImageFile,
    "image/tiff": TiffImagePlugin.TiffImageFile,
    "image/avif": AvifImagePlugin.AvifImageFile,
    "image/jp2": Jpeg2KImagePlugin.Jpeg2KImageFile,
    "image/x-portable-anymap": PpmImagePlugin.PpmImageFile,
    "image/x-icon": IcoImagePlugin.IcoImageFile,
}


class DecodeError(Exception):
    """An image that cannot be used: ``kind`` for the row, and a message that says what was found."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


@dataclass(frozen=True)
class DecodeLimits:
    """``max_pixels``: width x height by the header, checked before a pixel is decoded."""

    max_pixels: int = 200_000_000


_DEFAULT_LIMITS = DecodeLimits()


@dataclass(frozen=True, eq=False)
class Decoded:
    """``pixels`` is upright 8-bit RGB (H, W, 3), contiguous and writable; ``warning`` says what was lost on the way."""

    pixels: NDArray[np.uint8]
    width: int
    height: int
    frames: int
    format: str
    warning: str | None = None


@dataclass(frozen=True)
class Probed:
    """What the header says: pixels of the upright image, and the media type."""

    width: int
    height: int
    format: str


def probe(source: bytes | BinaryIO, limits: DecodeLimits = _DEFAULT_LIMITS) -> Probed:
    """Read the header only; raises DecodeError as ``decode`` would for what a header can tell."""
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    kind = _kind(file.read(HEAD_BYTES))
    try:
        image = _open(file, kind, limits)
    except DecodeError:
        raise
    except Exception as error:
        file.seek(0)
        raise _fault(error, file.read(), kind) from error
    width, height = image.size
    if kind != "image/tiff" and orientation(image.info)[0] >= 5:
        width, height = height, width
    return Probed(width, height, kind)


def decode(data: bytes, limits: DecodeLimits = _DEFAULT_LIMITS) -> Decoded:
    """Bytes to pixels by the table above; raises DecodeError and nothing else. Safe to call from many threads."""
    kind = _kind(data[:HEAD_BYTES])
    try:
        return _decode(data, kind, limits)
    except DecodeError:
        raise
    except MemoryError as error:
        raise DecodeError(ErrorKind.TOO_LARGE, "not enough memory to decode this image") from error
    except Exception as error:  # a plugin may raise anything on bytes that were made or damaged to that end
        raise _fault(error, data, kind) from error


def _decode(data: bytes, kind: str, limits: DecodeLimits) -> Decoded:
    image = _open(io.BytesIO(data), kind, limits)
    raw_mode = _raw_mode(image)
    image.load()
    # A TIFF's orientation is applied by its plugin while loading.
    turn, exif_warning = (1, None) if kind == "image/tiff" else orientation(image.info)
    rgb, colour_warning = to_rgb(image, raw_mode)
    if turn != 1:
        rgb = rgb.transpose(UPRIGHT[turn])
    pixels = np.array(rgb)
    frames, frames_warning = _frames(image)
    # Of the other kinds, some end in bytes of their own (motion photos) and the rest fail when they are cut.
    early = "the file lacks its end, all pixels are there" if kind == "image/png" and ends_early(data, kind) else None
    notes = [note for note in (exif_warning, colour_warning, frames_warning, early) if note]
    return Decoded(pixels, rgb.width, rgb.height, frames, kind, "; ".join(notes) or None)


def _kind(head: bytes) -> str:
    """The media type of an image we can open; raises DecodeError that says what the bytes are instead."""
    if not head:
        raise DecodeError(ErrorKind.EMPTY, "the file is empty (0 bytes)")
    kind = sniff(head)
    if kind is None:
        raise DecodeError(ErrorKind.UNREADABLE, f"not an image of any known kind (begins with {head[:8].hex(' ')})")
    if kind not in _OPEN:
        what = f"{kind} cannot be read" if kind.startswith("image/") else f"not an image: {kind}"
        raise DecodeError(ErrorKind.UNSUPPORTED_FORMAT, what)
    return kind


def _open(file: BinaryIO, kind: str, limits: DecodeLimits) -> ImageFile:
    """The image with its header read and its size within the budget."""
    file.seek(0)
    try:
        image = _OPEN[kind](file, "")
    except Image.DecompressionBombError as error:  # some plugins ask Pillow's shared limit by themselves
        raise DecodeError(ErrorKind.TOO_LARGE, str(error)) from error
    width, height = image.size
    if width * height > limits.max_pixels:
        raise DecodeError(
            ErrorKind.TOO_LARGE, f"{width} x {height} pixels are more than the limit of {limits.max_pixels:,} pixels"
        )
    return image


def _raw_mode(image: ImageFile) -> str:
    """How the file stores its samples ("L;4", "RGB;16B", …), as far as the plugin says; asked before loading."""
    args: Any = image.tile[0].args if image.tile else ""
    first = args[0] if isinstance(args, tuple) and args else args
    return first if isinstance(first, str) else ""


def _frames(image: ImageFile) -> tuple[int, str | None]:
    """How many frames or pages there are. Asked last: counting walks through the file and may find it damaged."""
    try:
        return int(getattr(image, "n_frames", 1)), None
    except Exception as error:
        return 1, f"later frames are damaged: {_said(error)}"


def _fault(error: Exception, data: bytes, kind: str) -> DecodeError:
    said = _said(error)
    if isinstance(error, Image.DecompressionBombError):
        return DecodeError(ErrorKind.TOO_LARGE, said)
    if "truncated" in said.lower() or ends_early(data, kind):
        return DecodeError(ErrorKind.TRUNCATED, f"{kind} cut short: {said}")
    return DecodeError(ErrorKind.UNREADABLE, f"damaged {kind}: {said}")


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
