"""Vote: which of the answers that an image's views gave is the item's. Pure; the order of the views does not matter.

A view that is wrong with probability e = 1 - confidence speaks for its answer with -log e, so that one view that is
sure outweighs several that half guess. What views add up to is the evidence that they are not all wrong at once:

- Tiles that overlap have looked at one and the same print and err alike: of those that agree the surest one counts.
  The overview sees other pixels (shrunk ones) and tiles elsewhere see other print: they count too.
- An answer with which another one begins or ends, given about as surely, is that one cut off by a tile's edge ("20" of
  "2041"): it speaks for the longer answer and cannot win itself.
- Equal evidence: the answer of more views, then the surer view, the overview, the higher and the more left tile.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from zellige.data.tiling import Tile

#: Of a shorter answer's confidence, what a longer one that holds it needs to be taken for the whole of it.
AS_SURE = 0.8
#: No view is surer than this: float32 log-probabilities end here.
LEAST_ERROR = 1e-6


@dataclass(frozen=True)
class Vote:
    """What one view answered; ``confidence`` is 0 to 1, None where the engine does not say it."""

    tile: Tile
    text: str
    confidence: float | None

    @property
    def evidence(self) -> float:
        """-log of the probability that the answer is wrong; 0 where nothing is known of it."""
        return -math.log(max(LEAST_ERROR, 1.0 - (self.confidence or 0.0)))


def elect(votes: Sequence[Vote]) -> int:
    """The place in ``votes``, of which there is one at least, of the surest vote for the best supported answer."""
    said: dict[str, list[Vote]] = defaultdict(list)
    for vote in votes:
        said[same(vote.text)].append(vote)
    cut = {text: {other for other in said if _cut_off(text, other, said)} for text in said}
    whole = [text for text in said if not cut[text]]
    support = {
        text: _support([vote for other in said if other == text or text in cut[other] for vote in said[other]])
        for text in whole
    }
    rank = {i: (support[same(vote.text)], vote) for i, vote in enumerate(votes) if same(vote.text) in support}
    return min(rank, key=lambda i: (_descending(rank[i][0]), _standing(rank[i][1])))


def same(text: str) -> str:
    """Equal for answers that differ only in case, spacing or a full stop at the end."""
    return " ".join(text.casefold().split()).rstrip(".")


def _cut_off(text: str, other: str, said: dict[str, list[Vote]]) -> bool:
    part = len(text) < len(other) and (other.startswith(text) or other.endswith(text))
    return part and _surest(said[other]) >= AS_SURE * _surest(said[text])


def _surest(votes: Sequence[Vote]) -> float:
    return max(vote.confidence or 0.0 for vote in votes)


def _support(votes: Sequence[Vote]) -> tuple[float, int]:
    """(evidence, number) of the views that count: the surest one first, then those that overlap none that counts."""
    counted: list[Vote] = []
    for vote in sorted(votes, key=_standing):
        if not any(_overlap(vote.tile, other.tile) for other in counted):
            counted.append(vote)
    # Rounded, so that equal evidence stays equal in whatever order it was added up.
    return round(math.fsum(vote.evidence for vote in counted), 9), len(counted)


def _overlap(one: Tile, other: Tile) -> bool:
    """Whether two tiles show some of the same pixels; the overview shows shrunk ones."""
    if one.overview or other.overview:
        return False
    across = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
    down = min(one.y + one.height, other.y + other.height) - max(one.y, other.y)
    return across > 0 and down > 0


def _descending(support: tuple[float, int]) -> tuple[float, int]:
    return -support[0], -support[1]


def _standing(vote: Vote) -> tuple[float, bool, int, int, str]:
    """Sorts the surer vote first, then by place; two views of one place differ in what they say."""
    return -vote.evidence, not vote.tile.overview, vote.tile.y, vote.tile.x, vote.text
