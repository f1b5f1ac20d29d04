"""Every grid of cells that an image can become, by the image processor's own rule."""

from __future__ import annotations

import random
from collections import Counter
from functools import lru_cache
from typing import Literal, NamedTuple

from zellige.engine.demo.architecture import BUDGET

Kind = Literal["document", "paragraph", "line", "scene"]
KINDS: tuple[Kind, ...] = ("document", "paragraph", "line", "scene")

#: Sides in pixels that the model is made for.
LEAST_SIDE, MOST_SIDE = 96, 640
#: Cell counts that documents are trained on, and how many of them scenes have too.
_DOCUMENT_COUNTS, _SHARED_COUNTS = 60, 10


class Grid(NamedTuple):
    """Rows and columns of cells (32 x 32 pixels, one image token each)."""

    rows: int
    columns: int

    @property
    def cells(self) -> int:
        return self.rows * self.columns

    @property
    def height(self) -> int:
        return self.rows * BUDGET.cell

    @property
    def width(self) -> int:
        return self.columns * BUDGET.cell


def grid_of(width: int, height: int) -> Grid:
    """The grid of an image of this size in pixels; raises ValueError for a shape that no model sees."""
    w, h = BUDGET.resized(width, height)
    return Grid(h // BUDGET.cell, w // BUDGET.cell)


@lru_cache(maxsize=1)
def reachable() -> tuple[Grid, ...]:
    """Every grid of an image whose sides are LEAST_SIDE to MOST_SIDE pixels (steps of two pixels find them all)."""
    sides = range(LEAST_SIDE, MOST_SIDE + 1, 2)
    return tuple(sorted({grid_of(width, height) for width in sides for height in sides}))


def _counts_by_use() -> list[int]:
    """Cell counts of reachable grids, those that most grids share first."""
    grids = Counter(grid.cells for grid in reachable())
    return sorted(grids, key=lambda cells: (-grids[cells], -cells))


@lru_cache(maxsize=4)
def grids_for(kind: Kind) -> tuple[Grid, ...]:
    """The grids that one kind of image is trained on.

    Every cell count costs the start of training a CUDA graph. So documents have the counts that most grids share, and
    scenes the others and the commonest again: the vision tower sees every reachable grid, in one or in both.
    """
    if kind in ("document", "scene"):
        counts = _counts_by_use()
        wanted = counts[:_DOCUMENT_COUNTS]
        if kind == "scene":
            wanted = counts[_DOCUMENT_COUNTS:] + counts[:_SHARED_COUNTS]
        return tuple(grid for grid in reachable() if grid.cells in set(wanted))
    if kind == "line":
        return tuple(Grid(rows, columns) for rows, step in ((1, 1), (2, 2), (3, 2)) for columns in range(8, 21, step))
    return tuple(Grid(rows, columns) for rows in (4, 5, 6) for columns in (8, 12, 14))


def choose_grid(kind: Kind, rng: random.Random) -> Grid:
    """A grid for the next images: half the time every grid alike, half the time as sizes in pixels come about."""
    grids = grids_for(kind)
    if kind in ("document", "scene") and rng.random() < 0.5:
        for _ in range(8):
            grid = grid_of(rng.randint(LEAST_SIDE, MOST_SIDE), rng.randint(LEAST_SIDE, MOST_SIDE))
            if grid in grids:
                return grid
    return rng.choice(grids)


def native_size(grid: Grid, rng: random.Random) -> tuple[int, int]:
    """A (width, height) in pixels that becomes this grid: near it, or larger where the rule shrinks to it."""
    for _ in range(40):
        scale = rng.uniform(1.0, 1.5) if rng.random() < 0.4 else 1.0
        width = round(grid.width * scale + rng.uniform(-16, 16))
        height = round(grid.height * scale + rng.uniform(-16, 16))
        if grid_of(width, height) == grid:
            return width, height
    return grid.width, grid.height
