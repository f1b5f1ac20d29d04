"""Any Pillow mode to 8-bit RGB over white; the rules are the table in ``data/decode.py``."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

_TWELVE_BITS = 4095
_SIXTEEN_BITS = 65535
#: Pillow's name of how a TIFF stores unsigned numbers of 32 bits, which it keeps in signed ones.
_UNSIGNED_32 = "I;32N"
#: ICC colour space of a profile -> the Pillow mode it is for.
_SPACES = {"GRAY": "L", "RGB": "RGB", "CMYK": "CMYK"}


def to_rgb(image: Image.Image, raw_mode: str, white_is_zero: bool = False) -> tuple[Image.Image, str | None]:
    """(RGB image, warning) of a loaded image; ``raw_mode`` is how its file stored the samples ("L;4", "RGB;16B").

    ``white_is_zero`` is for greys of more than 8 bits: of the others Pillow has turned it round.
    """
    colour, alpha = _colour_and_alpha(image, raw_mode, white_is_zero)
    colour, warning = _to_srgb(colour, image.info.get("icc_profile"))
    rgb = colour if colour.mode == "RGB" else colour.convert("RGB")
    if alpha is None:
        return rgb, warning
    over_white = Image.new("RGB", rgb.size, "white")
    over_white.paste(rgb, mask=alpha)
    return over_white, warning


def _colour_and_alpha(image: Image.Image, raw_mode: str, white_is_zero: bool) -> tuple[Image.Image, Image.Image | None]:
    """The colours as L, RGB or CMYK, and the alpha as L (None: opaque)."""
    mode, key = image.mode, image.info.get("transparency")
    if mode.startswith("I;16") or mode in ("I", "F"):
        values = np.asarray(image)
        if raw_mode == _UNSIGNED_32:
            values = values.view(np.uint32)
        grey = grey_image(to_grey(values, finite_range(values)), white_is_zero)
        return grey, _mask(values == key) if isinstance(key, int) else None
    if mode in ("La", "RGBa"):
        image = image.convert("LA" if mode == "La" else "RGBA")
    elif mode in ("P", "PA"):
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    if image.mode in ("LA", "RGBA"):
        return image.convert("L" if image.mode == "LA" else "RGB"), image.getchannel("A")
    if mode == "CMYK":
        return image, None
    if mode in ("1", "L"):
        grey = image.convert("L")
        return grey, _mask(np.asarray(grey) == _scaled_key(key, raw_mode)) if isinstance(key, int) else None
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    if mode == "RGB" and isinstance(key, tuple):
        colour = [value >> 8 for value in key] if ";16" in raw_mode else list(key)
        return rgb, _mask(np.all(np.asarray(rgb) == np.array(colour), axis=-1))
    return rgb, None


def _mask(transparent: NDArray[np.bool_] | bool) -> Image.Image:
    return Image.fromarray(np.where(transparent, np.uint8(0), np.uint8(255)))


def _scaled_key(key: int, raw_mode: str) -> int:
    """A PNG's transparent grey in the range that its 1-, 2- or 4-bit samples were scaled to."""
    top = {"1": 1, "L;1": 1, "L;2": 3, "L;4": 15}.get(raw_mode, 255)
    return key * 255 // top


def grey_image(grey: NDArray[np.uint8], white_is_zero: bool) -> Image.Image:
    """8-bit greys as an image, turned round where the least value is white."""
    return Image.fromarray(255 - grey if white_is_zero else grey)


def finite_range(values: NDArray[Any]) -> tuple[float, float]:
    """The least and the greatest finite value; (inf, -inf) where there is none, so that parts can be joined."""
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    return (float(finite.min()), float(finite.max())) if finite.size else (np.inf, -np.inf)


def to_grey(values: NDArray[Any], within: tuple[float, float]) -> NDArray[np.uint8]:
    """Integers or floats as 8-bit greys, where ``within`` is the ``finite_range`` of the whole image."""
    low, high = within if within[0] <= within[1] else (0.0, 1.0)
    if values.dtype.kind != "f":
        if low < 0 or high > _SIXTEEN_BITS:
            return _stretched(values.astype(np.float64), low, high)
        grey: NDArray[np.uint8] = (values >> (4 if high <= _TWELVE_BITS else 8)).astype(np.uint8)
        return grey
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    return _stretched(np.nan_to_num(values.astype(np.float64), nan=low, posinf=high, neginf=low), low, high)


def _stretched(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.uint8]:
    """``low`` to black and ``high`` to white; one value only becomes grey 128."""
    if high == low:
        return np.full(values.shape, 128, np.uint8)
    # Halved first: high - low of the largest floats would overflow.
    unit = (values / 2 - low / 2) / (high / 2 - low / 2)
    grey: NDArray[np.uint8] = np.rint(unit.clip(0, 1) * 255).astype(np.uint8)
    return grey


def _to_srgb(image: Image.Image, profile: bytes | None) -> tuple[Image.Image, str | None]:
    """The image in sRGB where its ICC profile can be used; else as it is, with a warning."""
    if not profile:
        return image, None
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        space = source.profile.xcolor_space.strip()
        if _SPACES.get(space) != image.mode:
            return image, f"colour profile ignored: it is for {space}, the image is {image.mode}"
        if "sRGB" in (source.profile.profile_description or ""):
            return image, None
        srgb = ImageCms.createProfile("sRGB")
        out = ImageCms.profileToProfile(image, source, srgb, outputMode="RGB")
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError) as error:
        return image, f"colour profile ignored: {error}"
    return out or image, None
