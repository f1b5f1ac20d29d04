"""Answer: keeps the engine's queue full and no fuller; a remote engine's client retries itself."""

from __future__ import annotations

import asyncio
import functools
import logging
from dataclasses import dataclass, field, replace

from zellige.data.schema import ErrorKind
from zellige.engine.api import (
    Answer,
    Engine,
    EngineError,
    EngineUnavailable,
    NonFiniteLogits,
    Request,
    RequestFatal,
    RequestRejected,
    Usage,
)
from zellige.tasks.second_tries import LADDER, worth
from zellige.tasks.validate import Validator
from zellige.tasks.watch import Tally

#: Requests at the engine at once: enough to fill its batches, few enough that little is lost when it dies.
IN_FLIGHT = 64
#: Times one request is sent before its row fails with ``engine_failed``; the pause before each doubles.
ENGINE_TRIES = 3
FIRST_PAUSE_S = 0.5
#: Requests that fail one after another, all their tries used up, before the engine counts as gone.
FAILURES_UNTIL_DOWN = 16

log = logging.getLogger(__name__)


class EngineDownError(Exception):
    """The engine answers nothing any more: the run stops, so that it can be resumed, rather than fail every row."""


@dataclass(frozen=True)
class Outcome:
    """What became of one question about one view: a kept ``answer``, or a kind and the ``answer`` it was refused for.

    ``usage`` and ``engine_s`` are summed over all ``attempts``. ``rung`` says how it was asked where this is not the
    answer to the first try.
    """

    answer: Answer | None
    error_kind: ErrorKind | None = None
    error: str | None = None
    usage: Usage = field(default_factory=Usage)
    engine_s: float = 0.0
    attempts: int = 1
    rung: str | None = None

    @property
    def ok(self) -> bool:
        return self.error_kind is None


class Asker:
    """Sends requests to one engine, at most ``in_flight`` at once, in the order they came.

    What ``validator`` refuses is asked again by the first ``second_tries`` rungs of the ladder.
    """

    def __init__(
        self,
        engine: Engine,
        tally: Tally,
        validator: Validator,
        *,
        second_tries: int = len(LADDER),
        in_flight: int = IN_FLIGHT,
    ) -> None:
        self._engine = engine
        self._tally = tally
        self._validator = validator
        self._rungs = LADDER[:second_tries]
        self._places = asyncio.Semaphore(in_flight)
        self._failures_in_a_row = 0

    async def ask(self, request: Request) -> Outcome:
        """Ask until there is a good answer or the tries are used up, and keep the best; raises EngineDownError."""
        outcomes = [await self._send(request)]
        for rung in self._rungs:
            last = outcomes[-1]
            # Only a refused answer is worth a second try: what the engine rejected or could not do stays so.
            if last.ok or last.answer is None or last.error_kind is ErrorKind.NONFINITE:
                break
            self._tally.second_tries += 1
            outcomes.append(replace(await self._send(rung.of(request)), rung=rung.told))
        best = max(outcomes, key=lambda outcome: worth(outcome.answer, outcome.error_kind))
        usage = functools.reduce(_plus, [outcome.usage for outcome in outcomes])
        engine_s, attempts = sum(o.engine_s for o in outcomes), sum(o.attempts for o in outcomes)
        return replace(best, usage=usage, engine_s=engine_s, attempts=attempts)

    async def _send(self, request: Request) -> Outcome:
        """One answer from the engine, sent again after EngineError; raises EngineDownError only."""
        for attempt in range(1, ENGINE_TRIES + 1):
            try:
                answer = await self._answer(request)
            except RequestRejected as e:
                return Outcome(None, ErrorKind.ENGINE_REJECTED, str(e), attempts=attempt)
            except NonFiniteLogits as e:
                return Outcome(None, ErrorKind.NONFINITE, str(e), attempts=attempt)
            except RequestFatal as e:
                return Outcome(None, ErrorKind.ENGINE_FAILED, str(e), attempts=attempt)
            except EngineUnavailable as e:
                # Its client has sent it again as often as may be: retries on top of those would multiply.
                log.warning("the engine failed: %s", e)
                failure = str(e)
                break
            except EngineError as e:
                log.warning("the engine failed (try %d of %d): %s", attempt, ENGINE_TRIES, e)
                failure = str(e)
            except Exception as e:
                # A fault in the engine's own code must cost this row and not the run; the trace goes to the log.
                log.exception("the engine raised an error that it should not have")
                failure = f"{type(e).__name__}: {e}"
            else:
                self._failures_in_a_row = 0
                return self._judged(answer, attempt)
            if attempt < ENGINE_TRIES:
                self._tally.retries += 1
                await asyncio.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1))
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= FAILURES_UNTIL_DOWN:
            raise EngineDownError(
                f"{self._failures_in_a_row} requests failed one after another, the last with: {failure}"
            )
        return Outcome(None, ErrorKind.ENGINE_FAILED, failure, attempts=attempt)

    async def _answer(self, request: Request) -> Answer:
        async with self._places:
            self._tally.requests += 1
            with self._tally.waiting_for_engine():
                answer = await self._engine.answer(request)
        if answer.finish_reason == "error":
            raise EngineError("the engine ended the answer with an error")
        return answer

    def _judged(self, answer: Answer, attempt: int) -> Outcome:
        self._tally.image_tokens += answer.usage.image_tokens
        self._tally.prompt_tokens += answer.usage.prompt_tokens
        self._tally.completion_tokens += answer.usage.completion_tokens
        kind, error = self._validator.refusal(answer) or (None, None)
        return Outcome(answer, kind, error, answer.usage, answer.engine_s, attempt)


def _plus(a: Usage, b: Usage) -> Usage:
    return Usage(
        a.image_tokens + b.image_tokens,
        a.prompt_tokens + b.prompt_tokens,
        a.completion_tokens + b.completion_tokens,
    )
