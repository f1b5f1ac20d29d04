"""Which answers are refused."""

from __future__ import annotations

import pytest

from zellige.data.schema import ErrorKind
from zellige.engine.api import Answer, FinishReason, Sampling, Usage
from zellige.tasks.validate import ends_in_a_loop, refusal, second_try


def answer(text: str, finish: FinishReason = "stop") -> Answer:
    return Answer(text, finish, Usage(completion_tokens=256))


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (answer("a red circle at the top"), None),
        (answer("no"), None),
        (answer(""), ErrorKind.INVALID_OUTPUT),
        (answer(" \n"), ErrorKind.INVALID_OUTPUT),
        (answer("a red circle at", "length"), ErrorKind.LENGTH),
        (answer("a b " * 5, "repetition"), ErrorKind.REPETITION),
        (answer("the cat and " * 20, "length"), ErrorKind.REPETITION),
        (answer("the cat and " * 20), ErrorKind.REPETITION),
        (answer("x", "nonfinite"), ErrorKind.NONFINITE),
        (answer("x", "cancelled"), ErrorKind.CANCELLED),
    ],
)
def test_refusal_names_the_kind(given: Answer, kind: ErrorKind | None) -> None:
    found = refusal(given)
    assert (found[0] if found else None) == kind


def test_cut_off_answer_says_what_to_do() -> None:
    found = refusal(answer("a red", "length"))
    assert found is not None
    assert "--max-tokens" in found[1]


@pytest.mark.parametrize("given", [answer(""), answer("a red", "length"), answer("a b " * 50, "repetition")])
def test_raw_keeps_what_would_be_refused(given: Answer) -> None:
    assert refusal(given, raw=True) is None


def test_raw_still_refuses_what_the_engine_calls_broken() -> None:
    assert refusal(answer("x", "nonfinite"), raw=True) is not None


@pytest.mark.parametrize(
    "text",
    [
        "Total " + "." * 200 + " 12",
        "-" * 300,
        "0 " * 100,
        "ha" * 6,
        "a red circle at the top left, a red circle at the top right and a red circle in the centre",
        "no no no no no",
    ],
)
def test_rules_numbers_and_short_repeats_are_no_loop(text: str) -> None:
    assert not ends_in_a_loop(text)


@pytest.mark.parametrize("unit", ["a", "the ", "a red circle, ", "One whole sentence that comes again and again. " * 3])
def test_loop_is_found_wherever_it_is_cut(unit: str) -> None:
    text = "It shows " + unit * 80
    assert all(ends_in_a_loop(text[: len(text) - cut]) for cut in range(min(len(unit), 9)))


def test_second_try_is_warm_and_repeatable() -> None:
    tried = second_try(Sampling(max_tokens=9), 1)
    assert (tried.temperature, tried.seed, tried.max_tokens) == (0.5, 1, 9)
    assert second_try(Sampling(temperature=0.9, seed=7), 1) == Sampling(temperature=0.9, seed=8)
