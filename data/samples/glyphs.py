"""Glyph bitmaps at whole pixel sizes, cached, with the measures that a layout needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from zellige.data.samples.fonts import BUILT_IN, Face

Bitmap = NDArray[np.uint8]


@dataclass(frozen=True)
class Glyph:
    """Coverage (height, width) 0..255, and where its top left lies from the pen position on the baseline."""

    bitmap: Bitmap
    left: int
    top: int


class Font:
    """One face at one size in pixels: advances, measures, and bitmaps of printable ASCII."""

    def __init__(self, face: Face, size: int) -> None:
        self.face, self.size = face, size
        if face.path == BUILT_IN:
            font = ImageFont.load_default(size)
            if not isinstance(font, ImageFont.FreeTypeFont):
                raise RuntimeError("this Pillow was built without FreeType; install the wheel from PyPI")
            self._font = font
        else:
            self._font = ImageFont.truetype(face.path, size, layout_engine=ImageFont.Layout.BASIC)
        self.advances = {chr(c): float(self._font.getlength(chr(c))) for c in range(32, 127)}
        self.ascent, self.descent = self._font.getmetrics()
        self.x_height = -self._font.getbbox("x", anchor="ls")[1]
        self._glyphs: dict[str, Glyph] = {}

    def width(self, text: str) -> float:
        """Length in pixels of ``text`` set glyph after glyph, without kerning."""
        return sum([self.advances[c] for c in text])

    def kerned_width(self, text: str) -> float:
        """Length in pixels of ``text`` as Pillow sets it."""
        return float(self._font.getlength(text))

    def draw(self, text: str, ink: int) -> Glyph:
        """``text`` as one bitmap, kerned, with full ink ``ink``; not cached."""
        left, top, right, bottom = (int(v) for v in self._font.getbbox(text, anchor="ls"))
        image = Image.new("L", (max(0, right - left) + 2, max(0, bottom - top) + 2))
        ImageDraw.Draw(image).text((1 - left, 1 - top), text, font=self._font, fill=ink, anchor="ls")
        box = image.getbbox()
        if box is None:
            return Glyph(np.zeros((0, 0), np.uint8), 0, 0)
        return Glyph(np.asarray(image.crop(box)), left - 1 + box[0], top - 1 + box[1])

    def glyph(self, character: str, ink: int) -> Glyph:
        """The bitmap of one character with full ink ``ink``; drawn once."""
        glyph = self._glyphs.get(character)
        if glyph is None:
            glyph = self._glyphs[character] = self.draw(character, 255)
        if ink == 255:
            return glyph
        return Glyph(((glyph.bitmap * np.uint16(ink)) >> 8).astype(np.uint8), glyph.left, glyph.top)


@lru_cache(maxsize=4096)
def load_font(face: Face, size: int) -> Font:
    """The face at a size in pixels; made once a process."""
    return Font(face, size)
