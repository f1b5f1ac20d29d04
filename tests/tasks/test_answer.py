"""How requests are sent, sent again and given up."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import numpy as np
import pytest

from zellige.data.schema import ErrorKind
from zellige.engine.api import (
    Answer,
    Engine,
    EngineError,
    EngineUnavailable,
    ImagePart,
    NonFiniteLogits,
    Request,
    RequestFatal,
    RequestRejected,
    Sampling,
    Usage,
    ask,
)
from zellige.tasks import answer as answer_module
from zellige.tasks.answer import ENGINE_TRIES, FAILURES_UNTIL_DOWN, Asker, EngineDownError, Outcome
from zellige.tasks.validate import Validator
from zellige.tasks.watch import Tally

GOOD = Answer("a circle", "stop", Usage(4, 9, 3), engine_s=0.5)
LOOP = Answer("la " * 40, "repetition", Usage(4, 9, 40), engine_s=0.5)


class Script:
    """An engine that plays ``turns``: an answer, an exception, or a function of the request."""

    def __init__(self, *turns: Any) -> None:
        self.turns = list(turns)
        self.requests: list[Request] = []
        self.at_once = self.most_at_once = 0

    async def answer(self, request: Request) -> Answer:
        self.requests.append(request)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.001)
        self.at_once -= 1
        turn = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
        if isinstance(turn, Exception):
            raise turn
        return cast("Answer", turn)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_module, "FIRST_PAUSE_S", 0.001)


def run(script: Script, tally: Tally | None = None, second_tries: int = 2) -> Outcome:
    asker = Asker(cast("Engine", script), tally or Tally(), Validator(), second_tries=second_tries)
    return asyncio.run(asker.ask(request()))


def request() -> Request:
    return ask("What?", np.zeros((8, 8, 3), np.uint8))


def test_what_its_client_has_given_up_is_not_sent_again() -> None:
    script = Script(EngineUnavailable("no engine answers"))
    outcome = run(script)
    assert (outcome.error_kind, outcome.error, outcome.attempts) == (ErrorKind.ENGINE_FAILED, "no engine answers", 1)
    assert len(script.requests) == 1


def test_good_answer_is_asked_for_once() -> None:
    tally = Tally()
    assert run(Script(GOOD), tally) == Outcome(GOOD, usage=GOOD.usage, engine_s=0.5, attempts=1)
    assert (tally.requests, tally.image_tokens, tally.completion_tokens, tally.retries) == (1, 4, 3, 0)
    assert tally.engine_s > 0


def test_engine_error_is_sent_again() -> None:
    tally = Tally()
    outcome = run(Script(EngineError("gone"), GOOD), tally)
    assert (outcome.answer, outcome.error_kind, outcome.attempts) == (GOOD, None, 2)
    assert (tally.requests, tally.retries) == (2, 1)


def test_engine_error_is_given_up_after_bounded_tries() -> None:
    script = Script(EngineError("gone"))
    outcome = run(script)
    assert (outcome.error_kind, outcome.error, outcome.attempts) == (ErrorKind.ENGINE_FAILED, "gone", ENGINE_TRIES)
    assert len(script.requests) == ENGINE_TRIES


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RequestRejected("too long"), ErrorKind.ENGINE_REJECTED),
        (NonFiniteLogits("layer 3"), ErrorKind.NONFINITE),
        (RequestFatal("rms_norm"), ErrorKind.ENGINE_FAILED),
    ],
)
def test_what_cannot_get_better_is_not_sent_again(error: Exception, kind: ErrorKind) -> None:
    script = Script(error)
    outcome = run(script)
    assert (outcome.error_kind, outcome.error, outcome.attempts) == (kind, str(error), 1)
    assert len(script.requests) == 1


def test_fault_of_the_engine_costs_the_row_only() -> None:
    outcome = run(Script(ZeroDivisionError("oops")))
    assert (outcome.error_kind, outcome.error) == (ErrorKind.ENGINE_FAILED, "ZeroDivisionError: oops")


def test_refused_answer_gets_a_warmer_second_try() -> None:
    script, tally = Script(LOOP, GOOD), Tally()
    outcome = run(script, tally)
    assert (outcome.answer, outcome.error_kind, outcome.attempts) == (GOOD, None, 2)
    assert (outcome.usage, outcome.engine_s) == (Usage(8, 18, 43), 1.0)
    assert outcome.rung == "sampled warmer"
    assert [r.sampling.temperature for r in script.requests] == [0.0, 0.5]
    assert tally.second_tries == 1


def test_third_try_shows_half_the_pixels_and_samples_as_at_first() -> None:
    script, tally = Script(LOOP, LOOP, GOOD), Tally()
    outcome = run(script, tally)
    assert (outcome.answer, outcome.attempts, outcome.rung) == (GOOD, 3, "shown at half the pixels")
    assert [r.sampling for r in script.requests[::2]] == [Sampling(), Sampling()]
    assert [shape_of(r) for r in script.requests] == [(8, 8), (8, 8), (6, 6)]
    assert tally.second_tries == 2


@pytest.mark.parametrize("second_tries", [0, 1, 2])
def test_ladder_is_no_longer_than_was_asked_for(second_tries: int) -> None:
    outcome = run(Script(LOOP), second_tries=second_tries)
    assert (outcome.error_kind, outcome.attempts) == (ErrorKind.REPETITION, 1 + second_tries)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_best_of_refused_answers_is_kept_with_its_kind(place: int) -> None:
    cut = Answer("a red circle and", "length", Usage(4, 9, 256), engine_s=0.5)
    turns = [LOOP, Answer("  ", "stop", Usage(4, 9, 1))]
    outcome = run(Script(*turns[:place], cut, *turns[place:]))
    assert (outcome.answer, outcome.error_kind, outcome.attempts) == (cut, ErrorKind.LENGTH, 3)
    assert outcome.usage == Usage(12, 27, 297)


def test_of_equally_bad_answers_the_first_is_kept() -> None:
    again = Answer("no " * 40, "repetition", Usage(4, 9, 40))
    outcome = run(Script(LOOP, again, again))
    assert (outcome.answer, outcome.rung) == (LOOP, None)


@pytest.mark.parametrize("error", [RequestRejected("too small"), EngineUnavailable("gone"), NonFiniteLogits("layer 3")])
def test_second_try_that_the_engine_cannot_do_leaves_the_refused_answer(error: Exception) -> None:
    outcome = run(Script(LOOP, error, GOOD))
    assert (outcome.answer, outcome.error_kind, outcome.attempts) == (LOOP, ErrorKind.REPETITION, 2)


def shape_of(request: Request) -> tuple[int, int]:
    image = request.messages[-1].parts[0]
    assert isinstance(image, ImagePart)
    return image.pixels.shape[:2]


def test_raw_answer_is_kept_as_it_came() -> None:
    asker = Asker(cast("Engine", Script(LOOP)), Tally(), Validator(raw=True))
    outcome = asyncio.run(asker.ask(request()))
    assert (outcome.answer, outcome.error_kind, outcome.attempts) == (LOOP, None, 1)


def test_answer_that_ended_with_an_error_is_an_engine_error() -> None:
    outcome = run(Script(Answer("half", "error", Usage()), GOOD))
    assert (outcome.answer, outcome.attempts) == (GOOD, 2)


def together(script: Script, n: int, in_flight: int = 32) -> list[Outcome | BaseException]:
    async def work() -> list[Outcome | BaseException]:
        asker = Asker(cast("Engine", script), Tally(), Validator(), in_flight=in_flight)
        return await asyncio.gather(*(asker.ask(request()) for _ in range(n)), return_exceptions=True)

    return asyncio.run(work())


def test_no_more_requests_are_in_flight_than_allowed() -> None:
    script = Script(GOOD)
    assert len(together(script, 40, in_flight=4)) == 40
    assert script.most_at_once == 4


def test_engine_that_answers_nothing_stops_the_run() -> None:
    outcomes = together(Script(EngineError("gone")), FAILURES_UNTIL_DOWN)
    assert sum(isinstance(o, EngineDownError) for o in outcomes) == 1


def test_failures_between_answers_do_not_stop_the_run() -> None:
    turns: list[Any] = [*[EngineError("gone")] * ENGINE_TRIES, GOOD] * FAILURES_UNTIL_DOWN

    async def one_after_another() -> list[Outcome]:
        asker = Asker(cast("Engine", Script(*turns)), Tally(), Validator())
        return [await asker.ask(request()) for _ in range(2 * FAILURES_UNTIL_DOWN)]

    assert [o.ok for o in asyncio.run(one_after_another())] == [False, True] * FAILURES_UNTIL_DOWN
