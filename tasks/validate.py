"""Validate: which answers are refused, and why. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from zellige.data.schema import ErrorKind, Task
from zellige.engine.api import Answer
from zellige.tasks.declines import declines
from zellige.tasks.language import other_language

if TYPE_CHECKING:
    import jsonschema_rs

_LEAST_REPEATS = 6
_LEAST_LOOP_CHARS = 60
_LONGEST_UNIT_CHARS = 400
#: What is wrong by a JSON schema is told with the value, which may be long.
_LONGEST_TOLD_CHARS = 300


@dataclass(frozen=True)
class Validator:
    """What the answers of one run have to be: ``raw`` refuses only what the engine calls broken.

    ``schema`` is a JSON schema as text, which an engine may take no heed of; ``language`` a code that
    ``language_code`` gave. Where a page is read an answer may be empty, and say whatever is printed.
    """

    task: Task = "caption"
    raw: bool = False
    schema: str | None = None
    language: str | None = None

    def refusal(self, answer: Answer) -> tuple[ErrorKind, str] | None:
        """Why this answer must not be kept, or None for a good one."""
        if answer.finish_reason == "nonfinite":
            return ErrorKind.NONFINITE, "the model produced NaN or infinity"
        if answer.finish_reason == "cancelled":
            return ErrorKind.CANCELLED, "the request was cancelled before its answer was whole"
        if self.raw:
            return None
        if answer.finish_reason == "repetition" or ends_in_a_loop(answer.text):
            return ErrorKind.REPETITION, "the answer repeats itself without end"
        if answer.finish_reason == "length":
            tokens = answer.usage.completion_tokens
            return ErrorKind.LENGTH, f"the answer was cut off after {tokens} tokens; give a larger --max-tokens"
        wrong = None if self.task == "read" else self._wrong(answer.text)
        return None if wrong is None else (ErrorKind.INVALID_OUTPUT, wrong)

    def _wrong(self, text: str) -> str | None:
        if not text.strip():
            return "the answer is empty"
        if declines(text):
            return "the model declines to answer"
        said = text
        if self._checked is not None:
            try:
                value = json.loads(text, parse_constant=_no_json)
                error = next(self._checked.iter_errors(value), None)
            except (ValueError, RecursionError) as e:  # RecursionError: thousands of brackets that open
                return f"the answer is not JSON: {e}"
            if error is not None:
                return f"the answer does not meet the JSON schema {_told(error)}"
            said = "\n".join(_texts(value))
        if self.language is not None and (other := other_language(said, self.language)) is not None:
            return f"the answer is in another language ({other}) than {self.language}"
        return None

    @cached_property
    def _checked(self) -> jsonschema_rs.Validator | None:
        return None if self.schema is None else schema_validator(self.schema)


def schema_validator(schema: str) -> jsonschema_rs.Validator:
    """What checks values against a JSON schema, given as text; raises ValueError for a schema that is none."""
    import jsonschema_rs

    try:
        # Offline: a schema that points to another file or server is refused, not fetched.
        return jsonschema_rs.validator_for(json.loads(schema), offline=True)
    except jsonschema_rs.ValidationError as e:
        raise ValueError(_told(e)) from e


def _told(error: jsonschema_rs.ValidationError) -> str:
    """Where a value is wrong, and what is wrong with it, in one line."""
    place = "".join(f".{key}" if isinstance(key, str) else f"[{key}]" for key in error.instance_path)
    return f"at ${place}: {error.message[:_LONGEST_TOLD_CHARS]}"


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


def _no_json(constant: str) -> None:
    raise ValueError(f"{constant} is no value of JSON")


def _texts(value: Any) -> list[str]:
    """The strings of a JSON value; its keys are the schema's."""
    if isinstance(value, str):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in inside for text in _texts(part)]
