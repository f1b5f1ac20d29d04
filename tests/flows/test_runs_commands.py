"""``zellige runs`` and ``--retry`` from the command line, with a fake engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from zellige.flows.cli import app

Draw = Callable[..., Path]


def said(*arguments: str | Path, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.stdout


def test_run_is_retried_shown_rebuilt_and_deleted(fake: Any, draw: Draw, tmp_path: Path) -> None:
    folder, store = draw("a.png").parent, tmp_path / "store"
    bad = folder / "b c.png"
    bad.write_bytes(b"")
    plain = ("--store", store, "--no-prefect", "--json", "--quiet")
    run = json.loads(said("caption", folder, *plain, code=3))["run_id"]
    assert str(bad) in said("runs", "show", run, "--store", store)
    draw("b c.png", (200, 10, 10))
    assert json.loads(said("caption", "--resume", run, "--retry", "timeout", *plain, code=3))["failed"] == 1
    done = json.loads(said("caption", "--resume", run, "--retry", "failed", *plain))
    assert (done["run_id"], done["ok"], done["failed"]) == (run, 2, 0)
    status = json.loads(said("runs", "status", run, "--store", store, "--json"))
    assert (status["state"], status["items_done"], status["next"]) == ("finished", 2, None)
    (store / "zellige.duckdb").write_bytes(b"")
    assert json.loads(said("runs", "rebuild", "--store", store, "--json")) == {"runs": 1, "rows": 2, "left_out": []}
    said("runs", "delete", run, "--store", store, code=2)
    said("runs", "delete", run, "--store", store, "--yes")
    assert json.loads(said("runs", "list", "--store", store, "--json")) == []


def test_unknown_kind_and_retry_of_no_run_are_wrong_use(fake: Any, draw: Draw, tmp_path: Path) -> None:
    folder = draw("a.png").parent
    plain = ("--store", tmp_path / "store", "--no-prefect", "--json")
    told = json.loads(said("caption", "--resume", "x", "--retry", "nonsense", *plain, code=2))
    assert "engine_failed" in told["error"]
    assert "--resume" in json.loads(said("caption", folder, "--retry", "failed", *plain, code=2))["error"]


def test_mistyped_input_names_near_ones_and_makes_no_run(fake: Any, draw: Draw, tmp_path: Path) -> None:
    folder, store = draw("a.png").parent, tmp_path / "store"
    told = json.loads(said("caption", f"{folder}x", "--store", store, "--no-prefect", "--json", code=2))
    assert str(folder.name) in told["error"].partition("did you mean")[2]
    assert not store.exists()


def test_store_that_cannot_be_made_is_found_before_the_engine_is_opened(fake: Any, draw: Draw, tmp_path: Path) -> None:
    folder = draw("a.png").parent
    (tmp_path / "file").write_text("")
    said("caption", folder, "--store", tmp_path / "file" / "store", "--no-prefect", "--json", code=1)
    assert not fake.opened
