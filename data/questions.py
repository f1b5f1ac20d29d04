"""Questions from a file: JSONL, CSV or Parquet with a column ``question`` and, where wanted, two more.

``question_id`` names it in the rows; ``uri`` is a glob of the items that it is for, as ``Question.concerns`` reads it
(empty: every item).
"""

from __future__ import annotations

import csv
import json
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from zellige.data.schema import Item, Question, storable

_COLUMNS = ("question", "question_id", "uri")


def questions_from_texts(texts: Sequence[str]) -> tuple[Question, ...]:
    """Questions named q1, q2, … in the order given; raises ValueError for an empty one."""
    return _questions((f"question {i}", {"question": text}) for i, text in enumerate(texts, 1))


def questions_from_file(path: Path) -> tuple[Question, ...]:
    """The questions of ``path``, by its suffix; one without an id is q and its place, from 1.

    Raises ValueError, naming the place, for what is no question, and for a file that holds none; OSError as ever.
    """
    readers = {".jsonl": _jsonl, ".ndjson": _jsonl, ".csv": _csv, ".parquet": _parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path}: questions are read from .jsonl, .csv or .parquet files")
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe could be read only once, and would be waited for
        raise ValueError(f"{path} is not a regular file; name a file of questions")
    try:
        questions = _questions((f"{path}, {place}", row) for place, row in reader(path))
    except UnicodeDecodeError as e:
        raise ValueError(f"{path} is not UTF-8 text ({e}); save it as UTF-8") from e
    if not questions:
        raise ValueError(f"{path} holds no question")
    return questions


def _jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    # Split at line feeds only: the other line ends of Unicode may stand inside a JSON string.
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as e:
            raise ValueError(f"{path}, line {number}: not JSON ({e})") from e
        if not isinstance(row, dict):
            raise ValueError(f'{path}, line {number}: give an object such as {{"question": "What is shown?"}}')
        yield f"line {number}", row


def _csv(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)  # else a quote that is never closed swallows the rest of the file
        try:
            _has_question(path, reader.fieldnames or ())
            for row in reader:
                if None in row:
                    raise ValueError(
                        f"{path}, line {reader.line_num}: more cells than the heading names; put double quotes around "
                        "a question that holds a comma"
                    )
                yield f"line {reader.line_num}", row
        except csv.Error as e:
            raise ValueError(f"{path}, line {reader.line_num}: not CSV that can be read ({e})") from e


def _parquet(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = pq.read_schema(path).names
        _has_question(path, names)
        rows = pq.read_table(path, columns=[n for n in _COLUMNS if n in names]).to_pylist()
    except (pa.ArrowException, OSError) as e:
        raise ValueError(f"{path}: not a Parquet file that can be read ({e})") from e
    for number, row in enumerate(rows, 1):
        yield f"row {number}", row


def _has_question(path: Path, names: Iterable[str]) -> None:
    if "question" not in (names := list(names)):
        raise ValueError(f"{path} has no column question (it has: {', '.join(names) or 'none'})")


def _questions(rows: Iterable[tuple[str, dict[str, Any]]]) -> tuple[Question, ...]:
    questions: dict[str, Question] = {}
    for number, (place, row) in enumerate(rows, 1):
        text, name, glob = (row.get(column) for column in _COLUMNS)
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{place}: question is {text!r}; give some text")
        if not isinstance(glob, str | None):
            raise ValueError(f"{place}: uri is {glob!r}; give a glob such as *.png, or nothing for every item")
        # Half of a surrogate pair: an escape of JSON, or a byte of an argument that is not UTF-8.
        if any(isinstance(value, str) and storable(value) != value for value in (text, name, glob)):
            raise ValueError(f"{place}: {text!r} or its question_id or uri is no valid text; write it in UTF-8")
        question_id = f"q{number}" if name is None or name == "" else str(name)
        if question_id in questions:
            raise ValueError(f"{place}: question_id {question_id} is used twice")
        try:
            questions[question_id] = question = Question(question_id, text, glob or None)
            question.concerns(Item("file:///"))
        except re.error as e:
            raise ValueError(f"{place}: uri {glob!r} is no glob ({e}); write [[] for a bracket") from e
    return tuple(questions.values())
