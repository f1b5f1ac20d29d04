"""Records and the columns they are stored in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zellige.data.schema import (
    ANSWERS,
    ITEMS,
    SCHEMA_VERSION,
    AnswerRow,
    ErrorKind,
    Item,
    Question,
    Recipe,
    TileAnswer,
    item_id,
    row_id,
    to_table,
)

COLUMNS = [
    *("schema_version", "run_id", "row_id", "item_id", "uri", "member", "ordinal", "page", "content_sha256"),
    *("width", "height", "frames", "task", "question_id", "question", "status", "error_kind", "error", "answer"),
    *("finish_reason", "tiles", "image_tokens", "prompt_tokens", "completion_tokens", "mean_logprob", "attempts"),
    *("decode_s", "engine_s", "recipe", "engine", "metadata", "created_at"),
]


def test_columns_are_those_of_the_data_model_and_carry_their_version():
    assert ANSWERS.names == COLUMNS
    assert {f.name for f in fields(AnswerRow)} == set(COLUMNS)
    assert {f.name for f in fields(Item)} == set(ITEMS.names)
    assert ANSWERS.metadata == {b"zellige.schema_version": str(SCHEMA_VERSION).encode()}


def test_a_table_of_failures_only_has_every_type(recipe_with):
    recipe = recipe_with()
    row = AnswerRow.of("r", recipe, Item("file:///a"), recipe.questions[0], "failed", error_kind=ErrorKind.EMPTY)
    table = to_table([row])
    assert table.schema.equals(ANSWERS, check_metadata=True)
    assert to_table([]).schema.equals(ANSWERS, check_metadata=True)
    assert table.column("error_kind").to_pylist() == ["empty"]


def test_every_column_comes_back_as_it_went_in(recipe_with):
    recipe = recipe_with()
    item = Item("file:///a", "b.png", 3, 2, metadata=(("id", "7"),))
    tile = TileAnswer(1, 2, 3, 4, 0.5, "red", 0.25)
    row = AnswerRow.of("r", recipe, item, recipe.questions[1], "ok", answer="square", tiles=[tile], attempts=2)
    back = to_table([row]).to_pylist()[0]
    assert back["tiles"] == [
        {"x": 1, "y": 2, "width": 3, "height": 4, "scale": 0.5, "answer": "red", "confidence": 0.25}
    ]
    assert back["metadata"] == [("id", "7")]
    assert (back["member"], back["ordinal"], back["page"], back["question"]) == ("b.png", 3, 2, "Which shape?")
    assert back["row_id"] == row_id(item.item_id, "shape", recipe.fingerprint)


def test_text_that_utf8_cannot_hold_is_escaped_and_not_fatal(recipe_with):
    recipe = recipe_with()
    row = AnswerRow.of(
        "r", recipe, Item("file:///a"), recipe.questions[0], "failed", error_kind=ErrorKind.UNREADABLE, error="x\udce9y"
    )
    assert to_table([row]).column("error").to_pylist() == ["x\\udce9y"]


@pytest.mark.parametrize(
    ("status", "columns"),
    [
        ("ok", {}),
        ("ok", {"answer": "a", "error_kind": ErrorKind.EMPTY}),
        ("failed", {}),
        ("failed", {"error_kind": "odd"}),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(recipe_with, status, columns):
    recipe = recipe_with()
    with pytest.raises(ValueError, match=r"row|odd"):
        to_table([AnswerRow.of("r", recipe, Item("file:///a"), recipe.questions[0], status, **columns)])


def test_ids_depend_on_every_part_and_on_where_it_ends():
    ids = {
        item_id("file:///a"),
        item_id("file:///a", "b"),
        item_id("file:///ab"),
        item_id("file:///a", "b", 0),
        item_id("file:///a", "b", None, 0),
        item_id("file:///a", None, 0),
        item_id("file:///a", "", None),
    }
    assert len(ids) == 7
    assert all(len(i) == 32 for i in ids)
    assert item_id("file:///a") == Item("file:///a").item_id


@given(st.text(), st.text(), st.floats(allow_nan=False, allow_infinity=False), st.lists(st.text(), max_size=3))
def test_a_recipe_comes_back_from_json_with_its_fingerprint(prompt, text, temperature, stop):
    recipe = Recipe(
        "ask", (Question("q", text),), prompt, 640, {"temperature": temperature, "stop": tuple(stop)}, {}, "m", "f", "d"
    )
    back = Recipe.from_json(recipe.to_json())
    assert back.fingerprint == recipe.fingerprint
    assert back.differences(recipe) == []


def test_differences_name_the_setting_and_both_values(recipe_with):
    ours = recipe_with(sampling={"max_tokens": 64, "temperature": 0.0, "seed": 1}, tiling="off")
    lines = ours.differences(recipe_with())
    assert lines == ["sampling.max_tokens: 64 != 32", "sampling.seed: 1 != null", 'tiling: "off" != "auto"']
    assert ours.fingerprint != recipe_with().fingerprint
    changed = recipe_with(questions=(Question("colour", "Colour?"),)).differences(recipe_with())
    assert 'questions.colour: "Colour?" != "Which colour?"' in changed
    assert 'questions.shape: not set != "Which shape?"' in changed


def test_where_a_model_lies_does_not_change_what_it_answers(recipe_with):
    assert recipe_with(model_name="/elsewhere").fingerprint == recipe_with().fingerprint
    assert recipe_with(model_fingerprint="0" * 32).fingerprint != recipe_with().fingerprint


def test_a_recipe_needs_questions_with_names_of_their_own(recipe_with):
    with pytest.raises(ValueError, match="at least one"):
        recipe_with(questions=())
    with pytest.raises(ValueError, match="more than once: q"):
        recipe_with(questions=(Question("q", "a"), Question("q", "b")))
    with pytest.raises(ValueError, match="not a recipe"):
        Recipe.from_json('{"task": "ask"}')


def test_part_schema_has_no_untyped_column():
    assert not any(pa.types.is_null(field.type) for schema in (ANSWERS, ITEMS) for field in schema)


def test_uri_of_a_question_is_part_of_the_recipe_only_where_set(recipe_with: Callable[..., Recipe]) -> None:
    everywhere = recipe_with(questions=(Question("q1", "Red?"),))
    bills = recipe_with(questions=(Question("q1", "Red?", "bills/*"),))
    assert "uri" not in everywhere.to_json()
    assert Recipe.from_json(bills.to_json()) == bills
    assert bills.fingerprint != everywhere.fingerprint
    assert bills.differences(everywhere) == ['questions.q1 (uri): "bills/*" != not set']
