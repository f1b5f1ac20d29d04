"""Which pieces of a page the model is asked to read, in reading order: cut where nothing is printed.

The rule:

- A page falls into lines at rows without ink. Neighbouring lines that leave a common gutter free are columns, each
  read as a whole before the next, where their lines do not stand beside each other or fill their column like prose;
  else they are the rows of a table or form, read across. Columns are cut again in the same way.
- A piece holds as many lines as the model reads at once and its budget allows at full scale. A line wider than the
  widest piece is cut between words.
- Where there is no gap to cut at (a photograph, a page that was turned), overlapping tiles are taken instead.
- Each piece is set on a canvas of whole cells with a margin of its own ground, so that the model neither stretches it
  nor sees its letters touch an edge.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zellige.data.ink import Mask, ink_of, runs
from zellige.data.tiling import Budget, Tile, spread

#: Least space around a piece's ink in pixels, and how much of the page's own space is taken for it.
MARGIN, OWN_MARGIN = 12, 6
#: The widest piece, in sides of the largest square that the model sees at full scale.
WIDEST = 10 / 7
#: Tiles without a gap to cut at overlap by their side divided by this.
OVERLAP = 4
#: In line heights: the narrowest gutter, the narrowest column of prose, the least gap between words and between the
#: cells of a row.
GUTTER, COLUMN, WORD_GAP, CELL_GAP = 1.2, 8.0, 0.2, 2.0
#: What is taller than the largest square divided by this is no line: there was no gap to cut at.
TALLEST = 2
#: Share of lines that stand beside one of the next column in a table; how far, and from how many lines on, the middle
#: line of prose fills its column.
BESIDE, FILLED, PROSE_LINES = 0.7, 0.85, 5
#: The fewest lines of a column whose lines do not stand beside those of its neighbour.
LOOSE_LINES = 3


@dataclass(frozen=True)
class Box:
    """Pixels from ``left``, ``top`` up to but not including ``right``, ``bottom``."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def width(self) -> int:
        return self.right - self.left

    @property
    def height(self) -> int:
        return self.bottom - self.top

    def around(self, other: Box) -> Box:
        return Box(
            min(self.left, other.left),
            min(self.top, other.top),
            max(self.right, other.right),
            max(self.bottom, other.bottom),
        )


