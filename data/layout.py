"""Where the lines of a page are, in reading order: columns and lines, cut where nothing is printed. Pure numpy.

A page falls into lines at rows without ink. Neighbouring lines that leave a common gutter free are columns, each read
as a whole before the next, where their lines do not stand beside each other or fill their column like prose; else they
are the rows of a table or form, read across. Columns are cut again in the same way.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from zellige.data.ink import Mask, runs

#: In line heights: the narrowest gutter, and the narrowest column of prose.
GUTTER, COLUMN = 1.2, 8.0
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
class Layout:
    """The lines of each column of a page, in reading order; ``unit`` is the height of a usual line in pixels."""

    unit: float
    columns: tuple[tuple[Box, ...], ...]

    @property
    def lines(self) -> list[Box]:
        return [line for column in self.columns for line in column]


def layout_of(mask: Mask) -> Layout:
    """The lines of a page that is upright; none where nothing is printed."""
    page = tight(mask, Box(0, 0, mask.shape[1], mask.shape[0]))
    if page is None:
        return Layout(0.0, ())
    unit = line_height(mask)
    return Layout(unit, tuple(tuple(column) for column in _columns(mask, page, unit)))


def part_of(mask: Mask, box: Box) -> Mask:
    """The mask within a box; not a copy."""
    return mask[box.top : box.bottom, box.left : box.right]


def by_row(mask: Mask) -> Mask:
    """Which rows bear ink."""
    return np.asarray(mask.any(1), np.bool_)


def by_column(mask: Mask) -> Mask:
    """Which columns bear ink."""
    return np.asarray(mask.any(0), np.bool_)


def tight(mask: Mask, box: Box) -> Box | None:
    """The box less its empty sides; None where nothing is printed in it."""
    part = part_of(mask, box)
    rows, columns = np.flatnonzero(by_row(part)), np.flatnonzero(by_column(part))
    if not rows.size:
        return None
    left, top = box.left + int(columns[0]), box.top + int(rows[0])
    return Box(left, top, box.left + int(columns[-1]) + 1, box.top + int(rows[-1]) + 1)


def line_height(mask: Mask, slab: int = 64) -> float:
    """Height in pixels of the ink of a usual line: the middle one over narrow slabs, where few lines run together."""
    heights = [
        end - start
        for x in range(0, mask.shape[1], slab)
        for start, end in runs(by_row(mask[:, x : x + slab]))
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
            yield [line for strip in group if (line := tight(mask, strip))]
        else:
            for side in sides:
                if inner := tight(mask, side):
                    yield from _columns(mask, inner, unit)


def _strips(mask: Mask, box: Box, unit: float) -> list[Box]:
    """Rows of ink between rows without; what is much lower than a line (dots, accents) belongs to its neighbour."""
    found = runs(by_row(part_of(mask, box)))
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
        own = by_column(part_of(mask, strip))
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
    gutters = _gutters(by_column(part_of(mask, whole)), unit)
    gutters = [g for g in gutters if g[1] < whole.width]
    if not gutters:
        return None
    edges = [0, *((a + b) // 2 for a, b in gutters), whole.width]
    sides = [Box(whole.left + a, whole.top, whole.left + b, whole.bottom) for a, b in itertools.pairwise(edges)]
    lines = [[t for s in _strips(mask, side, unit) if (t := tight(mask, s))] for side in sides]
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
