"""Questions from texts and files."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zellige.data.questions import questions_from_file, questions_from_texts
from zellige.data.schema import Item, Question

COLOUR, COUNT = Question("colour", "Which colour?"), Question("q2", "How many, in all?\u2028Say.")


def written(tmp_path: Path, kind: str) -> Path:
    path = tmp_path / f"questions.{kind}"
    if kind == "jsonl":
        path.write_text(
            '{"question_id": "colour", "question": "Which colour?", "more": 1}\n\n'
            '{"question": "How many, in all?\u2028Say."}\n',
            encoding="utf-8",
        )
    elif kind == "csv":
        path.write_text(
            'question,question_id\nWhich colour?,colour\n"How many, in all?\u2028Say.",\n', encoding="utf-8-sig"
        )
    else:
        table = {"question": [COLOUR.text, COUNT.text], "question_id": ["colour", None], "n": [1, 2]}
        pq.write_table(pa.table(table), path)
    return path


def test_texts_are_numbered() -> None:
    assert questions_from_texts(["One?", "Two?"]) == (Question("q1", "One?"), Question("q2", "Two?"))


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_every_kind_of_file_gives_the_same_questions(tmp_path: Path, kind: str) -> None:
    assert questions_from_file(written(tmp_path, kind)) == (COLOUR, COUNT)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.txt", "What?", "read from .jsonl, .csv or .parquet"),
        ("a.jsonl", "", "no question"),
        ("a.jsonl", '{"question": "a?"}\n{"question": \n', "line 2: not JSON"),
        ("a.jsonl", '["a?"]', "line 1: give an object"),
        ("a.jsonl", '{"question": " "}', "line 1: question is"),
        ("a.jsonl", '{"text": "a?"}', "line 1: question is None"),
        ("a.jsonl", '{"question": "a?", "question_id": "x"}\n{"question": "b?", "question_id": "x"}', "used twice"),
        ("a.csv", "text\nWhat?\n", "has no column question"),
        ("a.csv", "", "has no column question"),
        ("a.parquet", "no parquet", "can be read"),
        ("a.jsonl", "[" * 100_000, "line 1: not JSON"),
        ("a.jsonl", '{"question": "\\ud800 a?"}', "line 1: .* no valid text"),
        ("a.jsonl", '{"question": "a?", "question_id": "\\ud800"}', "line 1: .* no valid text"),
        ("a.csv", "question\nIs it red, or blue?\n", "line 2: more cells than the heading"),
        ("a.csv", 'question\nRed?\n"Blue?\nGreen?\n', "a.csv, line .*: not CSV"),
        ("a.csv", "question\n" + "x" * 200_000, "a.csv, line .*: not CSV"),
    ],
)
def test_what_is_no_question_is_named(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=says):
        questions_from_file(tmp_path / name)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_file_that_is_not_utf8_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes("question\nWas für eine Farbe?\n".encode("latin-1"))
    with pytest.raises(ValueError, match=f"{name} is not UTF-8"):
        questions_from_file(tmp_path / name)


def test_damaged_parquet_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "parquet")
    path.write_bytes(path.read_bytes()[:4] + bytes(40) + path.read_bytes()[44:])
    with pytest.raises(ValueError, match=r"questions\.parquet: not a Parquet file"):
        questions_from_file(path)


def test_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match="not a regular file"):
        questions_from_file(tmp_path / "a.jsonl")


def test_missing_file_is_the_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        questions_from_file(tmp_path / "a.parquet")


def test_argument_that_is_not_utf8_is_no_question() -> None:
    with pytest.raises(ValueError, match=r"question 1: .* no valid text"):
        questions_from_texts([os.fsdecode(b"caf\xe9?")])


def test_given_id_that_is_also_a_number_in_line_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"question": "a?", "question_id": "q2"}\n{"question": "b?"}')
    with pytest.raises(ValueError, match="q2 is used twice"):
        questions_from_file(tmp_path / "a.jsonl")


def test_uri_column_is_a_glob_of_the_items_that_are_asked(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("question,uri\nA bill?,bills/*.png\nAny?,\n")
    bill, anything = questions_from_file(tmp_path / "a.csv")
    assert (bill.uri, anything.uri) == ("bills/*.png", None)
    assert bill.concerns(Item("file:///data/bills/a.png"))
    assert not bill.concerns(Item("file:///data/bills/old/a.png"))
    assert not bill.concerns(Item("file:///data/skills/a.png"))
    assert anything.concerns(Item("file:///data/bills/old/a.png"))


@pytest.mark.parametrize(
    ("glob", "item", "concerned"),
    [
        ("*.png", Item("file:///a/b%20c.png"), True),
        ("b c.png", Item("file:///a/b%20c.png"), True),
        ("b%20c.png", Item("file:///a/b%20c.png"), True),
        ("file:///a/b%20c.png", Item("file:///a/b%20c.png"), True),
        ("/a/*", Item("file:///a/b.png"), True),
        ("/a/*", Item("file:///x/a/b.png"), False),
        ("file:///a/*", Item("file:///a/b.png"), True),
        ("caf?.png", Item("file:///a/caf%E9.png"), True),
        ("x.tar/**", Item("file:///a/x.tar", member="in/b.jpg", ordinal=0), True),
        ("b.jpg", Item("file:///a/x.tar", member="in/b.jpg", ordinal=0), True),
        ("x.tar", Item("file:///a/x.tar", member="in/b.jpg", ordinal=0), False),
        ("x.parquet", Item("file:///a/x.parquet", ordinal=7), True),
    ],
)
def test_glob_of_a_question_is_for_the_end_of_an_address(glob: str, item: Item, concerned: bool) -> None:
    assert Question("q", "?", glob).concerns(item) == concerned


@pytest.mark.parametrize(("value", "says"), [("7", "uri is 7"), ('"[z-a]"', "no glob"), ('"\\ud800"', "no valid text")])
def test_uri_that_is_no_glob_is_named(tmp_path: Path, value: str, says: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"question": "a?", "uri": {value}}}')
    with pytest.raises(ValueError, match=f"line 1: .*{says}"):
        questions_from_file(tmp_path / "a.jsonl")
