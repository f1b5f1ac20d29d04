"""``zellige runs`` and ``--retry`` from the command line, with a fake engine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from zellige.data.ledger import Store
from zellige.data.schema import AnswerRow, Item, Question, Recipe
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
    shown = said("runs", "show", run, "--store", store)
    assert str(bad) in shown
    assert f"answer again what failed: zellige caption --resume {run} --store {store} --retry failed" in shown
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


@pytest.mark.parametrize("command", [["list"], ["rebuild"]])
def test_every_run_is_opened_once(
    fake: Any, draw: Draw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    folder, store = draw("a.png").parent, tmp_path / "store"
    for _ in range(3):
        said("caption", folder, "--store", store, "--no-prefect", "--quiet")
    opened: list[str] = []
    monkeypatch.setattr(Store, "open_run", counted(Store.open_run, opened))
    said("runs", *command, "--store", store, "--json")
    assert len(opened) == len(set(opened)) == 3


def counted(open_run: Callable[..., Any], opened: list[str]) -> Callable[..., Any]:
    def call(store: Store, run_id: str, *more: Any) -> Any:
        opened.append(run_id)
        return open_run(store, run_id, *more)

    return call


def test_rest_of_a_killed_deletion_or_creation_is_swept_by_the_next_command(
    fake: Any, draw: Draw, tmp_path: Path
) -> None:
    folder, store = draw("a.png").parent, tmp_path / "store"
    run = json.loads(said("caption", folder, "--store", store, "--no-prefect", "--json", "--quiet"))["run_id"]
    runs = store / "runs"
    for name in (".gone.12345678.deleted", ".gone.12345678.tmp", ".now.12345678.tmp"):
        (runs / name / "parts").mkdir(parents=True)
    os.utime(runs / ".gone.12345678.tmp", (0, 0))
    assert len(json.loads(said("runs", "list", "--store", store, "--json"))) == 1
    assert sorted(p.name for p in runs.iterdir()) == [".now.12345678.tmp", run]
    (runs / ".gone.12345678.deleted").mkdir()
    Store(store).delete_run(run)
    assert [p.name for p in runs.iterdir()] == [".now.12345678.tmp"]


def test_run_that_is_watched_is_told_look_by_look_until_it_ends(
    fake: Any, draw: Draw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, recipe = tmp_path / "store", Recipe("caption", (Question("caption"),), "", "off", {}, {}, "m", "f", "d")
    run = Store(store).create_run(recipe, [Item(f"file:///{n}.png") for n in range(3)], shard_items=1, inputs=[])

    def answer_one(_: float) -> None:
        lease = run.lease()
        assert lease is not None
        lease.commit([AnswerRow.of(run.run_id, recipe, lease.shard.items[0], recipe.questions[0], "ok", answer="x")])

    monkeypatch.setattr("zellige.flows.runs_commands.time.sleep", answer_one)
    once = json.loads(said("runs", "status", run.run_id, "--store", store, "--json"))
    assert (once["state"], once["items_done"]) == ("running", 0)
    looks = [
        json.loads(x) for x in said("runs", "status", run.run_id, "--store", store, "--watch", "--json").splitlines()
    ]
    assert [(look["state"], look["items_done"]) for look in looks] == [
        *(("running", 0), ("running", 1), ("running", 2), ("finished", 3))
    ]
    assert said("runs", "status", run.run_id, "--store", store, "--watch").count("finished") == 1


def test_rate_waits_for_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe("caption", (Question("caption"),), "", "off", {}, {}, "m", "f", "d")
    run = Store(tmp_path).create_run(recipe, [Item("file:///a.png")], shard_items=1, inputs=[])
    events = [{"at": f"2026-01-01T00:00:{s:02}+00:00", "kind": "committed", "rows": 10} for s in (0, 1, 5)]
    monkeypatch.setattr(run, "events", lambda: events[:2])
    assert run.rate() is None
    monkeypatch.setattr(run, "events", lambda: events)
    assert run.rate() == 4.0
