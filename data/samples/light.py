"""From ink and clean scenes to pictures: paper and ink colours, turning, light, blur, JPEG and noise."""

from __future__ import annotations

import io
import math
import random

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

Pixels = NDArray[np.uint8]


def _noise(rng: random.Random) -> np.random.Generator:
    return np.random.default_rng(rng.getrandbits(64))


def tilted(ink: Pixels, degrees: float) -> Pixels:
    """The ink turned about its middle, shrunk just so far that none of it leaves the sheet."""
    height, width = ink.shape
    rows, columns = np.flatnonzero(ink.any(1)), np.flatnonzero(ink.any(0))
    if not rows.size:
        return ink
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    box = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
    across, down = box[2] - box[0], box[3] - box[1]
    turned = (across * abs(cos) + down * abs(sin), across * abs(sin) + down * abs(cos))
    scale = min(1.0, (width - 6) / turned[0], (height - 6) / turned[1])
    middle = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
    # The middle stays where it is unless a side would leave the sheet.
    half = (turned[0] * scale / 2 + 3, turned[1] * scale / 2 + 3)
    to = (min(max(middle[0], half[0]), width - half[0]), min(max(middle[1], half[1]), height - half[1]))
    a, b = cos / scale, sin / scale
    matrix = (a, b, middle[0] - a * to[0] - b * to[1], -b, a, middle[1] + b * to[0] - a * to[1])
    image = Image.fromarray(ink).transform(
        (width, height), Image.Transform.AFFINE, matrix, resample=Image.Resampling.BICUBIC
    )
    return np.asarray(image)


def print_in_colour(ink: Pixels, rng: random.Random) -> Pixels:
    """Ink of some dark colour on paper of some light one, now and then the other way round; (height, width, 3)."""
    tint = rng.random() < 0.6
    paper = np.array([1 - rng.uniform(0, 0.22) * tint for _ in range(3)])
    base = rng.uniform(0, 0.3)
    colour = np.array([min(1.0, max(0.0, base + rng.uniform(-0.08, 0.08))) for _ in range(3)])
    if rng.random() < 0.08:
        paper, colour = colour, paper
    share = ink[..., None].astype(np.float32) / 255
    return np.asarray((paper + (colour - paper) * share) * 255 + 0.5, np.uint8)


def photographed(pixels: Pixels, rng: random.Random, strength: float = 1.0) -> Pixels:
    """Uneven light, a little blur, JPEG and noise, each in a share of pictures; (height, width, 3)."""
    height, width = pixels.shape[:2]
    image = Image.fromarray(pixels)
    if rng.random() < 0.15 * strength:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.2, 0.7)))
    if rng.random() < 0.4 * strength:
        packed = io.BytesIO()
        image.save(packed, "JPEG", quality=rng.randint(45, 95))
        image = Image.open(packed).convert("RGB")
    light = np.asarray(image, np.float32)
    slope_x, slope_y = (rng.uniform(-0.07, 0.07) * strength * (rng.random() < 0.6) for _ in range(2))
    shade = 1 + slope_x * np.linspace(-1, 1, width) + slope_y * np.linspace(-1, 1, height)[:, None]
    grain = _noise(rng).standard_normal(pixels.shape, np.float32) * (rng.uniform(0, 11) * strength)
    return np.asarray(np.clip(light * shade[..., None] + grain + 0.5, 0, 255), np.uint8)
