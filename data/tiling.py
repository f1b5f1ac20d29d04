"""Which boxes of a large image the model is shown: an overview, and tiles that it sees at full scale.

The rule, with ``max_pixels`` and ``cell`` of the model's own budget:

- ``auto`` tiles an image of more than ``AUTO_FACTOR`` x max_pixels; below that the whole image loses little.
- The largest tile is twice as wide as high, in whole cells within max_pixels (608 x 320 px for 200,704 pixels and cells
  of 32): print is wide and low. Along each side of the image the fewest tiles are taken that overlap by a third of its
  width across and an eighth of its height down at least, then the tile is made as small (in whole cells) as this number
  of tiles allows. What is no larger than the overlap is whole in some tile: of 2,000 facts printed in 13 to 22 px on
  posters of 3,000 x 2,000 99 % were, in 49 tiles; in 50 squares that overlap by a third 96 % were.
- Tiles are spread evenly, so the last one ends at the image's edge and none leaves the image. Where a side of the image
  is shorter than a tile, the tile takes the whole side, and is the higher for it where the image is narrow.
- A number of pixels as mode is the side of a square tile instead (in whole cells). Above the model's own maximum
  the model shrinks each tile and ``scale`` says so.
- 1 x 1 or 31 x 639 is small and seen whole (the model enlarges it). A shape that the model cannot see at all, such as
  1 x 5,000 where sides may differ 200-fold, raises the budget's ValueError: that item fails alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from zellige.data.schema import Tiling

AUTO_FACTOR = 2.0
#: How many times as wide as high a tile is.
ASPECT = 2
#: The least overlap of neighbours is the width (height) of the largest tile divided by this.
OVERLAP_ACROSS, OVERLAP_DOWN = 3, 8


class Budget(Protocol):
    """What one image may cost the model, and its resize rule (``VisionBudget`` of the engine is one)."""

    @property
    def cell(self) -> int: ...
    @property
    def max_pixels(self) -> int: ...
    @property
    def min_pixels(self) -> int: ...
    def resized(self, width: int, height: int) -> tuple[int, int]: ...


@dataclass(frozen=True)
class Tile:
    """A box in pixels of the upright image; ``scale`` is the model's pixels per pixel of the image.

    ``turn`` is by how many degrees clockwise the model is shown it turned: a page may lie on its side.
    """

    x: int
    y: int
    width: int
    height: int
    scale: float
    overview: bool = False
    turn: int = 0

    def as_read(self) -> Tile:
        """The box as it lies on the turned page, up to a shift that is the same for all tiles of the page."""
        x, y, width, height = self.x, self.y, self.width, self.height
        if self.turn == 90:
            x, y, width, height = -(y + height), x, height, width
        elif self.turn == 180:
            x, y = -(x + width), -(y + height)
        elif self.turn == 270:
            x, y, width, height = y, -(x + width), height, width
        return replace(self, x=x, y=y, width=width, height=height, turn=0)


def plan_tiles(width: int, height: int, budget: Budget, mode: Tiling = "auto") -> tuple[Tile, ...]:
    """The overview, then the tiles row by row; () where the image is to be seen whole.

    Raises ValueError for a shape the model cannot see, and for a ``mode`` in pixels smaller than one cell.
    """
    overview = _tile(0, 0, width, height, budget, overview=True)
    if mode == "off":
        return ()
    if mode == "auto":
        if width * height <= AUTO_FACTOR * budget.max_pixels:
            return ()
        across, down = _largest(width, budget)
    else:
        if mode < budget.cell:
            raise ValueError(
                f"a tile of {mode} pixels is smaller than one cell of the model; give {budget.cell} or more"
            )
        across = down = mode // budget.cell * budget.cell
        if max(width, height) <= across:
            return ()
    columns, tile_width = spread(width, across, budget.cell, across // OVERLAP_ACROSS)
    rows, tile_height = spread(height, down, budget.cell, down // OVERLAP_DOWN)
    return (overview, *(_tile(x, y, tile_width, tile_height, budget) for y in rows for x in columns))


def cut(pixels: NDArray[np.uint8], tile: Tile) -> NDArray[np.uint8]:
    """The tile's pixels of an (H, W, 3) image: the image itself for an overview, else a copy of its own."""
    if tile.overview:
        return pixels
    return pixels[tile.y : tile.y + tile.height, tile.x : tile.x + tile.width].copy()


def _largest(width: int, budget: Budget) -> tuple[int, int]:
    """Width and height of the largest tile of an image of this width."""
    longest = max(1, math.isqrt(ASPECT * budget.max_pixels) // budget.cell)
    across = min(longest, -(-width // budget.cell))
    down = min(longest, budget.max_pixels // budget.cell**2 // across)
    return across * budget.cell, max(1, down) * budget.cell


def _tile(x: int, y: int, width: int, height: int, budget: Budget, overview: bool = False) -> Tile:
    seen_width, seen_height = budget.resized(width, height)
    scale = math.sqrt(seen_width * seen_height / (width * height))
    return Tile(x, y, width, height, scale, overview)


def spread(length: int, side: int, cell: int, overlap: int) -> tuple[list[int], int]:
    """Where tiles that overlap begin along a side of ``length`` pixels, and how long they are; see the rule above."""
    if length <= side:
        return [0], length
    count = math.ceil((length - overlap) / (side - overlap))
    least = math.ceil((length + (count - 1) * overlap) / count / cell) * cell
    side = min(side, least)
    return [(length - side) * i // (count - 1) for i in range(count)], side
