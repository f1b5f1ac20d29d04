"""A sheet of paper as ink: 0 is paper, 255 full ink, with a mark for every character that was set.

The sheet may be a window into a larger page: text is placed in page coordinates, and what lies outside is not drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from zellige.data.samples.glyphs import Bitmap, Font

#: Most characters whose places are kept, and how many kinds of marks there are (0: none; printable ASCII from 2 on).
MAX_MARKS = 448
MARK_KINDS = 96

Where = Literal["inside", "outside", "cut"]


@dataclass(frozen=True)
class Box:
    """A rectangle in page coordinates (pixels); the right and bottom edges are not part of it."""

    left: float
    top: float
    right: float
    bottom: float

    def touches(self, other: Box, gap: float = 0.0) -> bool:
        across = self.left < other.right + gap and other.left < self.right + gap
        return across and self.top < other.bottom + gap and other.top < self.bottom + gap


class Ink:
    """The ink of one window (``width`` x ``height``) whose top left is at ``origin`` of the page."""

    def __init__(self, width: int, height: int, *, origin: tuple[int, int] = (0, 0), kerned: bool = False) -> None:
        self.width, self.height = width, height
        self.origin, self.kerned = origin, kerned
        self.pixels: NDArray[np.uint8] = np.zeros((height, width), np.uint8)
        #: Sizes in pixels of the smallest and the largest type in view (0: none).
        self.type_px: tuple[int, int] = (0, 0)
        self._marks: list[tuple[float, float, int]] = []

    def text(self, x: float, baseline: float, text: str, font: Font, ink: int) -> Box:
        """Set one line of printable ASCII at page coordinates; returns the box it takes."""
        pen, line = round(x) - self.origin[0], round(baseline) - self.origin[1]
        width = font.kerned_width(text) if self.kerned else font.width(text)
        box = Box(x, baseline - font.ascent, x + width, baseline + font.descent)
        if pen + width < 0 or pen > self.width or line + font.descent < 0 or line - font.ascent > self.height:
            return box
        self.type_px = (min(self.type_px[0] or font.size, font.size), max(self.type_px[1], font.size))
        if self.kerned:
            glyph = font.draw(text, ink)
            self._blit(glyph.bitmap, pen + glyph.left, line + glyph.top)
        stretch = width / max(1e-6, font.width(text)) if self.kerned else 1.0
        middle, at = line - font.x_height * 0.55, float(pen)
        for character in text:
            advance = font.advances[character] * stretch
            if character != " ":
                if not self.kerned:
                    glyph = font.glyph(character, ink)
                    self._blit(glyph.bitmap, int(at + glyph.left), line + glyph.top)
                self._marks.append((at + advance / 2, middle, ord(character) - 31))
            at += advance
        return box

    def _blit(self, bitmap: Bitmap, x: int, y: int) -> None:
        height, width = bitmap.shape
        if x >= 0 and y >= 0 and x + width <= self.width and y + height <= self.height:
            target = self.pixels[y : y + height, x : x + width]
            np.maximum(target, bitmap, out=target)
            return
        left, top = max(x, 0), max(y, 0)
        right, bottom = min(x + width, self.width), min(y + height, self.height)
        if right > left and bottom > top:
            target = self.pixels[top:bottom, left:right]
            np.maximum(target, bitmap[top - y : bottom - y, left - x : right - x], out=target)

    def rule(self, left: float, y: float, right: float, ink: int, thickness: int) -> None:
        """A horizontal line at page coordinates."""
        top, start = int(y) - self.origin[1], max(0, int(left) - self.origin[0])
        self.pixels[max(0, top) : max(0, top + thickness), start : max(0, int(right) - self.origin[0])] = ink

    def frame(self, ink: int, inset: int = 2) -> None:
        """A thin frame around the window."""
        last = inset + 1
        self.pixels[inset, inset:-inset] = self.pixels[-last, inset:-inset] = ink
        self.pixels[inset:-inset, inset] = self.pixels[inset:-inset, -last] = ink

    def where(self, box: Box, margin: float = 3.0) -> Where:
        """Whether a box of the page is wholly in this window (by a margin), wholly out of it, or cut."""
        x, y = self.origin
        left, top, right, bottom = box.left - x, box.top - y, box.right - x, box.bottom - y
        if left >= margin and top >= 0 and right <= self.width - margin and bottom <= self.height:
            return "inside"
        if right <= -1 or bottom <= -1 or left >= self.width + 1 or top >= self.height + 1:
            return "outside"
        return "cut"

    def marks(self) -> NDArray[np.float32]:
        """(characters, 3): centre x, centre y in window pixels and code - 31 of those in view, MAX_MARKS at most."""
        seen = [m for m in self._marks if 0 <= m[0] < self.width and 0 <= m[1] < self.height]
        return np.asarray(seen[:MAX_MARKS], np.float32).reshape(-1, 3)
