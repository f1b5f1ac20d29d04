"""HEIC and HEIF photos to pixels, by libheif through pillow-heif; nothing is registered with Pillow.

The primary image is taken. libheif turns it upright by the file's own transformations, so the orientation that cameras
leave in EXIF as well is not applied again. 10 and 12 bits a channel are scaled to 8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pillow_heif
from PIL import Image

from zellige.data.decoded import Decoded, DecodeError, DecodeLimits, Probed
from zellige.data.pixels import to_rgb
from zellige.data.schema import ErrorKind

KIND = "image/heic"


def probe_heif(data: bytes, limits: DecodeLimits) -> Probed:
    """The size of the upright primary image; raises DecodeError ``too_large``, or what libheif raises."""
    width, height = _open(data, limits).size
    return Probed(width, height, KIND)


def decode_heif(data: bytes, limits: DecodeLimits) -> Decoded:
    """The upright primary image; raises DecodeError ``too_large``, or what libheif raises."""
    file = _open(data, limits)
    image = file[file.primary_index].to_pillow()
    if image.mode == "I;16":  # libheif has scaled 10 and 12 bits to the whole range already
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    rgb, warning = to_rgb(image, "")
    return Decoded(np.array(rgb), rgb.width, rgb.height, len(file), KIND, warning)


def _open(data: bytes, limits: DecodeLimits) -> Any:
    try:
        file = pillow_heif.open_heif(data, convert_hdr_to_8bit=True)
    except SyntaxError as error:
        raise DecodeError(ErrorKind.UNSUPPORTED_FORMAT, f"{KIND} of a kind that cannot be read: {error}") from error
    if len(file) == 0:
        raise DecodeError(ErrorKind.EMPTY, f"this {KIND} holds no image")
    limits.check(*file.size)
    return file
