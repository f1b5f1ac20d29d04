"""What a person sees while a run works."""

from __future__ import annotations

import io
import sys

import pytest

from zellige.flows.progress import Lines, duration, progress_line, watching
from zellige.flows.show import next_step, table
from zellige.tasks.watch import Tally


def tally(items: int = 30, failed: int = 2) -> Tally:
    return Tally(items_total=120, items=items, failed=failed, completion_tokens=600, wall_s=10.0)


def test_line_has_items_rates_failures_and_time_left() -> None:
    assert progress_line(tally()) == "30/120 items · 3.0 items/s · 60 tokens/s · 2 failed · 30 s left"
    assert progress_line(Tally(items_total=9)) == "0/9 items · 0.0 items/s · 0 tokens/s · 0 failed"


@pytest.mark.parametrize(
    ("items", "total", "wall_s", "plan_s", "left"),
    [
        (1, 1000, 60.0, 0.0, None),
        (19, 1000, 60.0, 0.0, None),
        (20, 1000, 60.0, 0.0, 2940.0),
        (500, 1000, 9.0, 0.0, None),
        (500, 1000, 60.0, 55.0, None),
        (20, 1000, 1060.0, 1000.0, 2940.0),
        (2, 20, 100.0, 0.0, 900.0),
        (0, 5, 100.0, 0.0, None),
    ],
)
def test_time_left_waits_for_evidence_and_is_by_the_time_of_answering(
    items: int, total: int, wall_s: float, plan_s: float, left: float | None
) -> None:
    counted = Tally(items_total=total, items=items, wall_s=wall_s, plan_s=plan_s)
    assert counted.left_s() == (None if left is None else pytest.approx(left))
    assert ("left" in progress_line(counted)) == (left is not None)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.2, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")],
)
def test_duration_is_for_people(seconds: float, told: str) -> None:
    assert duration(seconds) == told


def test_lines_come_now_and_then_and_once_at_the_end() -> None:
    out = io.StringIO()
    lines = Lines(out, every_s=3600)
    for items in (1, 2, 120, 120):
        lines(tally(items))
    assert out.getvalue().count("\n") == 1
    assert out.getvalue().startswith("120/120 items")
    often = Lines(out := io.StringIO(), every_s=0)
    for items in (1, 2, 3):
        often(tally(items))
    assert out.getvalue().count("\n") == 3


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with watching(quiet=True) as on_change:
        on_change(tally(120))
    assert capsys.readouterr() == ("", "")


def test_bar_is_drawn_on_a_terminal_on_stderr_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with watching(quiet=False) as on_change:
        on_change(tally())
    out, err = capsys.readouterr()
    assert out == ""
    assert "30/120" in err
    assert "3.0 items/s" in err
    assert "2 failed" in err


def test_next_step_can_be_pasted_into_a_shell() -> None:
    summary = {"state": "interrupted", "flow": "ask", "run_id": "r1", "store": "/a b", "failed": 0}
    assert next_step(summary) == "zellige ask --resume r1 --store '/a b'"
    assert next_step(summary | {"state": "finished", "failed": 1}) == "zellige runs show r1 --store '/a b'"
    assert next_step(summary | {"state": "finished"}) is None


def test_table_is_aligned() -> None:
    assert table([{"a": 1, "b": "x"}, {"a": 1000, "b": "y"}], ("a", "b")) == ["a     b", "1     x", "1000  y"]
