"""Which boxes of a large image the model is shown: an overview, and tiles that it sees at full scale.

The rule, with ``max_pixels`` and ``cell`` of the model's own budget:

- ``auto`` tiles an image of more than ``AUTO_FACTOR`` x max_pixels; below that the whole image loses little.
- The largest tile is a square of whole cells within max_pixels (448 px for 200,704 pixels and cells of 32). Along each
  side of the image the fewest tiles are taken that overlap by at least a third of that square across and an eighth of
  it down (print is wide and low), then the tile is made as small (in whole cells) as this number of tiles allows. What
  is no larger than the overlap is whole in some tile: of 500 facts printed in 13 to 22 px on posters of 3,000 x 2,000
  97 % were, and 83 % with an eighth across.
- Tiles are spread evenly, so the last one ends at the image's edge and none leaves the image. Where a side of the image
  is shorter than a tile, the tile takes the whole side.
- A number of pixels as mode is the side of the tile instead (rounded down to whole cells). Above the model's own square
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
#: The least overlap of neighbours is the side of the square divided by this.
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

    ``turn`` is by how many degrees clockwise the model is shown it turned: a page may lie on its side (``read`` only).
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
    square = math.isqrt(budget.max_pixels) // budget.cell * budget.cell
    if mode == "off":
        return ()
    if mode == "auto":
        if width * height <= AUTO_FACTOR * budget.max_pixels:
            return ()
        side = max(budget.cell, square)
    else:
        if mode < budget.cell:
            raise ValueError(
                f"a tile of {mode} pixels is smaller than one cell of the model; give {budget.cell} or more"
            )
        side = mode // budget.cell * budget.cell
        if max(width, height) <= side:
            return ()
    columns, tile_width = spread(width, side, budget.cell, side // OVERLAP_ACROSS)
    rows, tile_height = spread(height, side, budget.cell, side // OVERLAP_DOWN)
    return (overview, *(_tile(x, y, tile_width, tile_height, budget) for y in rows for x in columns))


def cut(pixels: NDArray[np.uint8], tile: Tile) -> NDArray[np.uint8]:
    """The tile's pixels of an (H, W, 3) image: the image itself for an overview, else a copy of its own."""
    if tile.overview:
        return pixels
    return pixels[tile.y : tile.y + tile.height, tile.x : tile.x + tile.width].copy()


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
