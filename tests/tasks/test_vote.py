"""Whatever order the views come in, the same answer is elected; a sure one beats any number of abstentions."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zellige.data.schema import ErrorKind
from zellige.data.tiling import plan_tiles
from zellige.engine.api import Answer, Usage, VisionBudget
from zellige.tasks.answer import Outcome
from zellige.tasks.merge import merge_answers
from zellige.tasks.vote import Vote, elect

BUDGET = VisionBudget(patch=16, merge=2, min_pixels=32 * 32 * 4, max_pixels=448 * 448)
TILES = plan_tiles(1600, 1000, BUDGET)
#: Few, and some the beginning or the end of others, so that views agree, cut each other off and tie.
TEXTS = ("20", "2041", "41", "Rivers", "Olga Rivers", "olga rivers.", "not shown", "Not shown.")


def outcome(text: str, confidence: float | None) -> Outcome:
    usage = Usage(196, 210, 4)
    logprob = None if confidence is None else math.log(confidence)
    return Outcome(Answer(text, "stop", usage, mean_logprob=logprob), usage=usage)


def broken() -> Outcome:
    return Outcome(None, ErrorKind.ENGINE_FAILED, "the engine failed")


#: Confidences from a short list, so that equal evidence is common.
CONFIDENCES = st.sampled_from((None, 0.3, 0.5, 0.9, 0.99, 1.0)) | st.floats(0.01, 1.0)
OUTCOMES = st.lists(
    st.builds(outcome, st.sampled_from(TEXTS), CONFIDENCES) | st.builds(broken),
    min_size=len(TILES),
    max_size=len(TILES),
)


@settings(deadline=None)
@given(outcomes=OUTCOMES, seed=st.integers(0, 1 << 32))
def test_the_order_of_the_views_does_not_matter(outcomes: Sequence[Outcome], seed: int) -> None:
    pairs = list(zip(TILES, outcomes, strict=True))
    merged = merge_answers(TILES, outcomes)
    random.Random(seed).shuffle(pairs)
    again = merge_answers([tile for tile, _ in pairs], [said for _, said in pairs])
    for column in ("answer", "mean_logprob", "finish_reason", "error_kind", "error", "usage"):
        assert getattr(again, column) == getattr(merged, column), column
    assert sorted(again.tiles, key=repr) == sorted(merged.tiles, key=repr)


@settings(deadline=None)
@given(where=st.integers(0, len(TILES) - 1), sure=st.floats(0.5, 1.0), unsure=st.floats(0.01, 1.0))
def test_one_answer_beats_any_number_of_abstentions(where: int, sure: float, unsure: float) -> None:
    outcomes = [outcome("not shown", unsure) for _ in TILES]
    outcomes[where] = outcome("4711", sure)
    assert merge_answers(TILES, outcomes).answer == "4711"


@settings(deadline=None)
@given(
    confidences=st.lists(st.floats(0.01, 0.98), min_size=len(TILES), max_size=len(TILES)), more=st.floats(0.001, 0.01)
)
def test_more_confidence_never_costs_an_answer_its_election(confidences: Sequence[float], more: float) -> None:
    votes = [Vote(tile, TEXTS[i % 3 * 2], sure) for i, (tile, sure) in enumerate(zip(TILES, confidences, strict=True))]
    won = elect(votes)
    surer = [*votes]
    surer[won] = Vote(votes[won].tile, votes[won].text, confidences[won] + more)
    assert surer[elect(surer)].text == votes[won].text


@pytest.mark.parametrize("confidence", [None, 0.4, 1.0])
def test_equal_evidence_elects_the_overviews_answer_and_then_the_first_tiles_in_reading_order(
    confidence: float | None,
) -> None:
    overview, *tiles = TILES
    apart = [tiles[0], tiles[-1]]
    votes = [Vote(apart[1], "a", confidence), Vote(apart[0], "b", confidence), Vote(overview, "c", confidence)]
    assert votes[elect(votes)].text == "c"
    for pair in (votes[:2], votes[1::-1]):
        assert pair[elect(pair)].text == "b"
