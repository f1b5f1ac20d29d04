"""Which way up a page was laid on the scanner, from its print alone: upright, on a side, or on its head. Pure numpy.

- Lines are long and low, and farther from each other than their letters are. Print in columns of figures or in one
  width for all letters makes long rows across its lines too, but looser ones.
- Latin, Greek and Cyrillic letters reach above their body (b, d, h, k, l, t, capitals, the dot of i) several times as
  often as below it (g, p, q, y). The count of both is a vote on which edge is the top.

Lines of figures or capitals say nothing, nor does print without a body between its heights (Devanagari, Chinese). Where
the vote is not clear a page of horizontal lines is left as it is. One of vertical lines may lie on either side, or be
set in columns from top to bottom: it has to be read in all three ways.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from zellige.data.ink import Mask, runs
from zellige.data.layout import Box, Layout, by_column, layout_of, part_of

#: On a page on its side lines are so many heights long at least, and so many times as likely to be lines as what lies
#: across them.
LONG, LIKELIER = 3.0, 2.0
#: How clear the vote has to be, in standard deviations of votes that are cast at random: on a side, where upright is no
#: likelier than upside down; and on its head, which is rare.
CLEAR_ON_SIDE, CLEAR_ON_HEAD = 2.0, 4.0
#: The lowest line that shows its letters, in pixels, and the least share of it that is their body.
LEAST_PX, LEAST_BODY = 8, 0.35
#: A row of the body has so much of the ink of a full one; what reaches over it does so by this share of its height.
BODY_INK, REACH = 0.5, 0.15
#: Lines are looked at in pieces of so many heights, so that a slope does not matter.
PIECE = 8

Kind = TypeVar("Kind", bound=np.generic)


@dataclass(frozen=True)
class Way:
    """A page ``turn`` degrees clockwise (0, 90, 180 or 270) from how it came: the mask of its ink, and its lines."""

    turn: int
    mask: Mask
    layout: Layout


def ways_up(mask: Mask) -> list[Way]:
    """The ways in which a page may be upright: one, or three of which reading has to tell the right one."""
    as_is = Way(0, mask, layout_of(mask))
    on_side = _way(mask, 90)
    if _length(on_side) >= LONG and _likely(on_side) >= LIKELIER * _likely(as_is):
        votes = _votes(on_side)
        if abs(votes) < CLEAR_ON_SIDE:
            return [as_is, on_side, _way(mask, 270)]
        return [on_side if votes > 0 else _way(mask, 270)]
    return [_way(mask, 180) if _votes(as_is) <= -CLEAR_ON_HEAD else as_is]


def clear_turn(mask: Mask) -> int:
    """By how many degrees clockwise a page is to be turned; 0 where it is upright or its print does not tell."""
    ways = ways_up(mask)
    return ways[0].turn if len(ways) == 1 else 0


def turned(pixels: NDArray[Kind], degrees: int) -> NDArray[Kind]:
    """An array (height, width, ...) turned clockwise by a multiple of 90 degrees; contiguous."""
    return np.ascontiguousarray(np.rot90(pixels, -degrees // 90))


def unturned(box: Box, turn: int, width: int, height: int) -> Box:
    """Where a box of a page that was turned, and is ``width`` x ``height`` now, lies on the page as it came."""
    if turn == 90:
        return Box(box.top, width - box.right, box.bottom, width - box.left)
    if turn == 180:
        return Box(width - box.right, height - box.bottom, width - box.left, height - box.top)
    if turn == 270:
        return Box(height - box.bottom, box.left, height - box.top, box.right)
    return box


def _way(mask: Mask, turn: int) -> Way:
    mask = turned(mask, turn)
    return Way(turn, mask, layout_of(mask))


def _length(way: Way) -> float:
    """How long the lines are in their heights: the middle one by its ink."""
    mask, lines = way.mask, way.layout.lines
    if not lines:
        return 0.0
    ink = np.array([np.count_nonzero(part_of(mask, line)) for line in lines])
    lengths = np.array([line.width / line.height for line in lines])
    order = np.argsort(lengths)
    weights = np.cumsum(ink[order])
    return float(lengths[order][np.searchsorted(weights, weights[-1] / 2)])


def _likely(way: Way) -> float:
    """How much what was found looks like lines: long ones, and farther from each other than their letters are."""
    pairs = [pair for column in way.layout.columns for pair in itertools.pairwise(column)]
    between = [below.top - above.bottom for above, below in pairs if below.top >= above.bottom]
    blank = [runs(~by_column(part_of(way.mask, line))) for line in way.layout.lines]
    within = [end - start for gaps in blank for start, end in gaps]
    if not between or not within:
        return _length(way)
    apart, near = float(np.median(between)), float(np.median(within))
    return _length(way) * (apart / (apart + near)) ** 2


def _votes(way: Way) -> float:
    """Letters that reach up less those that reach down, in standard deviations; positive where the top is the top."""
    above = below = 0
    for line in way.layout.lines:
        if line.height < LEAST_PX:
            continue
        part = part_of(way.mask, line)
        count = max(1, round(line.width / (PIECE * line.height)))
        for piece in np.array_split(part, count, axis=1):
            up, down = _reaching(piece)
            above, below = above + up, below + down
    return (above - below) / math.sqrt(max(1, above + below))


def _reaching(piece: Mask) -> tuple[int, int]:
    """How many letters of a piece of a line reach above their body, and how many below it."""
    ink = np.count_nonzero(piece, axis=1)
    body = np.flatnonzero(ink >= max(1.0, BODY_INK * float(np.percentile(ink, 90))))
    if not body.size:
        return 0, 0
    top, bottom = int(body[0]), int(body[-1]) + 1
    if bottom - top < LEAST_BODY * len(piece):
        return 0, 0
    reach = max(2, round(REACH * (bottom - top)))
    above, below = piece[: max(0, top - reach + 1)], piece[bottom + reach - 1 :]
    return len(runs(by_column(above))), len(runs(by_column(below)))
