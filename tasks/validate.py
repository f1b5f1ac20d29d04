"""Validate: which answers are refused, and why. Pure."""

from __future__ import annotations

import json
from dataclasses import replace

from zellige.data.schema import ErrorKind
from zellige.engine.api import Answer, Sampling

#: A refused answer is asked for this many times more before its row fails.
SECOND_TRIES = 1
#: Asking greedily again would give the same answer again: a second try samples at least this warm, with a fixed seed.
SECOND_TRY_TEMPERATURE = 0.5

_LEAST_REPEATS = 6
_LEAST_LOOP_CHARS = 60
_LONGEST_UNIT_CHARS = 400


def refusal(
    answer: Answer, raw: bool = False, may_be_empty: bool = False, as_json: bool = False
) -> tuple[ErrorKind, str] | None:
    """Why this answer must not be kept, or None for a good one; ``raw`` refuses only what the engine calls broken.

    An answer ``may_be_empty`` where a page is read: nothing is printed on some. One wanted ``as_json`` may be none
    where a server takes no heed of the schema.
    """
    if answer.finish_reason == "nonfinite":
        return ErrorKind.NONFINITE, "the model produced NaN or infinity"
    if answer.finish_reason == "cancelled":
        return ErrorKind.CANCELLED, "the request was cancelled before its answer was whole"
    if raw:
        return None
    if answer.finish_reason == "repetition" or ends_in_a_loop(answer.text):
        return ErrorKind.REPETITION, "the answer repeats itself without end"
    if answer.finish_reason == "length":
        tokens = answer.usage.completion_tokens
        return ErrorKind.LENGTH, f"the answer was cut off after {tokens} tokens; give a larger --max-tokens"
    if not answer.text.strip() and not may_be_empty:
        return ErrorKind.INVALID_OUTPUT, "the answer is empty"
    if as_json:
        try:
            json.loads(answer.text)
        except ValueError as e:
            return ErrorKind.INVALID_OUTPUT, f"the answer is not JSON: {e}"
    return None


def ends_in_a_loop(text: str) -> bool:
    """Whether ``text`` ends with one piece said over and over: six times or more, 60 characters or more.

    Rules and rows of dots are no loops: the piece has to hold a letter.
    """
    tail = text.rstrip()[-_LONGEST_UNIT_CHARS * _LEAST_REPEATS :]
    return any(_loops_with_period(tail, period) for period in range(1, len(tail) // _LEAST_REPEATS + 1))


def _loops_with_period(tail: str, period: int) -> bool:
    unit = tail[-period:]
    if not any(c.isalpha() for c in unit):
        return False
    needed = max(_LEAST_REPEATS, -(-_LEAST_LOOP_CHARS // period))
    return tail.endswith(unit * needed)


def second_try(sampling: Sampling, attempt: int) -> Sampling:
    """How to ask again after ``attempt`` refused answers: warmer, and repeatable."""
    seed = (sampling.seed or 0) + attempt
    return replace(sampling, temperature=max(sampling.temperature, SECOND_TRY_TEMPERATURE), seed=seed)
