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
| I (32 bits, signed or not)         | within 0..65,535 as I;16; else the least value is black and the greatest white |
| F (floats)                         | within 0..1: value x 255; else as I, over the finite values                    |
| NaN, -inf, +inf among floats       | black, black, white                                                            |
| an I or F of one value out of range | grey 128: neither end can be told                                              |
| TIFF whose least value is white    | turned round, greys of any depth                                               |
| ICC profile                        | transformed to sRGB; unusable or of another colour model: ignored, warning     |
| EXIF or XMP orientation 1 to 8     | turned upright, once; damaged EXIF: pixels kept as they are, warning           |
| animation                          | frame 0; ``frames`` counts them                                                |
| TIFF of several pages              | the page that is asked for, else page 1; thumbnails, overviews, masks: no pages |
| PDF                                | the page, drawn over white at 150 dots an inch (``data/pdf.py``)                |
| MPO                                | its first image                                                                |
| HEIC                               | its primary image, turned upright by libheif; 10 and 12 bits scaled to 8        |
| JPEG in TIFF                       | each strip or tile is checked first: libtiff would show grey for what is lost  |

No setting of Pillow is read or changed for the budget: images are opened by their plugin's own class, because
``Image.open`` compares sizes with a limit that the whole process shares.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np
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

from zellige.data import heif, pdf
from zellige.data.decoded import DEFAULT_LIMITS, Decoded, DecodeError, DecodeLimits, Probed, first_of, no_page
from zellige.data.orientation import UPRIGHT, orientation
from zellige.data.pages import DOCUMENTS, first_directory_at, tiff_pages
from zellige.data.pixels import to_rgb
from zellige.data.schema import ErrorKind
from zellige.data.sniff import HEAD_BYTES, ends_early, sniff
from zellige.data.tiff_jpeg import check_jpeg_strips
from zellige.data.tiff_samples import unknown_kind, white_is_zero

__all__ = ["DECODE_RULES", "DecodeError", "DecodeLimits", "Decoded", "Probed", "decode", "probe"]

#: Part of a recipe's ``preprocessing``: raised whenever the table above changes what a pixel becomes.
DECODE_RULES = 3

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
#: Images that are known for what they are and that nothing here decodes.
_NAMES = {
    "image/jxl": "JPEG XL (image/jxl)",
    "image/svg+xml": "SVG drawings (image/svg+xml)",
    "image/vnd.adobe.photoshop": "Photoshop files (image/vnd.adobe.photoshop)",
}


def probe(source: bytes | BinaryIO, limits: DecodeLimits = DEFAULT_LIMITS, page: int | None = None) -> Probed:
    """Read the header only; raises DecodeError as ``decode`` would for what a header can tell."""
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    kind = _kind(file.read(HEAD_BYTES))
    try:
        return _probe(file, kind, limits, page)
    except DecodeError:
        raise
    except Exception as error:
        file.seek(0)
        raise _fault(error, file.read(), kind) from error


def decode(data: bytes, limits: DecodeLimits = DEFAULT_LIMITS, page: int | None = None) -> Decoded:
    """Bytes to pixels by the table above; raises DecodeError and nothing else. Safe to call from many threads.

    ``page`` counts from 1 and is of a PDF or a TIFF; None is the first one, or an image that has no pages.
    """
    kind = _kind(data[:HEAD_BYTES])
    try:
        return _decode(data, kind, limits, page)
    except DecodeError:
        raise
    except MemoryError as error:
        raise DecodeError(ErrorKind.TOO_LARGE, "not enough memory to decode this image") from error
    except Exception as error:  # a plugin may raise anything on bytes that were made or damaged to that end
        raise _fault(error, data, kind) from error


def _probe(file: BinaryIO, kind: str, limits: DecodeLimits, page: int | None) -> Probed:
    _check_page(kind, page)
    if kind == pdf.KIND:
        return pdf.probe_page(file, page or 1, limits)
    if kind == heif.KIND:
        file.seek(0)
        return heif.probe_heif(file.read(), limits)
    if kind == "image/tiff":
        file, _, _ = _tiff_page(file, page)
    image = _open(file, kind, limits)
    width, height = image.size
    if kind != "image/tiff" and orientation(image.info)[0] >= 5:
        width, height = height, width
    return Probed(width, height, kind)


