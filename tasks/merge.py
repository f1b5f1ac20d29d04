"""Merge: from the answers about an image's views to the item's answer. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from zellige.data.schema import ErrorKind, TileAnswer
from zellige.data.tiling import Tile
from zellige.engine.api import Usage
from zellige.tasks.answer import Outcome

#: How a model says that what was asked is not on this view; such an answer loses against any other.
ABSTENTIONS = frozenset({"not shown", "not in the image", "no text", "nothing"})
#: Of a shorter answer's confidence, what a longer one that holds it needs to be taken for the whole of it.
AS_SURE = 0.8


@dataclass(frozen=True)
class Merged:
    """The answer columns of one row; on a failed one ``answer`` is what it was refused for.

    ``error`` without ``error_kind`` is a warning. Tokens and ``engine_s`` are summed over the views, ``attempts`` is
    the most that one view took, ``mean_logprob`` and ``finish_reason`` are those of the view whose answer was taken.
    """

    answer: str | None
    finish_reason: str | None
    mean_logprob: float | None
    tiles: tuple[TileAnswer, ...]
    usage: Usage
    engine_s: float
    attempts: int
    error_kind: ErrorKind | None
    error: str | None


def merge_captions(tiles: Sequence[Tile], outcomes: Sequence[Outcome]) -> Merged:
    """The overview's caption; a tile that failed is a warning, an overview that failed fails the row."""
    overview = _overview(tiles)
    return _merged(tiles, outcomes, chosen=overview, failed=None if outcomes[overview].ok else overview)


def merge_answers(tiles: Sequence[Tile], outcomes: Sequence[Outcome]) -> Merged:
    """The answer with the most confidence, summed over the views that agree; abstaining loses against any answer.

    A view that failed is a warning where another one answered. Where all others abstain, what was asked may be on the
    view that failed: the row fails rather than say that it is not shown.
    """
    good = [i for i, outcome in enumerate(outcomes) if outcome.ok]
    answering = [i for i in good if not abstains(_text(outcomes[i]))]
    broken = [i for i in range(len(outcomes)) if i not in good]
    if answering:
        return _merged(tiles, outcomes, chosen=_best_supported(outcomes, answering), failed=None)
    if broken:
        return _merged(tiles, outcomes, chosen=broken[0], failed=broken[0])
    return _merged(tiles, outcomes, chosen=_overview(tiles), failed=None)


def abstains(text: str) -> bool:
    """Whether the answer says that what was asked is not there to see."""
    return _same(text) in ABSTENTIONS


def confidence(outcome: Outcome) -> float | None:
    """exp(mean log-probability) of the answer, 0 to 1; None where there is none or the engine did not say."""
    if outcome.answer is None or outcome.answer.mean_logprob is None:
        return None
    return math.exp(outcome.answer.mean_logprob)


def _best_supported(outcomes: Sequence[Outcome], voters: Sequence[int]) -> int:
    """The most confident voter among those of the answer with the largest sum; the earlier one on a tie.

    An answer with which another one begins or ends, given about as surely, is that one cut off by a tile's edge ("20"
    of "2041"): it speaks for the longer answer and cannot win itself.
    """
    said: dict[str, list[float]] = defaultdict(list)
    for i in voters:
        said[_same(_text(outcomes[i]))].append(confidence(outcomes[i]) or 0.0)

    def cut_off(text: str, other: str) -> bool:
        part = len(text) < len(other) and (other.startswith(text) or other.endswith(text))
        return part and max(said[other]) >= AS_SURE * max(said[text])

    support = {text: sum(sure) for text, sure in said.items() if not any(cut_off(text, other) for other in said)}
    for text in said.keys() - support.keys():
        for longer in support:
            support[longer] += sum(said[text]) if cut_off(text, longer) else 0.0
    candidates = [i for i in voters if _same(_text(outcomes[i])) in support]
    return max(candidates, key=lambda i: (support[_same(_text(outcomes[i]))], confidence(outcomes[i]) or 0.0))


def _merged(tiles: Sequence[Tile], outcomes: Sequence[Outcome], chosen: int, failed: int | None) -> Merged:
    outcome = outcomes[chosen]
    if failed is None:
        kind, error = None, _warning(outcomes)
    else:
        kind, error = outcomes[failed].error_kind, outcomes[failed].error
        if len(outcomes) > 1:
            error = f"{_place(tiles[failed])}: {error}"
    return Merged(
        answer=None if outcome.answer is None else outcome.answer.text,
        finish_reason=None if outcome.answer is None else outcome.answer.finish_reason,
        mean_logprob=None if outcome.answer is None else outcome.answer.mean_logprob,
        tiles=tuple(map(_tile_answer, tiles, outcomes)) if len(tiles) > 1 else (),
        usage=Usage(
            sum(o.usage.image_tokens for o in outcomes),
            sum(o.usage.prompt_tokens for o in outcomes),
            sum(o.usage.completion_tokens for o in outcomes),
        ),
        engine_s=sum(o.engine_s for o in outcomes),
        attempts=max(o.attempts for o in outcomes),
        error_kind=kind,
        error=error,
    )


def _warning(outcomes: Sequence[Outcome]) -> str | None:
    kinds = sorted({o.error_kind.value for o in outcomes if o.error_kind is not None})
    broken = sum(not o.ok for o in outcomes)
    return f"{broken} of {len(outcomes)} views not answered: {', '.join(kinds)}" if broken else None


def _tile_answer(tile: Tile, outcome: Outcome) -> TileAnswer:
    text = _text(outcome) if outcome.ok else None
    return TileAnswer(tile.x, tile.y, tile.width, tile.height, tile.scale, text, confidence(outcome))


def _overview(tiles: Sequence[Tile]) -> int:
    return next((i for i, tile in enumerate(tiles) if tile.overview), 0)


def _place(tile: Tile) -> str:
    return "the overview" if tile.overview else f"the tile at {tile.x},{tile.y}"


def _text(outcome: Outcome) -> str:
    return "" if outcome.answer is None else outcome.answer.text


def _same(text: str) -> str:
    """Equal for answers that differ only in case, spacing or a full stop at the end."""
    return " ".join(text.casefold().split()).rstrip(".")
