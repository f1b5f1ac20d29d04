"""The bench of the pipeline: it measures real runs, and says so when a run was not whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from zellige.flows import bench_pipeline
from zellige.flows.bench_pipeline import BenchError, InstantEngine, draw, resident_mb
from zellige.flows.cli import app


def test_small_measures_are_told_and_added_to_a_file(tmp_path: Path) -> None:
    out = tmp_path / "pipeline.jsonl"
    out.write_text('{"older": 1}\n')
    done = CliRunner().invoke(app, ["bench", "pipeline", "--items", "10", "--json", "--out", str(out)])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert [(row["measure"], row["items"]) for row in rows] == [("throughput", 10), ("memory", 100), ("listing", 2000)]
    assert rows[0]["ratio"] == pytest.approx(rows[0]["pipeline_items_per_s"] / rows[0]["bare_items_per_s"], rel=0.02)
    assert rows[1]["first_tenth_mb"] > 20
    assert [json.loads(line) for line in out.read_text().splitlines()[1:]] == rows


def test_images_are_of_a_cameras_size_and_no_two_are_the_same(tmp_path: Path) -> None:
    paths = list(draw(tmp_path / "images", 20, bench_pipeline.ONE_MEGAPIXEL).iterdir())
    assert len({path.read_bytes() for path in paths}) == 20
    assert all(100_000 < path.stat().st_size < 1_000_000 for path in paths)
    with Image.open(paths[0]) as image:
        assert image.size == bench_pipeline.ONE_MEGAPIXEL
        image.load()


def test_a_run_that_did_not_answer_every_item_has_no_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(folder: Path, count: int, size: Any) -> Path:
        (draw(folder, count, size) / "0000003.jpg").write_bytes(b"\xff\xd8\xff")
        return folder

    monkeypatch.setattr(bench_pipeline, "draw", broken)
    with pytest.raises(BenchError, match="3 of 4"):
        bench_pipeline.memory(tmp_path, 4)


def test_memory_of_processes_that_were_started_is_counted() -> None:
    import subprocess
    import sys

    before = resident_mb()
    with subprocess.Popen(
        [sys.executable, "-c", "a = b'x' * (80 << 20); print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert resident_mb() - before > 70
        child.communicate(b"\n")


def test_the_instant_engine_is_an_engine() -> None:
    from zellige.engine.api import Engine

    engine: Engine = InstantEngine()
    assert engine is not None