def _decode(data: bytes, kind: str, limits: DecodeLimits, page: int | None) -> Decoded:
    _check_page(kind, page)
    if kind == pdf.KIND:
        return pdf.render_page(data, page, limits)
    if kind == heif.KIND:
        return heif.decode_heif(data, limits)
    file: BinaryIO = io.BytesIO(data)
    frames, pages_warning = 1, None
    if kind == "image/tiff":
        file, frames, pages_warning = _tiff_page(file, page)
    image = _open(file, kind, limits)
    raw_mode = _raw_mode(image)
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        check_jpeg_strips(image, data)
    image.load()
    # A TIFF's orientation is applied by its plugin while loading.
    turn, exif_warning = (1, None) if kind == "image/tiff" else orientation(image.info)
    white = isinstance(image, TiffImagePlugin.TiffImageFile) and white_is_zero(image)
    rgb, colour_warning = to_rgb(image, raw_mode, white)
    if turn != 1:
        rgb = rgb.transpose(UPRIGHT[turn])
    pixels = np.array(rgb)
    if kind != "image/tiff":
        frames, pages_warning = _frames(image)
    # Of the other kinds, some end in bytes of their own (motion photos) and the rest fail when they are cut.
    early = kind in ("image/png", "image/gif") and ends_early(data, kind)
    cut = "the file lacks its end, all pixels are there" if early else None
    notes = [note for note in (exif_warning, colour_warning, pages_warning, cut) if note]
    return Decoded(pixels, rgb.width, rgb.height, frames, kind, "; ".join(notes) or None)


def _check_page(kind: str, page: int | None) -> None:
    """A document may have been replaced by an image since its pages were listed."""
    if page is not None and page > 1 and kind not in DOCUMENTS:
        raise no_page(page, 1)


def _tiff_page(file: BinaryIO, page: int | None) -> tuple[BinaryIO, int, str | None]:
    """(a file that begins with the page, how many there are, warning); its own chain of pages is not walked again."""
    offsets, missing = tiff_pages(file)
    number = page or 1
    if number > max(1, len(offsets)) or (missing and not offsets):
        raise missing or no_page(number, len(offsets))
    if offsets:
        file = first_directory_at(file, offsets[number - 1])
    notes = [first_of(len(offsets))] if page is None and len(offsets) > 1 else []
    notes += [f"later pages cannot be reached: {missing.message}"] if missing and page is None else []
    return file, len(offsets), "; ".join(notes) or None


def _kind(head: bytes) -> str:
    """The media type of an image we can open; raises DecodeError that says what the bytes are instead."""
    if not head:
        raise DecodeError(ErrorKind.EMPTY, "the file is empty (0 bytes)")
    kind = sniff(head)
    if kind is None:
        raise DecodeError(ErrorKind.UNREADABLE, f"not an image of any known kind (begins with {head[:8].hex(' ')})")
    if kind not in _OPEN and kind not in (pdf.KIND, heif.KIND):
        if kind.startswith("image/"):
            what = f"{_NAMES.get(kind, kind)} cannot be read: no decoder for them is built in; save it as PNG or JPEG"
        else:
            what = f"not an image: {kind}"
        raise DecodeError(ErrorKind.UNSUPPORTED_FORMAT, what)
    return kind


def _open(file: BinaryIO, kind: str, limits: DecodeLimits) -> ImageFile:
    """The image with its header read and its size within the budget."""
    file.seek(0)
    try:
        image = _OPEN[kind](file, "")
    except Image.DecompressionBombError as error:  # some plugins ask Pillow's shared limit by themselves
        raise DecodeError(ErrorKind.TOO_LARGE, str(error)) from error
    limits.check(*image.size)
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
    if isinstance(error, SyntaxError) and kind == "image/tiff" and said.startswith("unknown "):
        return DecodeError(ErrorKind.UNSUPPORTED_FORMAT, unknown_kind(error))
    if "truncated" in said.lower() or "end of file" in said.lower() or ends_early(data, kind):
        return DecodeError(ErrorKind.TRUNCATED, f"{kind} cut short: {said}")
    return DecodeError(ErrorKind.UNREADABLE, f"damaged {kind}: {said}")


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
