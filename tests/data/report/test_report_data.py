"""What a page holds of a run: which rows, how much of their texts, and the run over time."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from zellige.data.ledger import Run
from zellige.data.report import page
from zellige.data.report.page import Page
from zellige.data.report.rows import Chosen, choose, shortened
from zellige.data.report.series import Clock, series
from zellige.data.schema import AnswerRow, TileAnswer

NewRun = Callable[..., Run]
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def test_every_failed_row_is_chosen_and_the_others_evenly(new_run: NewRun, answer_all: Callable[[Run], int]) -> None:
    run = new_run(70, 16)
    answer_all(run)
    everything = choose(run, 1000)
    assert (everything.total, len(everything.rows), len(everything.items)) == (140, 140, 70)
    some = choose(run, 60)
    assert len(some.rows) == 60
    assert sum(row["status"] == "failed" for row in some.rows) == 20  # all of them: every seventh item, two questions
    ok = [everything.rows.index(next(r for r in everything.rows if r["id"] == row["id"])) for row in some.rows]
    assert ok == sorted(ok)
    assert max(np.diff(ok)) <= 6
    few = choose(run, 20)
    assert sum(row["status"] == "failed" for row in few.rows) == 10
    assert [few.items[row["item"]].uri for row in few.rows] == [few.places[row["item"]]["uri"] for row in few.rows]


def test_texts_are_cut_until_all_rows_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    letters = "".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), 125_000))
    rows = [{"id": str(n), "item": 0, "answer": letters[n * 5000 : n * 5000 + 5000]} for n in range(25)]
    chosen = Chosen(25, places=[{"uri": "file:///a"}], rows=rows)
    monkeypatch.setattr(page, "MOST_TEXT_BYTES", 30_000)
    made = Page({}, chosen, {}).html({}, {}).decode()
    match = re.search(r'id="rows-data">([^<]*)<', made)
    assert match is not None
    assert len(match[1]) <= 30_000
    held = json.loads(gzip.decompress(base64.b64decode(match[1])))["rows"]
    assert held[0]["answer"] == f"{letters[:800]} … (5,000 characters; cut here)"
    assert '"cut_to": 800' in made


def test_tiles_are_cut_like_answers() -> None:
    rows = [{"tiles": [[0, 0, 9, 9, "abcdef", 0.5], [0, 0, 9, 9, None, None]], "answer": "abc"}]
    assert shortened(rows, 3) == [
        {"tiles": [[0, 0, 9, 9, "abc … (6 characters; cut here)", 0.5], [0, 0, 9, 9, None, None]], "answer": "abc"}
    ]


def test_data_can_neither_end_its_block_nor_take_a_place_of_the_template() -> None:
    evil = "</script><!--<script>{{script}}{{rows}}\u2028"
    made = Page({"run": evil}, Chosen(0), {evil: {"verdict": evil}}).html({}, {0: evil}).decode()
    assert made.count("</script") == 5
    assert made.count("<!--") == 1  # the mark of a report
    blocks = re.findall(r'<script type="application/json" id="([\w-]+)">(.*?)</script>', made, re.DOTALL)
    held = {name: json.loads(text) for name, text in blocks}
    assert held["about-data"]["run"] == held["pictures-data"]["missing"]["0"] == evil
    assert held["reviews-data"] == {evil: {"verdict": evil}}


def commit_at(run: Run, seconds: list[float], **columns: Any) -> None:
    lease = run.lease()
    assert lease is not None
    rows = [
        AnswerRow.of(run.run_id, run.recipe, item, question, "ok", answer="x", **columns)
        for item in lease.shard.items
        for question in run.recipe.questions
    ]
    for row, at in zip(rows, seconds, strict=True):
        row.created_at = BEGIN + timedelta(seconds=at)
    lease.commit(rows)


def test_rates_add_up_and_a_pause_is_taken_out(new_run: NewRun) -> None:
    run = new_run(100, 100)
    day = 86_400.0
    seconds = [n / 10 for n in range(100)] + [day + n / 10 for n in range(100)]
    commit_at(run, seconds, engine_s=2.0, attempts=1, completion_tokens=3, prompt_tokens=30)
    told = series(run)
    assert told is not None
    pieces, long_s = len(told["rows_per_s"]), told["piece_s"]
    assert pieces * long_s == pytest.approx(19.8, abs=0.01)
    assert sum(told["rows_per_s"]) * long_s == pytest.approx(200, abs=0.1)
    assert sum(told["completion_tokens_per_s"]) * long_s == pytest.approx(600, abs=0.5)
    assert set(told["latency_p95_s"]) == {2.0}
    assert told["pauses"] == [[pytest.approx(9.9, abs=0.01), pytest.approx(day - 9.9, abs=0.01)]]


def test_latency_is_that_of_one_of_a_rows_views(new_run: NewRun) -> None:
    run = new_run(5, 5)
    tiles = tuple(TileAnswer(0, 0, 9, 9, 1.0, "x", None) for _ in range(4))
    commit_at(run, [float(n) for n in range(10)], engine_s=12.0, attempts=1, tiles=tiles)
    told = series(run)
    assert told is not None
    assert {v for v in told["latency_p50_s"] if v is not None} == {3.0}


def test_copies_have_no_latency_and_a_run_without_rows_no_charts(new_run: NewRun) -> None:
    run = new_run(5, 5)
    assert series(run) is None
    commit_at(run, [float(n) for n in range(10)], engine_s=0.0, attempts=0)
    told = series(run)
    assert told is not None
    assert set(told["latency_p50_s"]) == {None}


def test_queues_of_workers_are_added_and_the_hottest_gpu_counts(new_run: NewRun) -> None:
    run = new_run(5, 5)
    commit_at(run, [float(n) for n in range(10)])
    for worker, queue, heat in (("a", 4, 70.0), ("b", 6, 80.0)):
        moments = [{"at": BEGIN + timedelta(seconds=s), "in_flight": queue, "temperature_c": heat} for s in range(10)]
        run._timeline.write(run.run_id, worker, moments)
    told = series(run)
    assert told is not None
    assert {v for v in told["in_flight"] if v is not None} == {10.0}
    assert {v for v in told["temperature_c"] if v is not None} == {80.0}
    assert "engine_running" not in told


def test_one_row_has_a_clock() -> None:
    clock = Clock.over(np.array([5.0]))
    assert clock.piece(np.array([5.0])).tolist() == [0]
    assert clock.each(np.array([5.0]), np.array([np.nan]), np.max) == [None] * clock.pieces
