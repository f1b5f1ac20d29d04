"""How a TIFF stores its pixels, by Pillow's reading of its header: libvips says less, and of some kinds otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO

from PIL.TiffImagePlugin import TiffImageFile

from zellige.data.decoded import DecodeError
from zellige.data.schema import ErrorKind

_COMPRESSION, _PHOTOMETRIC = 259, 262
_JPEG = 7


@dataclass(frozen=True)
class TiffSamples:
    """``mode`` is Pillow's; ``white_is_zero``: the least value is white."""

    mode: str
    white_is_zero: bool


def white_is_zero(image: TiffImageFile) -> bool:
    """Whether the header says that the least value is white."""
    return bool(image.tag_v2.get(_PHOTOMETRIC) == 0)


def region_samples(file: BinaryIO) -> TiffSamples:
    """The samples of a TIFF's first page; raises DecodeError for a kind that cannot be read by region."""
    file.seek(0)
    try:
        image = TiffImageFile(file, "")
    except SyntaxError as error:
        raise DecodeError(ErrorKind.UNSUPPORTED_FORMAT, unknown_kind(error)) from error
    # Of YCbCr that no JPEG holds, the readers differ in whether the chroma has fewer samples.
    if image.mode == "LAB" or (image.mode == "YCbCr" and image.tag_v2.get(_COMPRESSION) != _JPEG):
        raise DecodeError(
            ErrorKind.UNSUPPORTED_FORMAT,
            f"{image.width} x {image.height} pixels are read by region, which cannot be done for a TIFF of "
            f"{image.mode}; save it as 8-bit RGB or make it smaller",
        )
    return TiffSamples(image.mode, white_is_zero(image))


def unknown_kind(error: Exception) -> str:
    """What to say of a TIFF whose samples Pillow does not know."""
    return f"image/tiff of a kind that cannot be read ({error}); save it as 8-bit RGB"
