"""``zellige runs compare``: what two runs differ in, and when that is too much."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from zellige.engine.api import KernelHealth, RunMeter
from zellige.flows.cli import app

Draw = Callable[..., Path]
HEALTHY = KernelHealth("rms_norm", "cuda:0", 1200, 3, 1e-3, 8e-3, 0, 0, 0, 0, 2.5, 4096, "healthy")


@pytest.fixture
def run(fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Captions ``paths`` and gives the run's id; ``kernels`` is what the engine tells of them."""

    def captioned(*paths: Path, kernels: tuple[KernelHealth, ...] = (), options: tuple[str, ...] = ()) -> str:
        async def meter(self: Any, run_id: str) -> RunMeter:
            return RunMeter(kernels=kernels)

        monkeypatch.setattr(fake.module.FakeEngine, "meter", meter)
        given = ["caption", *map(str, paths), "--store", str(tmp_path / "store"), "--no-prefect", "--json", "--quiet"]
        done = CliRunner().invoke(app, [*given, *options])
        assert done.exit_code in (0, 3), done.output
        return str(json.loads(done.stdout)["run_id"])

    return captioned


@pytest.fixture
def compared(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """The object that ``runs compare --json`` prints; any throughput will do unless ``options`` say otherwise."""

    def compare(first: str, second: str, code: int, *options: str) -> dict[str, Any]:
        how = options or ("--throughput", "0")
        done = CliRunner().invoke(
            app, ["runs", "compare", first, second, "--store", str(tmp_path / "store"), "--json", *how]
        )
        assert done.exit_code == code, done.output
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    return compare


def test_a_run_that_is_repeated_has_no_drift(run: Any, compared: Any, draw: Draw) -> None:
    paths = [draw(f"{i}.png", (i, 30, 60)) for i in range(3)]
    told = compared(run(*paths, kernels=(HEALTHY,)), run(*paths, kernels=(HEALTHY,)), 0)
    assert told["drift"] == []
    assert (told["answers"]["agreement"], told["answers"]["both_ok"]) == (1.0, 3)
    assert told["same_recipe"]
    assert told["kernels"][0]["verdict_a"] == told["kernels"][0]["verdict_b"] == "healthy"


def test_answers_that_differ_are_counted_and_shown(run: Any, compared: Any, draw: Draw, tmp_path: Path) -> None:
    kept, changed = draw("kept.png", (1, 2, 3)), draw("changed.png", (9, 9, 9))
    gone = draw("gone.png", (4, 4, 4))
    first = run(kept, changed, gone)
    draw("changed.png", (200, 9, 9))
    second = run(kept, changed, draw("new.png", (5, 5, 5)))
    answers = compared(first, second, 3)["answers"]
    assert (answers["same"], answers["both_ok"], answers["only_a"], answers["only_b"]) == (1, 2, 1, 1)
    assert [row["uri"].rpartition("/")[2] for row in answers["different"]] == ["changed.png"]
    assert compared(first, second, 0, "--agreement", "0.5", "--throughput", "0")["drift"] == []
    told = CliRunner().invoke(app, ["runs", "compare", first, second, "--store", str(tmp_path / "store")])
    assert "answers: 1 of 2 equal (50.00%)" in told.stdout
    assert told.stdout.splitlines()[-1].startswith("drifted: 50.00% of the answers agree, under 99.00%")


def test_a_row_that_fails_now_is_drift_and_one_that_failed_before_is_not(run: Any, compared: Any, draw: Draw) -> None:
    path = draw("a.png")
    whole = path.read_bytes()
    good = run(path)
    path.write_bytes(b"")
    bad = run(path)
    assert compared(good, bad, 3)["drift"] == ["1 row that was ok has failed"]
    assert compared(bad, good, 0)["answers"]["ok_since"] == 1
    path.write_bytes(whole)


@pytest.mark.parametrize(
    ("before", "now", "drift"),
    [
        (HEALTHY, replace(HEALTHY, max_rel_l2=1.9e-3), []),
        (HEALTHY, replace(HEALTHY, max_rel_l2=4e-3), ["rms_norm on cuda:0: error 4.0 times as large"]),
        (replace(HEALTHY, max_rel_l2=1e-5), replace(HEALTHY, max_rel_l2=1e-4), []),
        (HEALTHY, replace(HEALTHY, guard_hits=4, verdict="suspect"), ["rms_norm on cuda:0: was healthy, is suspect"]),
        (HEALTHY, replace(HEALTHY, checked=0, verdict="unchecked"), ["rms_norm on cuda:0: was healthy, is unchecked"]),
        (replace(HEALTHY, verdict="suspect"), HEALTHY, []),
        (HEALTHY, replace(HEALTHY, operator="another"), []),
    ],
    ids=["a little", "grown", "grown from nothing", "suspect", "unchecked", "better", "not used"],
)
def test_kernels_that_became_worse_are_drift(
    run: Any, compared: Any, draw: Draw, before: KernelHealth, now: KernelHealth, drift: list[str]
) -> None:
    path = draw("a.png")
    told = compared(run(path, kernels=(before,)), run(path, kernels=(now,)), 3 if drift else 0)
    assert told["drift"] == drift


def test_a_run_that_is_slower_than_allowed_is_drift_where_both_took_long_enough_to_tell(
    run: Any, compared: Any, draw: Draw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = draw("a.png")
    first, second = run(path), run(path)
    assert compared(first, second, 0, "--throughput", "1000000")["throughput_judged"] is False
    told = CliRunner().invoke(app, ["runs", "compare", first, second, "--store", str(tmp_path / "store")])
    assert "(under 5 s: too short to judge)" in told.stdout
    monkeypatch.setattr("zellige.tasks.compare.JUDGED_S", 0.0)
    (drift,) = compared(first, second, 3, "--throughput", "1000000")["drift"]
    assert "of the throughput, under" in drift


def test_what_a_cpu_never_compares_is_one_line(run: Any, draw: Draw, tmp_path: Path) -> None:
    path = draw("a.png")
    silent = replace(HEALTHY, device="cpu", checked=0, verdict="unchecked")
    kernels = (silent, replace(silent, operator="silu_mul"))
    first, second = run(path, kernels=kernels), run(path, kernels=kernels)
    told = CliRunner().invoke(app, ["runs", "compare", first, second, "--store", str(tmp_path / "store")])
    assert "kernels: of 2 operators nothing was compared, as ever on a CPU" in told.stdout
    assert "rms_norm" not in told.stdout
    shown = CliRunner().invoke(app, ["runs", "show", first, "--store", str(tmp_path / "store")])
    assert shown.stdout.splitlines()[-1] == "  kernels: on a CPU nothing is compared"


def test_an_unknown_run_is_wrong_use(run: Any, compared: Any, draw: Draw) -> None:
    assert "nobody" in compared(run(draw("a.png")), "nobody", 2)["error"]
