"""What the answers about an image's views become."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from zellige.data.schema import ErrorKind
from zellige.data.tiling import Tile
from zellige.engine.api import Answer, Usage
from zellige.tasks.answer import Outcome
from zellige.tasks.merge import (
    Merged,
    abstains,
    merge_answers,
    merge_captions,
    merge_reading,
    overview_of,
    summary_prompt,
)

TILES = (Tile(0, 0, 200, 100, 0.5, overview=True), Tile(0, 0, 120, 100, 1.0), Tile(80, 0, 120, 100, 1.0))


def said(text: str, confidence: float | None = 0.9, attempts: int = 1) -> Outcome:
    logprob = None if confidence is None else math.log(confidence)
    usage = Usage(4, 9, 3)
    return Outcome(Answer(text, "stop", usage, mean_logprob=logprob), None, None, usage, 0.5, attempts)


def refused(text: str | None, kind: ErrorKind) -> Outcome:
    answer = None if text is None else Answer(text, "length", Usage(4, 9, 3))
    return Outcome(answer, kind, "refused", Usage(4, 9, 3), 0.5)


TURNED = (*TILES[:1], Tile(0, 0, 200, 100, 0.5, overview=True, turn=90))
AS_TURNED = "the page was asked about turned by 90 degrees clockwise"


@pytest.mark.parametrize(
    ("lying", "upright", "answer", "told"),
    [
        (said("not shown", 0.99), said("42", 0.3), "42", AS_TURNED),
        (said("17", 0.3), said("not shown", 0.99), "17", None),
        (said("17", 0.3), said("42", 0.9), "42", AS_TURNED),
        (said("17", 0.9), said("42", 0.3), "17", None),
        (said("17", None), said("42", None), "42", AS_TURNED),
        (refused("17 17", ErrorKind.REPETITION), said("not shown", 0.3), "not shown", AS_TURNED),
        (said("17", 0.3), refused("42 42", ErrorKind.REPETITION), "17", None),
    ],
)
def test_of_a_page_that_lies_on_its_side_the_surer_way_counts(
    lying: Outcome, upright: Outcome, answer: str, told: str | None
) -> None:
    merged = merge_answers(TURNED, [lying, upright])
    assert (merged.answer, merged.error, merged.error_kind, merged.tiles) == (answer, told, None, ())
    assert (merged.usage, merged.engine_s, merged.attempts) == (Usage(8, 18, 6), 1.0, 2)


def test_what_an_illegible_page_does_not_show_may_be_on_the_turned_one_that_failed() -> None:
    merged = merge_answers(TURNED, [said("not shown", 0.99), refused("42 42", ErrorKind.REPETITION)])
    assert (merged.error_kind, merged.answer, merged.attempts) == (ErrorKind.REPETITION, "42 42", 2)


def test_turned_page_that_is_tiled_is_voted_on_by_itself() -> None:
    tiles = (*TILES, *(replace(tile, turn=270) for tile in TILES))
    outcomes = [said("1"), said("1"), said("1"), said("not shown"), said("42", 0.95), said("7", 0.5)]
    merged = merge_answers(tiles, outcomes)
    assert merged.answer == "42"
    assert [tile.answer for tile in merged.tiles] == ["not shown", "42", "7"]
    assert merged.attempts == 2


def test_answers_that_were_asked_for_again_are_told_with_their_rungs() -> None:
    again = replace(said("42"), rung="sampled warmer", attempts=2)
    smaller = replace(said("42"), rung="shown at half the pixels", attempts=3)
    assert merge_answers(TILES[:1], [again]).error == "asked again, sampled warmer"
    merged = merge_answers(TILES, [again, said("42"), smaller])
    assert merged.error == "2 of 3 views were asked again, sampled warmer or shown at half the pixels"
    captions = merge_captions(TILES, [said("a")] * 3, again)
    assert captions.error == "the summary was sampled warmer"


def test_whole_image_keeps_its_answer_and_has_no_tiles() -> None:
    merged = merge_answers(TILES[:1], [said("Total: 12")])
    assert merged == Merged("Total: 12", "stop", math.log(0.9), (), Usage(4, 9, 3), 0.5, 1, None, None)


def test_caption_is_the_overviews_and_tiles_keep_theirs() -> None:
    merged = merge_captions(TILES, [said("a poster", 0.5), said("a cat", 0.9), said("a dog", 0.8, attempts=2)])
    assert (merged.answer, merged.error_kind, merged.error) == ("a poster", None, None)
    assert [(t.x, t.width, t.scale, t.answer) for t in merged.tiles] == [
        (0, 200, 0.5, "a poster"),
        (0, 120, 1.0, "a cat"),
        (80, 120, 1.0, "a dog"),
    ]
    assert [t.confidence for t in merged.tiles] == pytest.approx([0.5, 0.9, 0.8])
    assert (merged.usage, merged.engine_s, merged.attempts) == (Usage(12, 27, 9), 1.5, 2)


def test_caption_of_a_broken_tile_is_a_warning_and_no_tile_answer() -> None:
    merged = merge_captions(TILES, [said("a poster"), refused("a a a", ErrorKind.REPETITION), said("a dog")])
    assert (merged.answer, merged.error_kind) == ("a poster", None)
    assert merged.error == "1 of 3 views not answered: repetition"
    assert merged.tiles[1].answer is None


def test_caption_of_a_broken_overview_fails_and_keeps_what_it_was_refused_for() -> None:
    merged = merge_captions(TILES, [refused("a post", ErrorKind.LENGTH), said("a cat"), said("a dog")])
    assert (merged.answer, merged.error_kind) == ("a post", ErrorKind.LENGTH)
    assert merged.error == "the overview: refused"


@pytest.mark.parametrize(
    "nothing", ["not shown", "Not shown.", " NOT  SHOWN", "not in the image", "no text", "nothing"]
)
def test_abstention_loses_against_any_answer(nothing: str) -> None:
    assert abstains(nothing)
    assert merge_answers(TILES, [said(nothing, 0.99), said("42", 0.1), said(nothing, 0.99)]).answer == "42"


def test_all_abstaining_is_the_overviews_answer() -> None:
    merged = merge_answers(TILES, [said("Not shown"), said("not shown"), said("not shown")])
    assert (merged.answer, merged.error_kind) == ("Not shown", None)


def test_most_confident_answer_wins() -> None:
    merged = merge_answers(TILES, [said("41", 0.5), said("42", 0.8), said("43", 0.7)])
    assert merged.answer == "42"
    assert merged.mean_logprob == pytest.approx(math.log(0.8))


def test_equal_answers_of_the_overview_and_a_tile_add_up() -> None:
    assert merge_answers(TILES, [said("Acme  Ltd", 0.5), said("42", 0.7), said("acme ltd.", 0.6)]).answer == "acme ltd."


def test_tiles_that_overlap_and_agree_have_looked_once() -> None:
    """What two overlapping tiles take for the answer is one print misunderstood, however often it is seen."""
    twice = [said("balance", 0.968), said("balance", 0.995)]
    overlapping = (Tile(1134, 0, 448, 448, 1.0), Tile(1417, 0, 448, 448, 1.0))
    elsewhere = (Tile(1134, 0, 448, 448, 1.0), Tile(2000, 0, 448, 448, 1.0))
    right = (Tile(0, 0, 448, 448, 1.0), said("Priroawhe", 0.9995))
    assert merge_answers((*overlapping, right[0]), [*twice, right[1]]).answer == "Priroawhe"
    assert merge_answers((*elsewhere, right[0]), [*twice, right[1]]).answer == "balance"


def test_an_answer_cut_off_by_a_tiles_edge_speaks_for_the_whole_one() -> None:
    assert merge_answers(TILES, [said("20", 0.95), said("2041", 0.9), said("20", 0.95)]).answer == "2041"
    assert (
        merge_answers(TILES, [said("Rivers", 0.9), said("Olga Rivers", 0.8), said("7", 0.95)]).answer == "Olga Rivers"
    )


def test_a_longer_answer_that_is_a_guess_does_not_swallow_a_sure_one() -> None:
    assert merge_answers(TILES, [said("2041 north", 0.3), said("2041", 0.95), said("not shown")]).answer == "2041"


def test_answer_without_confidence_wins_against_abstention_only() -> None:
    assert merge_answers(TILES, [said("not shown"), said("42", None), said("not shown")]).answer == "42"
    assert merge_answers(TILES, [said("not shown"), said("42", None), said("43", 0.1)]).answer == "43"


def test_broken_view_is_a_warning_where_another_answered() -> None:
    merged = merge_answers(TILES, [said("not shown"), said("42"), refused(None, ErrorKind.ENGINE_FAILED)])
    assert (merged.answer, merged.error_kind) == ("42", None)
    assert merged.error == "1 of 3 views not answered: engine_failed"


def test_broken_view_fails_the_row_where_all_others_abstain() -> None:
    merged = merge_answers(TILES, [said("not shown"), said("not shown"), refused("4", ErrorKind.LENGTH)])
    assert (merged.answer, merged.error_kind) == ("4", ErrorKind.LENGTH)
    assert merged.error == "the tile at 80,0: refused"


def test_all_broken_fails_by_the_first() -> None:
    kinds = (ErrorKind.NONFINITE, ErrorKind.LENGTH, ErrorKind.LENGTH)
    merged = merge_answers(TILES, [refused(None, kind) for kind in kinds])
    assert (merged.answer, merged.error_kind, merged.finish_reason) == (None, ErrorKind.NONFINITE, None)


def test_summary_is_the_caption_and_costs_what_it_costs() -> None:
    outcomes = [said("a poster"), said("a cat"), said("a dog")]
    merged = merge_captions(TILES, outcomes, said("a poster of a cat and a dog", 0.7, attempts=2))
    assert (merged.answer, merged.error) == ("a poster of a cat and a dog", None)
    assert merged.mean_logprob == pytest.approx(math.log(0.7))
    assert (merged.usage, merged.engine_s, merged.attempts) == (Usage(16, 36, 12), 2.0, 2)
    assert [t.answer for t in merged.tiles] == ["a poster", "a cat", "a dog"]


def test_summary_that_failed_is_a_warning_and_the_overviews_caption_stands() -> None:
    outcomes = [said("a poster"), said("a cat"), said("a dog")]
    merged = merge_captions(TILES, outcomes, refused("a a a", ErrorKind.REPETITION))
    assert (merged.answer, merged.error_kind) == ("a poster", None)
    assert merged.error == "the tiles' captions were not summarised: repetition: refused"
    assert merged.usage == Usage(16, 36, 12)


def test_summary_is_asked_of_the_overview_where_it_and_a_tile_were_captioned() -> None:
    bad = refused(None, ErrorKind.ENGINE_FAILED)
    assert overview_of(TILES, [said("a"), bad, said("b")]) == 0
    assert overview_of(TILES, [said("a"), bad, bad]) is None
    assert overview_of(TILES, [bad, said("a"), said("b")]) is None
    assert overview_of(TILES[:1], [said("a")]) is None


def test_summary_is_asked_for_with_the_prompt_and_the_tiles_captions() -> None:
    bad = refused("a a", ErrorKind.REPETITION)
    prompt = summary_prompt("Say it in French.", TILES, [said("a poster"), said("a cat\non a mat"), bad])
    assert prompt.endswith("\nSay it in French.")
    assert "- middle left: a cat on a mat\n" in prompt
    assert "a poster" not in prompt
    assert "a a" not in prompt


def test_without_confidence_the_answer_of_most_views_wins() -> None:
    tiles = (*TILES[:2], Tile(300, 0, 120, 100, 1.0))
    assert merge_answers(tiles, [said("41", None), said("42", None), said("42", None)]).answer == "42"


LINES = (Tile(0, 0, 200, 30, 1.0), Tile(0, 40, 90, 30, 1.0), Tile(110, 40, 90, 30, 1.0))


def test_text_of_pieces_is_stitched_and_pieces_keep_theirs() -> None:
    merged = merge_reading(LINES, [said("Bill", 0.9), said("Total:", 0.8), said("7.10", 0.8)])
    assert (merged.answer, merged.error_kind) == ("Bill\nTotal: 7.10", None)
    assert [t.answer for t in merged.tiles] == ["Bill", "Total:", "7.10"]
    assert merged.mean_logprob == pytest.approx((math.log(0.9) + 2 * math.log(0.8)) / 3)


def test_one_piece_of_a_larger_page_is_told_as_a_tile() -> None:
    merged = merge_reading(LINES[:1], [said("Bill")])
    assert (merged.answer, len(merged.tiles)) == ("Bill", 1)
    assert merge_reading(TILES[:1], [said("a\n\nb")]).answer == "a\n\nb"


@pytest.mark.parametrize("nothing", ["", "  ", "no text", "No text."])
def test_page_without_print_reads_as_nothing(nothing: str) -> None:
    merged = merge_reading(TILES[:1], [said(nothing)])
    assert (merged.answer, merged.error_kind) == ("", None)
    assert merge_reading(LINES, [said(nothing), said("a"), said(nothing)]).answer == "a"


def test_piece_that_failed_fails_the_page_which_keeps_the_rest() -> None:
    merged = merge_reading(LINES, [said("Bill"), refused(None, ErrorKind.ENGINE_FAILED), said("7.10")])
    assert (merged.answer, merged.error_kind) == ("Bill\n7.10", ErrorKind.ENGINE_FAILED)
    assert merged.error == "the tile at 0,40: refused"
    assert merge_reading(TILES[:1], [refused(None, ErrorKind.NONFINITE)]).answer is None


def on_side(turn: int) -> tuple[Tile, ...]:
    """Two lines of a page of 100 x 200 pixels that is to be turned clockwise by ``turn``."""
    if turn in (0, 180):
        lines = (Tile(0, 0, 100, 30, 1.0, turn=turn), Tile(0, 40, 100, 30, 1.0, turn=turn))
    else:
        lines = (Tile(0, 0, 30, 200, 1.0, turn=turn), Tile(40, 0, 30, 200, 1.0, turn=turn))
    return lines if turn in (0, 90) else lines[::-1]


def test_a_page_read_turned_says_so_and_is_no_failure() -> None:
    merged = merge_reading(on_side(270), [said("Bill"), said("7.10")])
    assert (merged.answer, merged.error_kind) == ("Bill\n7.10", None)
    assert merged.error == "the page was read turned by 270 degrees clockwise"
    assert [(tile.x, tile.answer) for tile in merged.tiles] == [(40, "Bill"), (0, "7.10")]


def test_of_several_ways_to_read_a_page_the_surest_is_taken_and_all_are_paid_for() -> None:
    tiles = (*on_side(0), *on_side(90), *on_side(270))
    outcomes = [
        said("i:", 0.4),
        said("", 0.99),
        said("4711", 0.9),
        said("0815", 0.95),
        said("11L7", 0.6),
        said("5180", 0.7),
    ]
    merged = merge_reading(tiles, outcomes)
    assert merged.answer == "4711\n0815"
    assert merged.error == "the page was read turned by 90 degrees clockwise"
    assert [tile.answer for tile in merged.tiles] == ["4711", "0815"]
    assert merged.usage == Usage(24, 54, 18)
    assert merged.mean_logprob == pytest.approx((math.log(0.9) + math.log(0.95)) / 2)


def test_a_way_to_read_a_page_that_failed_or_found_nothing_loses_against_one_that_did_not() -> None:
    tiles = (*on_side(0), *on_side(90), *on_side(270))
    failed = refused(None, ErrorKind.REPETITION)
    merged = merge_reading(tiles, [said("", 0.99)] * 2 + [said("4711", 0.99), failed] + [said("5180", 0.3)] * 2)
    assert (merged.answer, merged.error_kind) == ("5180\n5180", None)
    merged = merge_reading(tiles, [said("", 0.5)] * 6)
    assert (merged.answer, merged.error_kind, merged.error) == ("", None, None)
    merged = merge_reading(tiles, [failed] * 6)
    assert merged.error_kind is ErrorKind.REPETITION
