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
    NonFiniteLogits,
    Request,
    RequestRejected,
    Usage,
    ask,
)
from zellige.tasks import answer as answer_module
from zellige.tasks.answer import ENGINE_TRIES, FAILURES_UNTIL_DOWN, Asker, EngineDownError, Outcome
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


def run(script: Script, tally: Tally | None = None, raw: bool = False) -> Outcome:
    asker = Asker(cast("Engine", script), tally or Tally(), raw=raw)
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
    [(RequestRejected("too long"), ErrorKind.ENGINE_REJECTED), (NonFiniteLogits("layer 3"), ErrorKind.NONFINITE)],
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
    assert outcome.usage == Usage(8, 18, 43)
    assert [r.sampling.temperature for r in script.requests] == [0.0, 0.5]
    assert tally.second_tries == 1


def test_answer_refused_twice_is_kept_with_its_kind() -> None:
    outcome = run(Script(LOOP))
    assert (outcome.answer, outcome.error_kind, outcome.attempts) == (LOOP, ErrorKind.REPETITION, 2)


def test_raw_answer_is_kept_as_it_came() -> None:
    script = Script(LOOP)
    assert run(script, raw=True).error_kind is None
    assert len(script.requests) == 1


def test_answer_that_ended_with_an_error_is_an_engine_error() -> None:
    outcome = run(Script(Answer("half", "error", Usage()), GOOD))
    assert (outcome.answer, outcome.attempts) == (GOOD, 2)


def together(script: Script, n: int, in_flight: int = 32) -> list[Outcome | BaseException]:
    async def work() -> list[Outcome | BaseException]:
        asker = Asker(cast("Engine", script), Tally(), in_flight=in_flight)
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
        asker = Asker(cast("Engine", Script(*turns)), Tally())
        return [await asker.ask(request()) for _ in range(2 * FAILURES_UNTIL_DOWN)]

    assert [o.ok for o in asyncio.run(one_after_another())] == [False, True] * FAILURES_UNTIL_DOWN
