"""An image as a client sends it, to upright 8-bit RGB at the size the model sees.

The bytes decide what an image is, never what it was called. Transparency is over white, 16-bit grey is scaled, EXIF
turns the image upright, an animation is its first frame. Settings of Pillow that the whole process shares are left
alone, so images are opened by their plugin's own class.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import BmpImagePlugin, GifImagePlugin, Image, ImageOps, JpegImagePlugin, PngImagePlugin, WebPImagePlugin
from PIL.ImageFile import ImageFile

from zellige.engine.api import VisionBudget
from zellige.engine.server.errors import ApiError, too_large

FORMATS = "JPEG, PNG, WebP, GIF or BMP"
_OPEN: tuple[tuple[bytes, Callable[[BinaryIO, str], ImageFile]], ...] = (
    (b"\xff\xd8\xff", JpegImagePlugin.jpeg_factory),
    (b"\x89PNG\r\n\x1a\n", PngImagePlugin.PngImageFile),
    (b"RIFF", WebPImagePlugin.WebPImageFile),
    (b"GIF8", GifImagePlugin.GifImageFile),
    (b"BM", BmpImagePlugin.BmpImageFile),
)


def open_image(data: bytes, max_pixels: int) -> ImageFile:
    """The image with its header read and its size within ``max_pixels``; raises ApiError 400 or 413."""
    opener = next((opens for magic, opens in _OPEN if data.startswith(magic)), None)
    if opener is None:
        raise ApiError(400, f"the bytes are no {FORMATS} image", code="invalid_image")
    try:
        image = opener(io.BytesIO(data), "")
    except Image.DecompressionBombError as error:
        raise too_large(f"over the limit of {max_pixels:,} pixels") from error
    except Exception as error:  # a plugin may raise anything on bytes that were made to that end
        raise ApiError(400, "its header is damaged", code="invalid_image") from error
    width, height = image.size
    if width * height > max_pixels:
        raise too_large(f"{width} x {height} pixels are more than the limit of {max_pixels:,}")
    return image


def decode(image: ImageFile, budget: VisionBudget) -> NDArray[np.uint8]:
    """Pixels (height, width, 3) as the checkpoint's own resize rule makes them; raises ApiError 400.

    Resizing here and not later bounds what waits for an answer by the model's size, not by the photo's. The rule leaves
    an image of its own making alone, so the answer is the same.
    """
    try:
        image.load()
        rgb = _to_rgb(_upright(image))
    except Exception as error:  # as above; MemoryError included: it is this image's
        raise ApiError(400, "its pixels are damaged or cut short", code="invalid_image") from error
    try:
        size = budget.resized(*rgb.size)
    except ValueError as error:
        raise ApiError(400, str(error), code="invalid_image") from error
    return np.array(rgb if size == rgb.size else rgb.resize(size, Image.Resampling.BICUBIC))


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # damaged EXIF says nothing; the pixels are whole
        return image


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        values = np.asarray(image)
        return Image.fromarray((values >> (4 if values.max() <= 4095 else 8)).clip(0, 255).astype(np.uint8)).convert(
            "RGB"
        )
    if not image.has_transparency_data:
        return image.convert("RGB")
    rgba = image.convert("RGBA")
    over_white = Image.new("RGB", rgba.size, "white")
    over_white.paste(rgba, mask=rgba.getchannel("A"))
    return over_white
