"""Stores that break: a kill while planning, a full disk, a read-only one, parts and an index that were cut.

Each is a clear message and a run that goes on; nothing that was committed is lost, and ``runs rebuild`` restores the
index.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

from zellige.data.ledger import Store
from zellige.flows.cli import app

Draw = Callable[..., Path]
Rows = Callable[[Path, str], list[dict[str, Any]]]
ITEMS = 24


def told(*arguments: str | Path, code: int = 0) -> Any:
    """What ``--json`` printed."""
    done = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


@pytest.fixture
def folder(draw: Draw) -> Path:
    for n in range(ITEMS):
        path = draw(f"{n:02}.png", (n, 0, 0), (16, 16))
    return path.parent


class Disk:
    """A small file system of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def mount(self, *options: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options), "zellige-test", self.path], check=True)

    def remount(self, *options: str) -> None:
        subprocess.run(["mount", "-o", ",".join(("remount", *options)), self.path], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """192 kB, which is enough for some of the rows."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    (path := tmp_path / "disk").mkdir()
    small = Disk(path)
    try:
        small.mount("size=192k")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    yield small
    subprocess.run(["umount", "-l", path], check=True)


def caption(*more: str | Path, code: int = 0) -> Any:
    return told("caption", *more, "--no-prefect", "--quiet", code=code)


def test_full_disk_is_told_and_the_run_goes_on_where_it_was(fake: Any, folder: Path, disk: Disk, rows: Rows) -> None:
    store = disk.path / "store"
    full = caption(folder, "--store", store, "--shard-items", "1", code=1)
    assert "the disk is full; free some space and resume the run, nothing committed is lost" in full["error"]
    (run_id,) = Store(store).run_ids()
    kept = {r["row_id"]: r for r in rows(store, run_id)}
    assert 0 < len(kept) < ITEMS
    listed = told("runs", "list", "--store", store)
    assert (listed[0]["ok"], listed[0]["state"]) == (
        len(kept),
        told("runs", "status", run_id, "--store", store)["state"],
    )
    assert listed[0]["state"] in ("failed", "interrupted")
    disk.remount("size=64m")
    done = caption("--resume", run_id, "--store", store)
    answered = {r["row_id"]: r for r in rows(store, run_id)}
    assert (done["state"], done["ok"], len(answered)) == ("finished", ITEMS, ITEMS)
    assert kept.items() <= answered.items()
    assert not [p for p in store.rglob(".*") if "tmp" in p.name]


def test_read_only_store_can_be_read_and_says_why_it_cannot_be_written(
    fake: Any, folder: Path, disk: Disk, tmp_path: Path
) -> None:
    disk.remount("size=64m")
    store = disk.path / "store"
    run_id = caption(folder, "--store", store)["run_id"]
    Store(store).open_run(run_id).part_path(0).unlink()
    disk.remount("ro")
    advice = "Read-only file system; name a store that you may write to"
    for arguments in ([folder], ["--resume", run_id]):
        fake.opened.clear()
        assert advice in caption(*arguments, "--store", store, code=1)["error"]
        assert fake.opened == []
    assert advice in told("runs", "delete", run_id, "--store", store, "--yes", code=1)["error"]
    assert "Read-only file system" in told("runs", "rebuild", "--store", store, code=1)["error"]
    assert [run["run_id"] for run in told("runs", "list", "--store", store)] == [run_id]
    assert told("runs", "show", run_id, "--store", store)["items"] == ITEMS
    assert told("export", run_id, tmp_path / "out.jsonl", "--store", store, "--to", "jsonl", code=3)["rows"] == 0
    disk.remount("rw")
    assert caption("--resume", run_id, "--store", store)["ok"] == ITEMS


def test_part_that_lost_its_last_bytes_is_left_out_until_its_items_are_answered_again(
    fake: Any, folder: Path, tmp_path: Path, rows: Rows
) -> None:
    store = tmp_path / "store"
    run_id = caption(folder, "--store", store, "--shard-items", "8")["run_id"]
    part = Store(store).open_run(run_id).part_path(1)
    whole = part.read_bytes()
    part.write_bytes(whole[:-20])
    rebuilt = told("runs", "rebuild", "--store", store)
    assert rebuilt == {"runs": 1, "rows": ITEMS - 8, "left_out": [str(part)]}
    assert told("runs", "list", "--store", store)[0]["state"] == "interrupted"
    done = caption("--resume", run_id, "--store", store)
    assert (done["state"], done["ok"]) == ("finished", ITEMS)
    assert len({r["row_id"] for r in rows(store, run_id)}) == ITEMS
    (aside,) = (part.parent.parent / "aside").iterdir()
    assert aside.read_bytes() == whole[:-20]


def test_index_whose_log_was_cut_in_half_is_restored(fake: Any, folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    run_id = caption(folder, "--store", store)["run_id"]
    (store / "zellige.duckdb").unlink()
    program = (
        "import os, sys, duckdb; from zellige.data.catalog import Catalog\n"
        "catalog = Catalog(sys.argv[1]); index = duckdb.connect(str(catalog.path))\n"
        "index.execute(\"SET checkpoint_threshold = '1GB'\"); catalog._update(index); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", program, store], check=False)
    log = store / "zellige.duckdb.wal"
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    (run,) = told("runs", "list", "--store", store)
    assert (run["run_id"], run["state"], run["ok"]) == (run_id, "finished", ITEMS)
    assert told("runs", "rebuild", "--store", store) == {"runs": 1, "rows": ITEMS, "left_out": []}
    with duckdb.connect(str(store / "zellige.duckdb"), read_only=True) as index:
        assert index.execute("SELECT count(*), count(DISTINCT row_id) FROM answers").fetchall() == [(ITEMS, ITEMS)]


def test_index_that_another_program_holds_is_told_with_its_holder_and_costs_no_row(
    fake: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zellige.data.catalog._WAIT_S", 0.001)
    store = tmp_path / "store"
    store.mkdir()
    program = "import sys, duckdb; index = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, store / "zellige.duckdb"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        done = CliRunner().invoke(app, ["caption", str(folder), "--store", str(store), "--no-prefect"])
        assert done.exit_code == 0
        assert f"PID {holder.pid}" in done.stderr
        assert f"zellige runs rebuild --store {store} makes it anew, nothing is lost" in done.stderr
        assert told("runs", "list", "--store", store)[0]["ok"] == ITEMS
        holder.communicate()
    assert told("runs", "rebuild", "--store", store) == {"runs": 1, "rows": ITEMS, "left_out": []}
    assert caption(folder, "--store", store)["index_error"] is None


def test_run_killed_while_it_was_planned_is_planned_by_resume_with_the_model_it_was_begun_with(
    zellige: Any, folder: Path, tmp_path: Path, rows: Rows
) -> None:
    store = tmp_path / "store"
    arguments = ("caption", folder, "--store", store, "--no-prefect", "--quiet", "--model", "/models/other")
    process = zellige.start(*arguments, FAKE_LISTING_PAUSE_S="0.2")
    end = time.monotonic() + 60
    while not (begun := list(store.glob("runs/*/leases/plan*"))):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    run_id = begun[0].parent.parent.name
    status = told("runs", "status", run_id, "--store", store)
    assert (status["state"], status["items"]) == ("crashed", 0)
    assert status["next"] == f"zellige caption --resume {run_id} --store {store}"
    unplanned = told("export", run_id, tmp_path / "x", "--store", store, "--to", "jsonl", code=1)
    assert "resume it first" in unplanned["error"]
    done = zellige.json("caption", "--resume", run_id, "--store", store, "--no-prefect")
    assert (done["state"], done["items"], done["ok"]) == ("finished", ITEMS, ITEMS)
    assert len({r["row_id"] for r in rows(store, run_id)}) == ITEMS
    assert not list((store / "runs" / run_id).glob(".items*"))
