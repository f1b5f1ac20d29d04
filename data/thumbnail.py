"""Small pictures of items: the resize rule, as the processes that decode take it, and the picture as a JPEG."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from zellige.data.views import ViewRule

_QUALITY = 72


@dataclass(frozen=True)
class ThumbnailBudget:
    """Shrinks what is longer than ``side`` pixels; nothing is enlarged and no shape is refused."""

    side: int

    cell = 1
    min_pixels = 1

    @property
    def max_pixels(self) -> int:
        return self.side * self.side

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) of the small picture, whose longer side is ``side`` at most."""
        scale = min(1.0, self.side / max(width, height))
        return max(1, round(width * scale)), max(1, round(height * scale))


def thumbnail_rule(side: int) -> ViewRule:
    """The rule by which an image becomes one small view of the whole."""
    return ViewRule("caption", "off", ThumbnailBudget(side))


def as_jpeg(pixels: NDArray[np.uint8]) -> bytes:
    """Pixels (height, width, 3) as a JPEG."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=_QUALITY, optimize=True)
    return file.getvalue()


def as_data_uri(jpeg: bytes) -> str:
    """A JPEG as an address that holds it."""
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode('ascii')}"
