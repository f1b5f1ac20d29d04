"""What reviewers said shows in every export: edits in place of answers, and rejected rows nowhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zellige.data.exports import ExportOptions, export_run
from zellige.data.exports.base import REJECTED, rows
from zellige.data.ledger import Run
from zellige.data.reviews import Review, ReviewLog


@pytest.fixture
def reviewed(images: Path, answered: Callable[..., Run]) -> Run:
    """``a.jpg`` is edited, ``a.png`` rejected, ``b.webp`` accepted, and a person wrote what ``broken.jpg`` shows."""
    run, log = answered(images), ReviewLog
    said: dict[str, tuple[Any, str | None]] = {
        "images/a.jpg": ("edited", "by hand"),
        "a.png": ("rejected", None),
        "b.webp": ("accepted", None),
        "broken.jpg": ("edited", "a torn picture"),
    }
    session = log(run)
    for row in list(rows(run)):
        for name, (verdict, answer) in said.items():
            if row["uri"].endswith(name):
                session.add(Review(row["row_id"], verdict, row["created_at"], "ada", answer))
    return run


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_jsonl_has_the_verdict_and_both_answers(reviewed: Run, tmp_path: Path) -> None:
    export_run(reviewed, "jsonl", tmp_path / "out.jsonl", ExportOptions())
    by_name = {row["uri"].rpartition("images/")[2]: row for row in lines(tmp_path / "out.jsonl")}
    edited = by_name["a.jpg"]
    assert (edited["review"], edited["answer"], edited["model_answer"]) == ("edited", "by hand", "caption of a.jpg")
    assert (by_name["a.png"]["review"], by_name["a.png"]["answer"]) == ("rejected", "caption of a.png")
    assert (by_name["x/a.jpg"]["review"], by_name["x/a.jpg"]["model_answer"]) == (None, None)
    torn = by_name["broken.jpg"]
    assert (torn["status"], torn["error_kind"], torn["answer"]) == ("ok", None, "a torn picture")


def test_texts_are_those_of_the_reviewer_and_rejected_rows_are_left_out_and_counted(
    reviewed: Run, tmp_path: Path
) -> None:
    done = export_run(reviewed, "txt", tmp_path / "out", ExportOptions())
    texts = {p.name: p.read_text() for p in (tmp_path / "out").iterdir() if p.is_file()}
    assert texts["a.jpg.txt"] == "by hand"
    assert texts["broken.txt"] == "a torn picture"
    assert "a.png.txt" not in texts
    assert done.left_out == {REJECTED: 1}


def test_batch_has_a_rejected_row_as_an_error(reviewed: Run, tmp_path: Path) -> None:
    export_run(reviewed, "openai-batch", tmp_path / "out", ExportOptions())
    answers = [(r["error"] or {}).get("code") for r in lines(tmp_path / "out")]
    assert sorted(filter(None, answers)) == ["rejected"]


def test_word_on_an_answer_that_was_made_anew_says_nothing(images: Path, answered: Callable[..., Run]) -> None:
    run = answered(images)
    first = next(rows(run))
    ReviewLog(run).add(Review(first["row_id"], "rejected", first["created_at"].replace(year=2000), "ada"))
    assert {row["review"] for row in rows(run)} == {None}
