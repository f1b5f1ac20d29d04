"""Runs that are stopped: by Ctrl-C, once and twice, and by kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zellige.data.ledger import Store

Draw = Callable[..., Path]
Rows = Callable[[Path, str], list[dict[str, Any]]]
ITEMS = 40


@pytest.fixture
def folder(draw: Draw) -> Path:
    for i in range(ITEMS):
        path = draw(f"{i:02}.png", (i, 0, 0), (16, 16))
    return path.parent


def started(zellige: Any, folder: Path, store: Path, delay_s: float, shard_items: int) -> subprocess.Popen[str]:
    arguments = ("caption", folder, "--store", store, "--no-prefect", "--json", "--quiet")
    process: subprocess.Popen[str] = zellige.start(
        *arguments, "--shard-items", str(shard_items), FAKE_ENGINE_DELAY_S=str(delay_s)
    )
    return process


def wait_for_parts(store: Path, at_least: int, process: subprocess.Popen[str]) -> str:
    """The run's name, once so many parts are there."""
    end = time.monotonic() + 60
    while len(parts := list(store.glob("runs/*/parts/*.parquet"))) < at_least:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    return parts[0].parent.parent.name


def test_run_that_was_killed_is_resumed_and_loses_and_doubles_no_row(
    zellige: Any, folder: Path, tmp_path: Path, rows: Rows
) -> None:
    store = tmp_path / "store"
    process = started(zellige, folder, store, delay_s=0.05, shard_items=2)
    run_id = wait_for_parts(store, 3, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    before = {r["row_id"]: r["created_at"] for r in rows(store, run_id)}
    assert 6 <= len(before) < ITEMS
    assert Store(store).open_run(run_id).state() == "crashed"
    done = zellige.json("caption", "--resume", run_id, "--store", store, "--no-prefect")
    assert (done["run_id"], done["state"], done["ok"]) == (run_id, "finished", ITEMS)
    after = {r["row_id"]: r["created_at"] for r in rows(store, run_id)}
    assert len(rows(store, run_id)) == len(after) == ITEMS
    assert before.items() <= after.items()


def test_interrupt_finishes_the_shard_in_hand_and_names_the_resume_command(
    zellige: Any, folder: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    process = started(zellige, folder, store, delay_s=0.05, shard_items=4)
    run_id = wait_for_parts(store, 1, process)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    told = json.loads(out)
    assert (process.returncode, told["state"], told["run_id"]) == (1, "interrupted", run_id)
    assert told["ok"] in range(4, ITEMS, 4)
    assert told["next"].startswith(f"zellige caption --resume {run_id} --store")
    assert "again to stop at once" in err
    done = zellige.json("caption", "--resume", run_id, "--store", store, "--no-prefect")
    assert done["ok"] == ITEMS


def test_second_interrupt_stops_at_once_and_leaves_a_run_to_resume(zellige: Any, folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    process = started(zellige, folder, store, delay_s=60, shard_items=4)
    end = time.monotonic() + 60
    while not (leased := list(store.glob("runs/*/leases/*shard*"))) and time.monotonic() < end:
        time.sleep(0.01)
    run_id = leased[0].parent.parent.name
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "again to stop at once" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    told = json.loads(out)
    assert (process.returncode, told["exit_code"], told["run_id"], told["state"]) == (1, 1, run_id, "interrupted")
    assert f"stopped at once; finish it with: zellige caption --resume {run_id} --store {store}" in err
    done = zellige.json("caption", "--resume", run_id, "--store", store, "--no-prefect")
    assert done["ok"] == ITEMS


@pytest.mark.parametrize("kill", [False, True])
def test_second_process_joins_a_run_and_takes_over_from_a_killed_one(
    zellige: Any, folder: Path, tmp_path: Path, rows: Rows, kill: bool
) -> None:
    store = tmp_path / "store"
    first = started(zellige, folder, store, delay_s=0.05, shard_items=2)
    run_id = wait_for_parts(store, 1, first)
    resume = ("caption", "--resume", run_id, "--store", store, "--no-prefect", "--json")
    second = zellige.start(*resume)
    if kill:
        wait_for_parts(store, 3, first)
        os.kill(first.pid, signal.SIGKILL)
    out, err = second.communicate(timeout=120)
    first.communicate(timeout=120)
    assert second.returncode == 0, out + err
    answered = rows(store, run_id)
    assert len({r["row_id"] for r in answered}) == len(answered) == ITEMS
    committed = [e["shard"] for e in Store(store).open_run(run_id).events() if e["kind"] == "committed"]
    assert len(committed) == len(set(committed))
