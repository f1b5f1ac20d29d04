"""HEIC photos: upright once, at any depth, and what is said about damaged ones."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pillow_heif
import pytest
from PIL import Image

from zellige.data.decode import DecodeError, DecodeLimits, decode, probe


def heic(*images: Image.Image, **options: Any) -> bytes:
    file, made = io.BytesIO(), pillow_heif.HeifFile()
    for image in images:
        made.add_from_pillow(image)
    made.save(file, **{"quality": 95, "chroma": "444"} | options)
    return file.getvalue()


def banded() -> Image.Image:
    """White with a red band on top, and blue in its left corner."""
    image = Image.new("RGB", (64, 32), "white")
    image.paste("red", (0, 0, 64, 8))
    image.paste("blue", (0, 0, 16, 8))
    return image


def near(one: Any, other: Any) -> bool:
    return bool(np.abs(np.asarray(one, np.int16) - np.asarray(other, np.int16)).max() < 40)


def test_photo_is_decoded_by_its_bytes():
    decoded = decode(heic(banded()))
    assert near(decoded.pixels[4, 8], [0, 0, 255])
    assert near(decoded.pixels[24, 40], [255, 255, 255])
    assert (decoded.width, decoded.height, decoded.frames, decoded.format) == (64, 32, 1, "image/heic")
    assert decoded.warning is None
    assert decoded.pixels.flags.writeable


@pytest.mark.parametrize("value", [1, 2, 3, 4, 5, 6, 7, 8])
def test_orientation_is_applied_once(value):
    exif = Image.Exif()
    exif[0x0112] = value
    jpeg = io.BytesIO()
    banded().save(jpeg, "JPEG", exif=exif, quality=95, subsampling=0)
    data = heic(banded(), exif=exif.tobytes())
    decoded, same_as_jpeg = decode(data), decode(jpeg.getvalue())
    assert decoded.pixels.shape == same_as_jpeg.pixels.shape
    assert np.abs(decoded.pixels.astype(int) - same_as_jpeg.pixels).mean() < 12
    assert (probe(data).width, probe(data).height) == (decoded.width, decoded.height)


def test_10_bits_a_channel_are_scaled_to_8():
    ramp = np.linspace(0, 65535, 64).astype(np.uint16)[None].repeat(64, axis=0)
    made = pillow_heif.from_bytes("RGB;16", (64, 64), np.stack([ramp] * 3, axis=-1).tobytes())
    file = io.BytesIO()
    made.save(file, quality=95)
    assert pillow_heif.open_heif(file.getvalue()).info["bit_depth"] == 10
    assert near(decode(file.getvalue()).pixels[32, :, 1], ramp[32] >> 8)
    grey = io.BytesIO()
    pillow_heif.from_bytes("I;16", (64, 64), (ramp // 32).tobytes()).save(grey, quality=95)
    assert decode(grey.getvalue()).pixels.max() < 40  # dark stays dark


def test_alpha_is_laid_over_white():
    image = Image.new("RGBA", (64, 64), (0, 0, 0, 255))
    image.paste((0, 0, 0, 0), (32, 0, 64, 64))
    pixels = decode(heic(image)).pixels
    assert near(pixels[32, 8], [0, 0, 0])
    assert near(pixels[32, 56], [255, 255, 255])


def test_first_of_several_images_is_taken_and_they_are_counted():
    decoded = decode(heic(banded(), Image.new("RGB", (16, 16), "black")))
    assert (decoded.width, decoded.frames) == (64, 2)


def test_too_large_is_said_before_a_pixel_is_decoded():
    with pytest.raises(DecodeError, match="64 x 32") as caught:
        decode(heic(banded()), DecodeLimits(max_pixels=100))
    assert caught.value.kind == "too_large"


@pytest.mark.parametrize("keep", [0.05, 0.3, 0.6, 0.9, 0.99])
def test_photo_cut_short_is_truncated(keep):
    data = heic(Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)))
    with pytest.raises(DecodeError) as caught:
        decode(data[: int(len(data) * keep)])
    assert caught.value.kind == "truncated"


def test_nothing_is_registered_with_pillow():
    decode(heic(banded()))
    Image.init()
    assert "HEIF" not in Image.OPEN
