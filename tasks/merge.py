"""Merge: from the answers about an image's views to the item's answer. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from zellige.data.schema import ErrorKind, TileAnswer
from zellige.data.tiling import Tile
from zellige.engine.api import Usage
from zellige.tasks.answer import Outcome
from zellige.tasks.stitch import Piece, stitched
from zellige.tasks.vote import Vote, elect, same

#: How a model says that what was asked is not on this view; such an answer loses against any other.
ABSTENTIONS = frozenset({"not shown", "not in the image", "no text", "nothing"})
#: How a model says that a piece of a page bears no print.
NO_TEXT = frozenset({"no text", ""})


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


def merge_captions(tiles: Sequence[Tile], outcomes: Sequence[Outcome], summary: Outcome | None = None) -> Merged:
    """The summary where there is one, else the overview's caption.

    A tile that failed is a warning and so is a summary that failed; an overview that failed fails the row.
    """
    overview = _overview(tiles)
    merged = _merged(tiles, outcomes, chosen=overview, failed=None if outcomes[overview].ok else overview)
    if summary is None:
        return merged
    merged = replace(
        merged,
        usage=_sum((merged.usage, summary.usage)),
        engine_s=merged.engine_s + summary.engine_s,
        attempts=max(merged.attempts, summary.attempts),
    )
    if summary.answer is None or not summary.ok:
        lost = f"the tiles' captions were not summarised: {summary.error_kind}: {summary.error}"
        return replace(merged, error="; ".join(filter(None, (merged.error, lost))))
    answer, rung = summary.answer, summary.rung and f"the summary was {summary.rung}"
    return replace(
        merged,
        answer=answer.text,
        finish_reason=answer.finish_reason,
        mean_logprob=answer.mean_logprob,
        error="; ".join(filter(None, (merged.error, rung))) or None,
    )


def overview_of(tiles: Sequence[Tile], outcomes: Sequence[Outcome]) -> int | None:
    """The view that a summary is asked for: the overview of a tiled image whose caption and some tile's are good.

    Only a model that follows instructions is asked; one that knows fixed wordings keeps the overview's caption.
    """
    overview = _overview(tiles)
    good = [i for i, outcome in enumerate(outcomes) if outcome.ok and i != overview]
    return overview if good and outcomes[overview].ok else None


def summary_prompt(prompt: str, tiles: Sequence[Tile], outcomes: Sequence[Outcome]) -> str:
    """What is said with the overview: what was asked, and the captions of its tiles with their places."""
    whole = tiles[_overview(tiles)]
    told = [
        f"- {_where(tile, whole)}: {' '.join(_text(outcome).split())}"
        for tile, outcome in zip(tiles, outcomes, strict=True)
        if outcome.ok and not tile.overview
    ]
    return "\n".join(
        (
            "Parts of this image were looked at closely. What was seen in each:",
            *told,
            "Now look at the whole image and use these notes where they fit it. Do not mention the parts.",
            prompt,
        )
    )


def merge_reading(tiles: Sequence[Tile], outcomes: Sequence[Outcome]) -> Merged:
    """The text of all pieces in reading order; empty where nothing is printed.

    A piece that failed fails the row, which keeps what was read elsewhere: a page with a hole would look whole. The
    log-probability is that of all tokens; the reason to finish is the last piece's, or that of the one that failed.
    A page that was read turned says so in a warning. Of one that was read in several ways, because its print did not
    tell which way it is up, the surest reading is taken and the others are paid for only.
    """
    read, said = max(_by_turn(tiles, outcomes), key=lambda way: _legible(way[1]))
    merged = _merged_reading(read, said)
    turn = read[0].turn
    told = f"the page was read turned by {turn} degrees clockwise" if turn else None
    return replace(
        merged,
        usage=_sum([o.usage for o in outcomes]),
        engine_s=sum(o.engine_s for o in outcomes),
        attempts=max(o.attempts for o in outcomes),
        error="; ".join(filter(None, (merged.error, told))) or None,
    )


def _by_turn(tiles: Sequence[Tile], outcomes: Sequence[Outcome]) -> list[tuple[list[Tile], list[Outcome]]]:
    """The views of each way in which a page was shown, in the order of the ways."""
    return [
        ([tile for tile, _ in pairs], [outcome for _, outcome in pairs])
        for turn in dict.fromkeys(tile.turn for tile in tiles)
        if (pairs := [pair for pair in zip(tiles, outcomes, strict=True) if pair[0].turn == turn])
    ]


def _legible(outcomes: Sequence[Outcome]) -> tuple[bool, bool, float]:
    """Sorts the readings of one page: whole ones last, then those that found text, then by how sure they are."""
    texts = [outcome for outcome in outcomes if same(_text(outcome)) not in NO_TEXT]
    sure = _mean_logprob(texts)
    return all(outcome.ok for outcome in outcomes), bool(texts), -math.inf if sure is None else sure


def _merged_reading(tiles: Sequence[Tile], outcomes: Sequence[Outcome]) -> Merged:
    failed = next((i for i, outcome in enumerate(outcomes) if not outcome.ok), None)
    merged = _merged(tiles, outcomes, chosen=len(outcomes) - 1 if failed is None else failed, failed=failed)
    read = [(tile, outcome) for tile, outcome in zip(tiles, outcomes, strict=True) if outcome.answer is not None]
    pieces = [Piece(tile, _text(outcome)) for tile, outcome in read if same(_text(outcome)) not in NO_TEXT]
    if len(read) == len(outcomes) or pieces:
        merged = replace(merged, answer=pieces[0].text.strip() if len(outcomes) == 1 and pieces else stitched(pieces))
    return replace(merged, mean_logprob=_mean_logprob([outcome for _, outcome in read]))


def merge_answers(tiles: Sequence[Tile], outcomes: Sequence[Outcome]) -> Merged:
    """The answer that the views support best (``tasks/vote.py``); abstaining loses against any answer.

    A tile that abstains says nothing of what other tiles show. A view that failed is a warning where another one
    answered. Where all others abstain, what was asked may be on the view that failed: the row fails rather than say
    that it is not shown. Of a page that was shown as it lies and turned, the surer answer counts; where neither way
    answers, or the engine does not say how sure it is, the turned one does. ``attempts`` are those of both ways.
    """
    ways = [(read[0].turn, _elected(read, said)) for read, said in _by_turn(tiles, outcomes)]
    turn, merged = max(reversed(ways), key=lambda way: _sureness(way[1]))
    told = f"the page was asked about turned by {turn} degrees clockwise" if turn else None
    return replace(
        merged,
        usage=_sum([way.usage for _, way in ways]),
        engine_s=sum(way.engine_s for _, way in ways),
        attempts=sum(way.attempts for _, way in ways),
        error="; ".join(filter(None, (merged.error, told))) or None,
    )


def _sureness(merged: Merged) -> tuple[bool, float]:
    """Sorts the ways in which a page was asked about, the best last: those with an answer, by how sure it is."""
    answers = merged.error_kind is None and not abstains(merged.answer or "")
    return answers, merged.mean_logprob if answers and merged.mean_logprob is not None else -math.inf


def _elected(tiles: Sequence[Tile], outcomes: Sequence[Outcome]) -> Merged:
    order = sorted(range(len(tiles)), key=lambda i: (not tiles[i].overview, tiles[i].y, tiles[i].x))
    broken = [i for i in order if not outcomes[i].ok]
    answering = [i for i in order if outcomes[i].ok and not abstains(_text(outcomes[i]))]
    if answering:
        votes = [Vote(tiles[i], _text(outcomes[i]), confidence(outcomes[i])) for i in answering]
        return _merged(tiles, outcomes, chosen=answering[elect(votes)], failed=None)
    if broken:
        return _merged(tiles, outcomes, chosen=broken[0], failed=broken[0])
    return _merged(tiles, outcomes, chosen=_overview(tiles), failed=None)


def abstains(text: str) -> bool:
    """Whether the answer says that what was asked is not there to see."""
    return same(text) in ABSTENTIONS


def confidence(outcome: Outcome) -> float | None:
    """exp(mean log-probability) of the answer, 0 to 1; None where there is none or the engine did not say."""
    if outcome.answer is None or outcome.answer.mean_logprob is None:
        return None
    return math.exp(outcome.answer.mean_logprob)


def _merged(tiles: Sequence[Tile], outcomes: Sequence[Outcome], chosen: int, failed: int | None) -> Merged:
    outcome = outcomes[chosen]
    if failed is None:
        kind, error = None, "; ".join(filter(None, (_warning(outcomes), _asked_again(outcomes)))) or None
    else:
        kind, error = outcomes[failed].error_kind, outcomes[failed].error
        if len(outcomes) > 1:
            error = f"{_place(tiles[failed])}: {error}"
    return Merged(
        answer=None if outcome.answer is None else outcome.answer.text,
        finish_reason=None if outcome.answer is None else outcome.answer.finish_reason,
        mean_logprob=None if outcome.answer is None else outcome.answer.mean_logprob,
        tiles=() if len(tiles) == 1 and tiles[0].overview else tuple(map(_tile_answer, tiles, outcomes)),
        usage=_sum([o.usage for o in outcomes]),
        engine_s=sum(o.engine_s for o in outcomes),
        attempts=max(o.attempts for o in outcomes),
        error_kind=kind,
        error=error,
    )


def _sum(usages: Sequence[Usage]) -> Usage:
    return Usage(
        sum(u.image_tokens for u in usages),
        sum(u.prompt_tokens for u in usages),
        sum(u.completion_tokens for u in usages),
    )


def _mean_logprob(outcomes: Sequence[Outcome]) -> float | None:
    """Over the tokens of all answers; None where the engine did not say."""
    answers = [o.answer for o in outcomes if o.answer is not None]
    tokens = sum(a.usage.completion_tokens for a in answers)
    known = [a.mean_logprob * a.usage.completion_tokens for a in answers if a.mean_logprob is not None]
    return sum(known) / tokens if tokens and len(known) == len(answers) else None


def _warning(outcomes: Sequence[Outcome]) -> str | None:
    kinds = sorted({o.error_kind.value for o in outcomes if o.error_kind is not None})
    broken = sum(not o.ok for o in outcomes)
    return f"{broken} of {len(outcomes)} views not answered: {', '.join(kinds)}" if broken else None


def _asked_again(outcomes: Sequence[Outcome]) -> str | None:
    """How good answers were asked for that are not those to the first try."""
    rungs = [o.rung for o in outcomes if o.ok and o.rung is not None]
    if not rungs:
        return None
    views = f"{len(rungs)} of {len(outcomes)} views were asked" if len(outcomes) > 1 else "asked"
    return f"{views} again, {' or '.join(dict.fromkeys(rungs))}"


def _tile_answer(tile: Tile, outcome: Outcome) -> TileAnswer:
    text = _text(outcome) if outcome.ok else None
    return TileAnswer(tile.x, tile.y, tile.width, tile.height, tile.scale, text, confidence(outcome))


def _overview(tiles: Sequence[Tile]) -> int:
    return next((i for i, tile in enumerate(tiles) if tile.overview), 0)


def _where(tile: Tile, whole: Tile) -> str:
    """The place of a tile's middle in ninths of the image."""
    across = min(2, 3 * (2 * tile.x + tile.width) // (2 * whole.width))
    down = min(2, 3 * (2 * tile.y + tile.height) // (2 * whole.height))
    return f"{('top', 'middle', 'bottom')[down]} {('left', 'centre', 'right')[across]}"


def _place(tile: Tile) -> str:
    return "the overview" if tile.overview else f"the tile at {tile.x},{tile.y}"


def _text(outcome: Outcome) -> str:
    return "" if outcome.answer is None else outcome.answer.text
