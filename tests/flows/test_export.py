"""``zellige export`` over a run that was made by ``zellige caption``: what is written, what is said, and exit codes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from zellige.flows.cli import app
from zellige.flows.pipeline import run_job
from zellige.tasks.job import Job

Draw = Callable[..., Path]


@pytest.fixture
def run(fake: Any, draw: Draw, tmp_path: Path) -> str:
    """A run of three captions and a failure in ``store``."""
    folder = draw("a.png").parent
    draw("b.png", (200, 0, 0))
    draw("sub/a.png", (0, 200, 0))
    (folder / "cut.png").write_bytes((folder / "a.png").read_bytes()[:40])
    run_id = run_job(Job("caption", str(tmp_path / "store"), (str(folder),)))["run_id"]
    assert isinstance(run_id, str)
    return run_id


@pytest.fixture
def export(run: str, tmp_path: Path) -> Callable[..., Any]:
    def call(*arguments: str | Path) -> Any:
        return CliRunner().invoke(app, ["export", run, "--store", str(tmp_path / "store"), *map(str, arguments)])

    return call


def test_every_format_is_written_and_counted(export: Callable[..., Any], tmp_path: Path) -> None:
    for to, rows in {"jsonl": 4, "txt": 3, "webdataset": 3, "hf": 3, "coco": 3, "openai-batch": 4}.items():
        done = export(tmp_path / f"out-{to}", "--to", to, "--json")
        assert done.exit_code == 0, done.output
        said = json.loads(done.stdout)
        assert (said["to"], said["rows"], said["left_out"]) == (to, rows, {} if rows == 4 else {"failed": 1})
        assert f"{rows} rows" in done.stderr


def test_an_image_that_changed_since_gives_exit_code_3(export: Callable[..., Any], draw: Draw, tmp_path: Path) -> None:
    draw("b.png", (1, 2, 3))
    done = export(tmp_path / "wds", "--to", "webdataset")
    assert done.exit_code == 3
    assert "b.png: the image has changed since" in done.stderr


def test_texts_beside_the_images_have_to_be_asked_for(export: Callable[..., Any], tmp_path: Path) -> None:
    assert export("--to", "txt").exit_code == 2
    done = export("--to", "txt", "--beside", "--prefix", "photo, ")
    assert done.exit_code == 0, done.output
    texts = {p.name: p.read_text() for p in (tmp_path / "images").rglob("*.txt")}
    assert texts["b.txt"] == "photo, colour 200 0 0"
    assert len(texts) == 2  # a.txt twice, in two folders
    assert len(list((tmp_path / "images").rglob("*.txt"))) == 3


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["OUT", "--to", "csv"], "webdataset"),
        (["--to", "jsonl"], "DEST"),
        (["OUT", "--to", "jsonl", "--prefix", "x"], "--prefix"),
        (["OUT", "--to", "txt", "--overwrite"], "--if-exists"),
        (["OUT", "--to", "txt", "--if-exists", "maybe"], "append"),
        (["OUT", "--to", "txt", "--beside"], "one of them"),
        (["OUT", "--to", "coco", "--shard-bytes", "5"], "--shard-bytes"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_use(
    arguments: list[str], word: str, export: Callable[..., Any], tmp_path: Path
) -> None:
    done = export(*(str(tmp_path / "out") if a == "OUT" else a for a in arguments))
    assert done.exit_code == 2, done.output
    assert word in done.stderr
    assert not (tmp_path / "out").exists()


def test_unknown_runs_and_places_that_are_taken_are_told(export: Callable[..., Any], tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["export", "nope", str(tmp_path / "x"), "--store", str(tmp_path / "store"), "--to", "jsonl", "--json"]
    )
    assert (done.exit_code, json.loads(done.stdout)["exit_code"]) == (2, 2)
    (tmp_path / "out").write_text("mine")
    done = export(tmp_path / "out", "--to", "jsonl")
    assert (done.exit_code, (tmp_path / "out").read_text()) == (1, "mine")
    assert "--overwrite" in done.stderr


def test_nothing_in_the_store_is_overwritten(export: Callable[..., Any], tmp_path: Path) -> None:
    part = next((tmp_path / "store").glob("runs/*/parts/*.parquet"))
    before = part.read_bytes()
    done = export(part, "--to", "jsonl", "--overwrite")
    assert (done.exit_code, part.read_bytes()) == (2, before)
    assert "store" in done.stderr


@pytest.mark.parametrize("to", ["jsonl", "webdataset", "txt"])
def test_pipes_and_links_are_wrong_use(to: str, export: Callable[..., Any], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("pipe", "dangling", "loop"):
        done = export(tmp_path / name, "--to", to)
        assert (done.exit_code, done.exception.__class__) == (2, SystemExit), done.output
        assert name in done.stderr
    assert (tmp_path / "pipe").is_fifo()
    assert not (tmp_path / "nowhere").exists()


def test_export_of_a_run_that_is_not_finished_says_how_many_are_missing_and_how_to_go_on(
    run: str, export: Callable[..., Any], tmp_path: Path
) -> None:
    next((tmp_path / "store").glob("runs/*/parts/*.parquet")).unlink()
    done = export(tmp_path / "out.jsonl", "--to", "jsonl", "--json")
    said = json.loads(done.stdout)
    assert (done.exit_code, said["exit_code"], said["items_without_rows"]) == (3, 3, 4)
    assert said["next"] == f"zellige caption --resume {run} --store {tmp_path / 'store'}"
    assert f"not answered yet: 4 items; finish the run and export again: {said['next']}" in done.stderr
