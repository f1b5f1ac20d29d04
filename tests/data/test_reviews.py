"""Words on rows: kept, counted once, and gone with the answer that they were about."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow.parquet as pq
import pytest

from zellige.data import reviews
from zellige.data.catalog import Catalog
from zellige.data.columns import REVIEWS
from zellige.data.files import StoreUnusable
from zellige.data.ledger import Run
from zellige.data.report.rows import read_part
from zellige.data.reviews import Review, ReviewLog, review_files, reviews_of

NewRun = Callable[..., Run]


@pytest.fixture
def run(new_run: NewRun, answer_all: Callable[[Run], int]) -> Run:
    run = new_run(8, 4)
    answer_all(run)
    return run


def rows(run: Run) -> list[dict[str, Any]]:
    return [row for i in range(run.shard_count) for row in read_part(run.part_path(i)).to_pylist()]


def word(row: dict[str, Any], verdict: Any, answer: str | None = None) -> Review:
    return Review(row["row_id"], verdict, row["created_at"], "ada", answer)


def test_latest_word_counts_over_all_sessions_and_one_that_is_withdrawn_does_not(run: Run) -> None:
    a, b, c, *_ = rows(run)
    first, second = ReviewLog(run), ReviewLog(run)
    first.add(word(a, "accepted"))
    second.add(word(a, "edited", "better"))
    first.add(word(b, "rejected"))
    first.add(word(c, "rejected"))
    second.add(word(c, "withdrawn"))
    told = reviews_of(run)
    assert {row: (said.verdict, said.answer) for row, said in told.items()} == {
        a["row_id"]: ("edited", "better"),
        b["row_id"]: ("rejected", None),
    }
    assert told[a["row_id"]].of(a)
    assert not told[a["row_id"]].of(a | {"created_at": a["created_at"] + timedelta(seconds=1)})


def test_each_word_is_on_the_disk_at_once_and_files_stay_short(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reviews, "WORDS_A_FILE", 20)
    a, *_ = rows(run)
    log = ReviewLog(run)
    for n in range(23):
        log.add(word(a, "edited", f"{n}"))
        assert reviews_of(run)[a["row_id"]].answer == f"{n}"
    files = review_files(run)
    assert [pq.read_metadata(f).num_rows for f in files] == [20, 3]
    assert all(pq.read_schema(f).equals(REVIEWS) for f in files)


def test_word_that_cannot_be_written_is_told_and_the_next_one_can(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, *_ = rows(run)
    log = ReviewLog(run)
    (run.path / "reviews").write_text("in the way")
    with pytest.raises(StoreUnusable):
        log.add(word(a, "accepted"))
    (run.path / "reviews").unlink()
    log.add(word(b, "accepted"))
    assert set(reviews_of(run)) == {b["row_id"]}


@pytest.mark.parametrize(("verdict", "answer"), [("edited", None), ("accepted", "x"), ("liked", None)])
def test_word_that_makes_no_sense_is_refused(run: Run, verdict: str, answer: str | None) -> None:
    with pytest.raises(ValueError, match="edited"):
        word(rows(run)[0], verdict, answer)


def test_index_shows_reviews_beside_the_answers(run: Run) -> None:
    a, b, *rest = rows(run)
    log, catalog = ReviewLog(run), Catalog(run.path.parent.parent)
    assert catalog.query("SELECT count(*) AS n FROM reviewed WHERE review IS NULL") == [{"n": 16}]
    log.add(word(a, "edited", "'; DROP VIEW answers; --"))
    log.add(word(b, "rejected"))
    log.add(
        Review(rest[0]["row_id"], "rejected", rest[0]["created_at"] - timedelta(days=1), "ada")
    )  # of an older answer
    catalog.record(run)
    sql = "SELECT row_id, review, reviewed_answer, answer FROM reviewed WHERE review IS NOT NULL ORDER BY review"
    wanted = [
        (a["row_id"], "edited", "'; DROP VIEW answers; --", a["answer"]),
        (b["row_id"], "rejected", b["answer"], b["answer"]),
    ]
    assert [tuple(row.values()) for row in catalog.query(sql, run_id=run.run_id)] == wanted
    import duckdb

    with duckdb.connect(str(catalog.path), read_only=True) as index:
        assert index.sql(sql).fetchall() == wanted
        assert index.sql("SELECT count(*) FROM answers").fetchall() == [(16,)]


def test_damaged_file_is_named_and_hides_no_other_from_the_index(run: Run) -> None:
    a, *_ = rows(run)
    ReviewLog(run).add(word(a, "accepted"))
    (run.path / "reviews" / "20260101-000000-1-abc-00001.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(StoreUnusable, match="20260101"):
        reviews_of(run)
    assert Catalog(run.path.parent.parent).query("SELECT count(*) AS n FROM reviews") == [{"n": 1}]
