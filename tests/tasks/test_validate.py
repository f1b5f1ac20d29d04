"""Which answers are refused."""

from __future__ import annotations

import json

import pytest

from zellige.data.schema import ErrorKind
from zellige.engine.api import Answer, FinishReason, Usage
from zellige.tasks.job import Job, WrongUseError
from zellige.tasks.validate import Validator, ends_in_a_loop

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "colour": {"enum": ["red", "green"]},
            "sides": {"type": "integer", "minimum": 3},
            "tags": {"type": "array", "items": {"type": "string", "pattern": r"^\p{L}+$"}},
        },
        "required": ["colour", "sides"],
        "additionalProperties": False,
    }
)


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
    found = Validator().refusal(given)
    assert (found[0] if found else None) == kind


def test_cut_off_answer_says_what_to_do() -> None:
    found = Validator().refusal(answer("a red", "length"))
    assert found is not None
    assert "--max-tokens" in found[1]


@pytest.mark.parametrize(
    "given",
    [
        *(answer(""), answer("a red", "length"), answer("a b " * 50, "repetition")),
        *(answer("I'm sorry, but I can't assist with that."), answer("Ein roter Kreis über einem blauen Quadrat")),
    ],
)
def test_raw_keeps_what_would_be_refused(given: Answer) -> None:
    assert Validator(raw=True, schema=SCHEMA, language="en").refusal(given) is None


def test_raw_still_refuses_what_the_engine_calls_broken() -> None:
    assert Validator(raw=True).refusal(answer("x", "nonfinite")) is not None


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


def refused(text: str, validator: Validator) -> str | None:
    found = validator.refusal(answer(text))
    assert found is None or found[0] is ErrorKind.INVALID_OUTPUT
    return None if found is None else found[1]


@pytest.mark.parametrize("text", ["", "I'm sorry, but I can't help you with that."])
def test_page_may_be_empty_and_say_what_is_printed(text: str) -> None:
    assert refused(text, Validator("ask")) is not None
    assert refused(text, Validator("read")) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"colour": "red", "sides": 3}', None),
        (' {"sides": 3.0, "colour": "red"}\n', None),
        ("a red triangle", "not JSON"),
        ('{"colour": "red", "sides": NaN}', "not JSON: NaN"),
        ("[" * 100_000, "not JSON"),
        ('{"colour": "red", "sides": 2}', "at $.sides: 2 is less than the minimum of 3"),
        ('{"colour": "pink", "sides": 3}', "at $.colour"),
        ('{"colour": "red"}', 'at $: "sides" is a required property'),
        ('{"colour": "red", "sides": 3, "more": [1]}', "more"),
        ('{"colour": "red", "sides": 3, "tags": ["a", 7]}', "at $.tags[1]"),
        ('"red"', 'is not of type "object"'),
    ],
)
def test_answer_has_to_meet_the_whole_schema(text: str, told: str | None) -> None:
    found = refused(text, Validator(schema=SCHEMA))
    assert found is None if told is None else found is not None and told in found


@pytest.mark.parametrize(
    "schema", ['{"type": "nope"}', '{"$ref": "http://127.0.0.1:9/x.json"}', '{"$ref": "file:///etc/hostname"}']
)
def test_schema_that_is_none_or_points_elsewhere_is_wrong_use(schema: str) -> None:
    with pytest.raises(WrongUseError, match="--schema"):
        Job("caption", "answers", json_schema=schema)


def test_language_is_told_by_the_strings_of_json_and_not_by_its_keys() -> None:
    validator = Validator(schema='{"type": "object"}', language="de")
    german = {"the description of the image": "Ein roter Kreis über einem blauen Quadrat"}
    english = {"Beschreibung": {"des ganzen Bildes": ["A red circle above a blue square"]}}
    assert refused(json.dumps(german), validator) is None
    assert refused(json.dumps(english), validator) == "the answer is in another language (en) than de"
