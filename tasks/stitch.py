"""Stitch: from the texts of a page's pieces to the text of the page, without doubling what two pieces saw. Pure."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from zellige.data.reading import OWN_MARGIN
from zellige.data.tiling import Tile

#: Pieces reach over their neighbours' edges by their margins; only what is more than that is seen twice.
SLACK_PX = 2 * OWN_MARGIN
#: How much alike two readings of one line are, and how many lines at an edge may be cut so that they read otherwise.
ALIKE, CUT_LINES = 0.75, 2
#: Weight of the lines, squared, by which a run differs from what the height of an overlap promises; each of its lines
#: speaks for it by 1 at most. In a list of lines that are all alike the longest run is not what was seen twice.
SURPRISE = 0.5
#: The fewest characters that two halves of a line have to share where they overlap.
SHARED = 3


@dataclass(frozen=True)
class Piece:
    """A box of the page and the text that was read there."""

    tile: Tile
    text: str


def stitched(pieces: Sequence[Piece]) -> str:
    """The text of all pieces, which come in reading order; pieces without text leave no trace.

    Pieces of one line are joined by a blank. Where pieces overlap, they are joined at the run of lines that both have
    and the overlap has room for (below each other), or at the longest run of characters of both (beside each other).
    """
    written: list[str] = []
    above: Tile | None = None
    count = height = 0
    for row in _rows([Piece(piece.tile.as_read(), piece.text) for piece in pieces]):
        lines = _across(row)
        first = row[0].tile
        if above is not None and first.y > above.y and first.x < above.x + above.width:
            overlap = above.y + above.height - first.y
        else:
            overlap = 0
        if overlap > SLACK_PX:
            # Of the lines that an overlap has room for, its edges may cut one.
            seen_twice = overlap * (count + len(lines)) / (height + first.height) - 0.5
            written = _below(written, lines, seen_twice)
        else:
            written = written + lines
        above, count, height = first, len(lines), first.height
    return "\n".join(written).strip("\n")


def _rows(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Neighbouring pieces with the same top and bottom, from left to right."""
    rows: list[list[Piece]] = []
    for piece in pieces:
        last = rows[-1][-1].tile if rows else None
        if last and (last.y, last.height) == (piece.tile.y, piece.tile.height) and last.x < piece.tile.x:
            rows[-1].append(piece)
        else:
            rows.append([piece])
    return rows


def _across(row: Sequence[Piece]) -> list[str]:
    """The lines of pieces that stand beside each other."""
    lines = _lines(row[0].text)
    for before, piece in itertools.pairwise(row):
        more = _lines(piece.text)
        if before.tile.x + before.tile.width - piece.tile.x > SLACK_PX:
            lines = _beside(lines, more)
        elif len(lines) == len(more) == 1:
            lines = [f"{lines[0]} {more[0]}"]
        else:
            lines = lines + more
    return lines


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


def _below(upper: list[str], lower: list[str], seen_twice: float) -> list[str]:
    """Two lists of lines joined at a run of lines that the end of one shares with the start of the other.

    Of several the best is taken: long, well alike, and with the lines that were cut at the edges about as many as were
    ``seen_twice`` by height.
    """
    best, joined = -math.inf, upper + lower
    alike = functools.cache(_alike)
    cuts = sorted(itertools.product(range(CUT_LINES + 1), repeat=2), key=sum)
    for length in range(min(len(upper), len(lower)), 0, -1):
        for cut_above, cut_below in cuts:
            end = len(upper) - cut_above
            surprise = SURPRISE * (length + cut_above + cut_below - seen_twice) ** 2
            if length - surprise <= best or length > min(end, len(lower) - cut_below):
                continue
            shared = list(zip(upper[end - length : end], lower[cut_below : cut_below + length], strict=True))
            if all(alike(*pair) >= 0 for pair in shared):
                worth = sum(alike(*pair) for pair in shared) - surprise
                if worth > best:
                    best, joined = worth, upper[:end] + lower[cut_below + length :]
    return joined


def _alike(one: str, other: str) -> float:
    """How much two readings tell that they are of one line: up to 1; -inf where they are not."""
    ratio = SequenceMatcher(None, one, other, autojunk=False).ratio()
    return ((ratio - ALIKE) / (1 - ALIKE)) ** 4 if ratio >= ALIKE else -math.inf


def _beside(left: list[str], right: list[str]) -> list[str]:
    """The lines of two overlapping boxes; halves of one line are joined, and keep their order."""
    joined: list[str] = []
    a = b = 0
    for i, j in [*_halves(left, right), (len(left), len(right))]:
        rest, more = left[a:i], right[b:j]
        if len(rest) == len(more):
            joined += [f"{one} {other}" for one, other in zip(rest, more, strict=True)]
        else:
            joined += rest + more
        if i < len(left):
            match = _shared(left[i], right[j])
            joined.append(left[i][: match[0]] + right[j][match[1] :])
        a, b = i + 1, j + 1
    return joined


def _halves(left: list[str], right: list[str]) -> list[tuple[int, int]]:
    """Pairs of lines, in order, that share the most characters together."""
    best: list[list[tuple[int, list[tuple[int, int]]]]] = [[(0, [])] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i, one in enumerate(left):
        for j, other in enumerate(right):
            options = [best[i][j + 1], best[i + 1][j]]
            size = _shared(one, other)[2]
            if size >= SHARED:
                before = best[i][j]
                options.append((before[0] + size, [*before[1], (i, j)]))
            best[i + 1][j + 1] = max(options, key=lambda option: option[0])
    return best[-1][-1][1]


def _shared(left: str, right: str) -> tuple[int, int, int]:
    """Where the longest run of characters that both have starts in each, and its length."""
    match = SequenceMatcher(None, left, right, autojunk=False).find_longest_match()
    return match.a, match.b, match.size
