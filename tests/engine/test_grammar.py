"""Grammars, walked at random: whatever the model says, what ends is what was asked for."""

from __future__ import annotations

import json
import os
import random
import re
import sys
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from zellige.engine.api import Grammar, RequestRejected
from zellige.engine.connect import DEMO_MODEL
from zellige.engine.detokenizer import Vocabulary
from zellige.engine.grammar import GrammarCompiler, GrammarState

WALKS = 200 if os.environ.get("ZELLIGE_TEST_LONG") else 12
TOKENIZER = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
EOS = frozenset({TOKENIZER.token_to_id("<|im_end|>"), TOKENIZER.token_to_id("<|endoftext|>")})
SPECIAL = {i for i, t in TOKENIZER.get_added_tokens_decoder().items() if t.special}
VOCABULARY = Vocabulary(TOKENIZER)


@pytest.fixture(scope="module")
def compiler():
    made = GrammarCompiler(VOCABULARY, TOKENIZER, EOS)
    yield made
    made.close()


def allowed(compiler: GrammarCompiler, state: GrammarState) -> list[int]:
    words = compiler.masks([state]).result()[0].tolist()
    return [i for i in range(32 * len(words)) if words[i // 32] >> i % 32 & 1]


def walk(compiler: GrammarCompiler, grammar: Grammar, seed: int, most: int = 400) -> str | None:
    """The text of a random answer under the grammar; None where it did not end in time."""
    rng = random.Random(seed)
    state = compiler.start(grammar)
    said = b""
    for _ in range(most):
        may = allowed(compiler, state)
        ends = [t for t in may if t in EOS]
        assert {t for t in may if t in SPECIAL} <= EOS, "a special token may only end the answer"
        assert len(may) > len(ends) or ends, "the grammar leads nowhere"
        # Ends are taken often, and short tokens liked: or most walks would be cut off inside a string.
        token = rng.choice(ends) if ends and (len(may) == len(ends) or rng.random() < 0.3) else rng.choice(may)
        state.accept(token)
        if token in EOS:
            return said.decode()
        said += VOCABULARY[token]
        if state.complete:
            return said.decode()
    return None


PATTERNS = [
    r"a|bc",
    r"(red|green) (circle|square)",
    r"[0-9]{3}-[0-9]{4}",
    r"(?i)yes|no",
    r"é+🙂?",
    r"\d{1,3}(\.\d+)?",
    r"^x/y$",
    r"[^a-z]{2,5}",
    r'"(\\.|[^"\\])*"',
    r"(a*b)*",
    r".{0,9}",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_ends_under_a_pattern_is_a_full_match(compiler, pattern: str) -> None:
    ended = [text for seed in range(WALKS) if (text := walk(compiler, Grammar("regex", pattern), seed)) is not None]
    assert ended
    assert [t for t in ended if not re.fullmatch(pattern, t)] == []


SCHEMAS: dict[str, dict[str, Any]] = {
    "flat": {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue", None]}, "count": {"type": "integer", "minimum": 3}},
        "required": ["colour", "count"],
        "additionalProperties": False,
    },
    "nested": {
        "$defs": {
            "point": {
                "type": "array",
                "prefixItems": [{"type": "number"}, {"type": "number"}],
                "items": False,
                "minItems": 2,
            }
        },
        "type": "object",
        "properties": {
            "at": {"type": "array", "items": {"$ref": "#/$defs/point"}, "maxItems": 3},
            "kind": {"anyOf": [{"const": "a"}, {"type": "boolean"}, {"type": "null"}]},
        },
        "required": ["at", "kind"],
        "additionalProperties": False,
    },
    "strings": {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 5}, "maxItems": 3},
    "a pattern": {"type": "string", "pattern": "^[a-f]{2,4}$"},
    "a date": {"type": "string", "format": "date"},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_ends_under_a_schema_meets_it(compiler, name: str) -> None:
    grammar = Grammar("json_schema", json.dumps(SCHEMAS[name]))
    ended = [text for seed in range(WALKS) if (text := walk(compiler, grammar, seed)) is not None]
    assert ended
    for text in ended:
        jsonschema.validate(json.loads(text), SCHEMAS[name])


def test_large_schemas_and_long_lists_of_choices_can_be_followed(compiler) -> None:
    names = [f"name {i}" for i in range(200)]
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    for grammar, text in [
        (Grammar("json_schema", json.dumps(schema)), '{"name 7": 1, "name 150": 2}'),
        (Grammar("json_schema", json.dumps({"enum": names * 20})), '"name 33"'),
        (Grammar("choice", choices=tuple(f"choice {i} of many" for i in range(5000))), "choice 4321 of many"),
    ]:
        state = compiler.start(grammar)
        for token in TOKENIZER.encode(text).ids:
            assert token in allowed(compiler, state)
            state.accept(token)
        assert set(allowed(compiler, state)) >= EOS


def test_blanks_in_json_come_to_an_end(compiler) -> None:
    state = compiler.start(Grammar("json_object"))
    for token in TOKENIZER.encode("{").ids:
        state.accept(token)
    blank = TOKENIZER.encode("\n").ids[0]
    count = 0
    while blank in allowed(compiler, state) and count < 100:
        state.accept(blank)
        count += 1
    assert 0 < count <= 32


def test_any_json_object(compiler) -> None:
    ended = [t for seed in range(WALKS) if (t := walk(compiler, Grammar("json_object"), seed)) is not None]
    assert ended
    assert all(isinstance(json.loads(t), dict) for t in ended)


@settings(max_examples=300 if os.environ.get("ZELLIGE_TEST_LONG") else 40, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9), min_size=1, max_size=5))
def test_choices_are_meant_to_the_letter(choices: list[str]) -> None:
    compiler = GrammarCompiler(VOCABULARY, TOKENIZER, EOS)
    grammar = Grammar("choice", choices=tuple(choices))
    for choice in choices:
        state = compiler.start(grammar)
        for token in TOKENIZER.encode(choice, add_special_tokens=False).ids:
            assert token in allowed(compiler, state)
            state.accept(token)
        assert set(allowed(compiler, state)) >= EOS
    assert walk(compiler, grammar, 0) in choices
    compiler.close()


@pytest.mark.parametrize(
    ("schema", "place", "reason"),
    [
        ({"properties": {"a": {"type": "array", "items": {"type": "strin"}}}}, "$.properties.a.items", "strin"),
        ({"properties": {"a": {}, "x": {"not": {"type": "null"}}}}, "$.properties.x", "not"),
        ({"anyOf": [{"type": "null"}, {"type": "array", "uniqueItems": True}]}, "$.anyOf[1]", "uniqueItems"),
        ({"items": {"pattern": "ab(c"}, "type": "array"}, "$.items", "character 3 of 'ab(c'"),
        ({"$defs": {"u": {"$ref": "#/$defs/nobody"}}, "items": {"$ref": "#/$defs/u"}}, "$", "nobody"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "$", "minimum"),
        ({"x-guidance": {"lenient": True}, "type": "array", "uniqueItems": True}, "$", "uniqueItems"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused_with_its_place(compiler, schema, place: str, reason: str) -> None:
    with pytest.raises(RequestRejected) as refused:
        compiler.start(Grammar("json_schema", json.dumps(schema)))
    message = str(refused.value)
    assert re.search(rf" at {re.escape(place)}[ :.]", message)
    assert reason in message
    assert "\n" not in message


@pytest.mark.parametrize("source", ["{", "[" * 100_000, "5", "true", "[]", '{"a": NaN}', '{"enum": ["\\ud800"]}'])
def test_what_is_no_schema_is_refused(compiler, source: str) -> None:
    with pytest.raises(RequestRejected, match="JSON schema"):
        compiler.start(Grammar("json_schema", source))


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("ab(c", "character 3"),
        ("[z-a]", "character 2"),
        ("(?=x)a", "look-around"),
        (r"(a)\1", "backreferences"),
        (r"a\bc", "lookarounds"),
        ("a{2,1}", "repetition"),
    ],
)
def test_a_pattern_that_cannot_be_followed_is_refused_with_its_place(compiler, pattern: str, reason: str) -> None:
    with pytest.raises(RequestRejected, match=reason):
        compiler.start(Grammar("regex", pattern))


def test_several_masks_at_once_are_those_of_each_alone(compiler) -> None:
    patterns = ["abc", "[0-9]+", "x|y"]
    alone = [compiler.masks([compiler.start(Grammar("regex", p))]).result()[0].tolist() for p in patterns]
    together = compiler.masks([compiler.start(Grammar("regex", p)) for p in patterns]).result()
    assert together.tolist() == alone


def test_two_answers_of_one_grammar_do_not_move_each_other(compiler) -> None:
    one, other = (compiler.start(Grammar("regex", "ab")) for _ in range(2))
    one.accept(TOKENIZER.token_to_id("a"))
    assert allowed(compiler, other) == allowed(compiler, compiler.start(Grammar("regex", "ab")))
    assert allowed(compiler, one) != allowed(compiler, other)


def test_a_token_that_the_grammar_does_not_allow_ends_it_with_a_reason(compiler) -> None:
    state = compiler.start(Grammar("regex", "ab"))
    with pytest.raises(RequestRejected, match="cannot be followed any further"):
        state.accept(TOKENIZER.token_to_id("z"))
    # Its mask now allows the end; nothing chosen under it may count as an answer.
    with pytest.raises(RequestRejected):
        state.accept(next(iter(EOS)))


def test_without_llguidance_grammars_alone_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    compiler = GrammarCompiler(VOCABULARY, TOKENIZER, EOS)
    with pytest.raises(RequestRejected, match="pip install llguidance"):
        compiler.start(Grammar("json_object"))


def test_without_an_end_token_a_grammar_is_refused() -> None:
    with pytest.raises(RequestRejected, match="eos_token_id"):
        GrammarCompiler(VOCABULARY, TOKENIZER, frozenset()).start(Grammar("json_object"))
