"""Which pieces of a page the model is asked to read, in reading order: cut where nothing is printed.

The rule:

- The page is turned upright where its print tells that it lies on a side or on its head (``data/turning.py``), and
  falls into columns of lines (``data/layout.py``).
- A piece holds as many lines as the model reads at once and its budget allows at full scale. A line wider than the
  widest piece is cut between words.
- Where there is no gap to cut at (a photograph, a page that is askew), overlapping tiles are taken instead.
- Each piece is set on a canvas of whole cells with a margin of its own ground, so that the model neither stretches it
  nor sees its letters touch an edge.
- A page without print is seen whole, and so is one that is no larger than a piece.
- A huge page is cut by a mask of its ink of which each cell stands for ``shrink`` x ``shrink`` pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zellige.data.ink import Mask, runs
from zellige.data.layout import Box, by_column, part_of
from zellige.data.tiling import Budget, Tile, spread
from zellige.data.turning import Way, turned, unturned, ways_up

#: Least space around a piece's ink in pixels, and how much of the page's own space is taken for it.
MARGIN, OWN_MARGIN = 12, 6
#: The widest piece, in sides of the largest square that the model sees at full scale.
WIDEST = 10 / 7
#: Tiles without a gap to cut at overlap by their side divided by this.
OVERLAP = 4
#: In line heights: the least gap between words and between the cells of a row.
WORD_GAP, CELL_GAP = 0.2, 2.0
#: What is taller than the largest square divided by this is no line: there was no gap to cut at.
TALLEST = 2


@dataclass(frozen=True)
class Page:
    """The size in pixels of an upright image, and the mask of its ink in cells of ``shrink`` pixels."""

    width: int
    height: int
    mask: Mask
    shrink: int = 1


@dataclass(frozen=True)
class Limit:
    """The largest piece: its ``pixels`` and lines (None: as many as there is room for), in cells of ``cell`` pixels.

    Boxes are in pixels of the mask, of which each stands for ``shrink`` pixels of the page.
    """

    cell: int
    pixels: int
    lines: int | None
    shrink: int

    @property
    def square(self) -> int:
        """Side of the largest square of whole cells."""
        return max(self.cell, math.isqrt(self.pixels) // self.cell * self.cell)

    @property
    def longest(self) -> int:
        """The longer side of a piece at most, in whole cells."""
        return max(self.cell, int(WIDEST * math.isqrt(self.pixels)) // self.cell * self.cell)

    def fits(self, width: int, height: int) -> bool:
        """Whether the model sees so many pixels at full scale, in a shape that it is used to."""
        return width * height <= self.pixels and max(width, height) <= self.longest


def plan_pieces(page: Page, budget: Budget, *, side: int | None = None, lines: int | None = None) -> tuple[Tile, ...]:
    """The pieces of a page in reading order, or one overview where it is seen whole.

    All have the same ``turn``; where print alone does not tell which way the page is up, the pieces of one way follow
    those of another. ``lines`` is how many lines the model reads at once, None for as many as it can see; a piece is no
    larger than a square of ``side`` pixels (None: the model's own). Raises ValueError for a page whose shape the model
    cannot see.
    """
    budget.resized(page.width, page.height)
    limit = Limit(budget.cell, budget.max_pixels if side is None else side * side, lines, page.shrink)
    return tuple(tile for way in ways_up(page.mask) for tile in _tiles(page, way, limit, budget))


def _tiles(page: Page, way: Way, limit: Limit, budget: Budget) -> Iterator[Tile]:
    """The pieces of a page that is turned in one way."""
    few = limit.lines is None or len(way.layout.lines) <= limit.lines
    if not way.layout.lines or (few and limit.fits(page.width, page.height)):
        yield Tile(0, 0, page.width, page.height, 1.0, overview=True, turn=way.turn)
        return
    height, width = way.mask.shape
    for column in way.layout.columns:
        for box in _packed(way.mask, column, way.layout.unit, limit):
            yield _tile(unturned(box, way.turn, width, height), way.turn, page, budget)


def cut_piece(pixels: NDArray[np.uint8], tile: Tile, budget: Budget) -> NDArray[np.uint8]:
    """A piece of an (H, W, 3) page as ``on_canvas`` shows it."""
    return on_canvas(pixels[tile.y : tile.y + tile.height, tile.x : tile.x + tile.width], tile.turn, budget)


def on_canvas(piece: NDArray[np.uint8], turn: int, budget: Budget) -> NDArray[np.uint8]:
    """A piece, turned, in the middle of a canvas of whole cells that has the commonest colour of the piece."""
    piece = turned(piece, turn)
    width, height = _canvas(piece.shape[1], piece.shape[0], budget.cell)
    canvas = np.empty((height, width, 3), np.uint8)
    canvas[:] = np.median(piece.reshape(-1, 3), axis=0).astype(np.uint8)
    x, y = (width - piece.shape[1]) // 2, (height - piece.shape[0]) // 2
    canvas[y : y + piece.shape[0], x : x + piece.shape[1]] = piece
    return canvas


def _canvas(width: int, height: int, cell: int) -> tuple[int, int]:
    """Whole cells with room for a margin, and three cells across at least: nothing narrower is a line of text."""
    margin = 2 * (MARGIN - OWN_MARGIN)
    return max(3, -(-(width + margin) // cell)) * cell, -(-(height + margin) // cell) * cell


def _tile(box: Box, turn: int, page: Page, budget: Budget) -> Tile:
    """The box in pixels, with a margin of the page around it, as far as the page goes."""
    across, down = OWN_MARGIN, OWN_MARGIN // 2
    if turn in (90, 270):
        across, down = down, across
    left, top = max(0, box.left * page.shrink - across), max(0, box.top * page.shrink - down)
    right = min(page.width, box.right * page.shrink + across)
    bottom = min(page.height, box.bottom * page.shrink + down)
    seen = (right - left, bottom - top) if turn in (0, 180) else (bottom - top, right - left)
    size = _canvas(*seen, budget.cell)
    resized = budget.resized(*size)
    scale = math.sqrt(resized[0] * resized[1] / (size[0] * size[1]))
    return Tile(left, top, right - left, bottom - top, scale, turn=turn)


def _packed(mask: Mask, column: Sequence[Box], unit: float, limit: Limit) -> Iterator[Box]:
    """The lines of one column as pieces: several together, one alone, or parts of one."""
    piece, held = None, 0
    for line in column:
        grown = line if piece is None else piece.around(line)
        if piece is not None and (held == limit.lines or not _fits(grown, limit)):
            yield piece
            piece, held, grown = None, 0, line
        if limit.lines == 1 and len(apart := _at_gutters(mask, line, unit)) > 1:
            yield from (part for box in apart for part in _parts(mask, box, unit, limit))
        elif _fits(line, limit):
            piece, held = grown, held + 1
        elif line.height * limit.shrink > limit.square / TALLEST:
            yield from _overlapping(line, limit)
        else:
            yield from _parts(mask, line, unit, limit)
    if piece is not None:
        yield piece


def _at_gutters(mask: Mask, line: Box, unit: float) -> list[Box]:
    """A line cut where it is empty for long: a model of single lines takes that for their end."""
    inked = by_column(part_of(mask, line))
    inside = [(a, b) for a, b in runs(~inked) if b - a >= CELL_GAP * unit and a > 0 and b < line.width]
    edges = [0, *(edge for gap in inside for edge in gap), line.width]
    return [
        Box(line.left + a, line.top, line.left + b, line.bottom) for a, b in zip(edges[::2], edges[1::2], strict=True)
    ]


def _fits(box: Box, limit: Limit) -> bool:
    """Whether a box and its margins make a piece."""
    width, height = box.width * limit.shrink + 2 * OWN_MARGIN, box.height * limit.shrink + OWN_MARGIN
    return limit.fits(*_canvas(width, height, limit.cell))


def _parts(mask: Mask, line: Box, unit: float, limit: Limit) -> Iterator[Box]:
    """A line, cut where it is too wide at the widest gap in the second half of the room; parts share top and bottom."""
    blank = runs(~by_column(part_of(mask, line)))
    room = _room(line.height, limit)
    start = 0
    while line.width - start > room:
        gaps = [g for g in blank if g[1] - g[0] >= WORD_GAP * unit and start + room / 2 < g[0] <= start + room]
        cut = max(gaps, key=lambda g: (g[1] - g[0], g[0]), default=None)
        a, b = cut or (start + room, start + room - min(int(2 * unit), room // OVERLAP))
        yield Box(line.left + start, line.top, line.left + a, line.bottom)
        start = max(b, start + 1)
    yield Box(line.left + start, line.top, line.right, line.bottom)


def _room(height: int, limit: Limit) -> int:
    """The widest box of this height that fits."""
    tall = _canvas(1, height * limit.shrink + OWN_MARGIN, limit.cell)[1]
    across = min(limit.longest, max(limit.pixels // tall // limit.cell * limit.cell, 3 * limit.cell))
    return (across - 2 * MARGIN) // limit.shrink


def _overlapping(box: Box, limit: Limit) -> Iterator[Box]:
    """Tiles that overlap, row by row, where there is nothing to cut at."""
    square = max(limit.cell, limit.square - 2 * MARGIN) // limit.shrink
    lefts, width = spread(box.width, square, 1, square // OVERLAP)
    tops, height = spread(box.height, square, 1, square // OVERLAP)
    for top in tops:
        for left in lefts:
            yield Box(box.left + left, box.top + top, box.left + left + width, box.top + top + height)