@dataclass(frozen=True)
class Limit:
    """The largest piece: its ``pixels`` and lines (None: as many as there is room for), in cells of ``cell`` pixels."""

    cell: int
    pixels: int
    lines: int | None

    @property
    def square(self) -> int:
        """Side of the largest square of whole cells."""
        return max(self.cell, math.isqrt(self.pixels) // self.cell * self.cell)

    @property
    def longest(self) -> int:
        """The longer side of a piece at most, in whole cells."""
        return max(self.cell, int(WIDEST * math.isqrt(self.pixels)) // self.cell * self.cell)


def plan_pieces(
    pixels: NDArray[np.uint8], budget: Budget, *, side: int | None = None, lines: int | None = None
) -> tuple[Tile, ...]:
    """The pieces of an (H, W, 3) page in reading order; () where it is to be seen whole.

    ``lines`` is how many lines the model reads at once, None for as many as it can see; a piece is no larger than a
    square of ``side`` pixels (None: the model's own). A page without ink is seen whole, and so is one that is no larger
    than a piece. Raises ValueError for a page whose shape the model cannot see.
    """
    height, width = pixels.shape[:2]
    budget.resized(width, height)
    limit = Limit(budget.cell, budget.max_pixels if side is None else side * side, lines)
    fits = width * height <= limit.pixels and max(width, height) <= limit.longest
    if fits and lines is None:
        return ()
    mask = ink_of(pixels)
    page = _tight(mask, Box(0, 0, width, height))
    if page is None:
        return ()
    unit = _line_height(mask)
    columns = list(_columns(mask, page, unit))
    if fits and sum(map(len, columns)) <= (lines or 1):
        return ()
    boxes = [box for column in columns for box in _packed(mask, column, unit, limit)]
    return tuple(_tile(box, budget, width, height) for box in boxes)


def cut_piece(pixels: NDArray[np.uint8], tile: Tile, budget: Budget) -> NDArray[np.uint8]:
    """A piece's pixels in the middle of a canvas of whole cells; the canvas has the commonest colour of the piece."""
    piece = pixels[tile.y : tile.y + tile.height, tile.x : tile.x + tile.width]
    width, height = _canvas(tile.width, tile.height, budget.cell)
    canvas = np.empty((height, width, 3), np.uint8)
    canvas[:] = np.median(piece.reshape(-1, 3), axis=0).astype(np.uint8)
    x, y = (width - tile.width) // 2, (height - tile.height) // 2
    canvas[y : y + tile.height, x : x + tile.width] = piece
    return canvas


def _canvas(width: int, height: int, cell: int) -> tuple[int, int]:
    """Whole cells with room for a margin, and three cells across at least: nothing narrower is a line of text."""
    margin = 2 * (MARGIN - OWN_MARGIN)
    return max(3, -(-(width + margin) // cell)) * cell, -(-(height + margin) // cell) * cell


def _tile(box: Box, budget: Budget, width: int, height: int) -> Tile:
    """The box with a margin of the page around it, as far as the page goes."""
    left, top = max(0, box.left - OWN_MARGIN), max(0, box.top - OWN_MARGIN // 2)
    right, bottom = min(width, box.right + OWN_MARGIN), min(height, box.bottom + OWN_MARGIN // 2)
    size = _canvas(right - left, bottom - top, budget.cell)
    seen = budget.resized(*size)
    scale = math.sqrt(seen[0] * seen[1] / (size[0] * size[1]))
    return Tile(left, top, right - left, bottom - top, scale)


def _part(mask: Mask, box: Box) -> Mask:
    return mask[box.top : box.bottom, box.left : box.right]


def _by_row(mask: Mask) -> Mask:
    """Which rows bear ink."""
    return np.asarray(mask.any(1), np.bool_)


def _by_column(mask: Mask) -> Mask:
    """Which columns bear ink."""
    return np.asarray(mask.any(0), np.bool_)


def _tight(mask: Mask, box: Box) -> Box | None:
    """The box less its empty sides; None where nothing is printed in it."""
    part = _part(mask, box)
    rows, columns = np.flatnonzero(_by_row(part)), np.flatnonzero(_by_column(part))
    if not rows.size:
        return None
    left, top = box.left + int(columns[0]), box.top + int(rows[0])
    return Box(left, top, box.left + int(columns[-1]) + 1, box.top + int(rows[-1]) + 1)


def _line_height(mask: Mask, slab: int = 64) -> float:
    """Height in pixels of the ink of a usual line: the middle one over narrow slabs, where few lines run together."""
    heights = [
        end - start
        for x in range(0, mask.shape[1], slab)
        for start, end in runs(_by_row(mask[:, x : x + slab]))
        if end - start >= 4
    ]
    # By weight, so that the dots of an i and commas do not count as lines.
    ordered = np.sort(np.array(heights or [12]))
    weights = np.cumsum(ordered)
    return float(ordered[np.searchsorted(weights, weights[-1] / 2)])


def _columns(mask: Mask, box: Box, unit: float) -> Iterator[list[Box]]:
    """The lines of each column of a box, columns in reading order."""
    for group in _groups(mask, _strips(mask, box, unit), unit):
        sides = _sides(mask, group, unit)
        if sides is None:
            yield [tight for strip in group if (tight := _tight(mask, strip))]
        else:
            for side in sides:
                if tight := _tight(mask, side):
                    yield from _columns(mask, tight, unit)


def _strips(mask: Mask, box: Box, unit: float) -> list[Box]:
    """Rows of ink between rows without; what is much lower than a line (dots, accents) belongs to its neighbour."""
    found = runs(_by_row(_part(mask, box)))
    strips: list[tuple[int, int]] = []
    for start, end in found:
        near = strips and start - strips[-1][1] < 0.35 * unit
        if near and (end - start < 0.35 * unit or strips[-1][1] - strips[-1][0] < 0.35 * unit):
            strips[-1] = (strips[-1][0], end)
        else:
            strips.append((start, end))
    return [Box(box.left, box.top + a, box.right, box.top + b) for a, b in strips]


def _groups(mask: Mask, strips: Sequence[Box], unit: float) -> Iterator[list[Box]]:
    """Neighbouring strips that leave a common gutter free, or none of which has one."""
    group: list[Box] = []
    inked: Mask | None = None
    for strip in strips:
        own = _by_column(_part(mask, strip))
        together = own if inked is None else inked | own
        lost = inked is not None and not _gutters(together, unit) and (_gutters(inked, unit) or _gutters(own, unit))
        if lost:
            yield group
            group, together = [], own
        group.append(strip)
        inked = together
    if group:
        yield group


def _gutters(inked: Mask, unit: float) -> list[tuple[int, int]]:
    """Runs of columns without ink, wide enough for a gutter, with ink on both sides."""
    blank = runs(~inked)
    return [(a, b) for a, b in blank if b - a >= GUTTER * unit and a > 0 and b < len(inked) and inked[:a].any()]


def _sides(mask: Mask, group: Sequence[Box], unit: float) -> list[Box] | None:
    """The columns of a group, or None where it is one column or a table."""
    whole = Box(group[0].left, group[0].top, group[0].right, group[-1].bottom)
    gutters = _gutters(_by_column(_part(mask, whole)), unit)
    gutters = [g for g in gutters if g[1] < whole.width]
    if not gutters:
        return None
    edges = [0, *((a + b) // 2 for a, b in gutters), whole.width]
    sides = [Box(whole.left + a, whole.top, whole.left + b, whole.bottom) for a, b in itertools.pairwise(edges)]
    lines = [[t for s in _strips(mask, side, unit) if (t := _tight(mask, s))] for side in sides]
    if all(_is_prose(column, unit) for column in lines):
        return sides
    # A line or two next to many are a heading at the side, or what is left of rows.
    loose = all(len(column) >= LOOSE_LINES for column in lines)
    apart = loose and not any(_beside(one, other, unit) for one, other in itertools.pairwise(lines))
    return sides if apart else None


def _beside(one: Sequence[Box], other: Sequence[Box], unit: float) -> bool:
    """Whether the lines of two columns stand beside each other, as in a table."""
    fewer, more = sorted((one, other), key=len)
    middles = [(b.top + b.bottom) / 2 for b in more]
    met = sum(any(abs((b.top + b.bottom) / 2 - middle) < 0.5 * unit for middle in middles) for b in fewer)
    return met >= BESIDE * len(fewer)


def _is_prose(column: Sequence[Box], unit: float) -> bool:
    widths = sorted(line.width for line in column)
    filled = widths[len(widths) // 2] >= FILLED * widths[-1]
    return len(column) >= PROSE_LINES and widths[-1] >= COLUMN * unit and filled


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
        elif line.height > limit.square / TALLEST:
            yield from _overlapping(line, limit)
        else:
            yield from _parts(mask, line, unit, limit)
    if piece is not None:
        yield piece


def _at_gutters(mask: Mask, line: Box, unit: float) -> list[Box]:
    """A line cut where it is empty for long: a model of single lines takes that for their end."""
    inked = _by_column(_part(mask, line))
    inside = [(a, b) for a, b in runs(~inked) if b - a >= CELL_GAP * unit and a > 0 and b < line.width]
    edges = [0, *(edge for gap in inside for edge in gap), line.width]
    return [
        Box(line.left + a, line.top, line.left + b, line.bottom) for a, b in zip(edges[::2], edges[1::2], strict=True)
    ]


def _fits(box: Box, limit: Limit) -> bool:
    """Whether the model sees a piece at full scale, in a shape that it is used to."""
    width, height = _canvas(box.width + 2 * OWN_MARGIN, box.height + OWN_MARGIN, limit.cell)
    return width * height <= limit.pixels and max(width, height) <= limit.longest


def _parts(mask: Mask, line: Box, unit: float, limit: Limit) -> Iterator[Box]:
    """A line, cut where it is too wide at the widest gap in the second half of the room; parts share top and bottom."""
    blank = runs(~_by_column(_part(mask, line)))
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
    tall = _canvas(1, height + OWN_MARGIN, limit.cell)[1]
    across = min(limit.longest, max(limit.pixels // tall // limit.cell * limit.cell, 3 * limit.cell))
    return across - 2 * MARGIN


def _overlapping(box: Box, limit: Limit) -> Iterator[Box]:
    """Tiles that overlap, row by row, where there is nothing to cut at."""
    square = max(limit.cell, limit.square - 2 * MARGIN)
    lefts, width = spread(box.width, square, 1, square // OVERLAP)
    tops, height = spread(box.height, square, 1, square // OVERLAP)
    for top in tops:
        for left in lefts:
            yield Box(box.left + left, box.top + top, box.left + left + width, box.top + top + height)
