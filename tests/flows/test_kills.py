"""SIGKILL of a process of the command's own: the flow, or one that decodes. Nothing is lost, doubled or failed by it.

Quick by default; ``ZELLIGE_TEST_LONG=1`` kills 200 times.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from zellige.data.ledger import Store

pytestmark = pytest.mark.long

Draw = Callable[..., Path]
Rows = Callable[[Path, str], list[dict[str, Any]]]
LONG = os.environ.get("ZELLIGE_TEST_LONG") == "1"
ITEMS, SHARD_ITEMS = 40, 4
KILLS = 200 if LONG else 2


@pytest.fixture
def folder(draw: Draw) -> Path:
    for i in range(ITEMS):
        path = draw(f"{i:02}.png", (i, 0, 0), (16, 16))
    return path.parent


def processes() -> Iterator[tuple[int, int, str, str]]:
    """(process, its parent, state, command line) of all there are."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            yield int(folder.name), int(parent), state, (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue  # it ended meanwhile


def decoders(flow: int) -> list[int]:
    """The decode workers of the flow's process."""
    return [
        p for p, parent, state, line in processes() if parent == flow and state not in "ZX" and "decode_worker" in line
    ]


def alive(pid: int) -> bool:
    return any(p == pid and state not in "ZX" for p, _, state, _ in processes())


def begun(zellige: Any, folder: Path, store: Path) -> subprocess.Popen[str]:
    """The command, new or resumed; slow enough to be met at work."""
    runs = Store(store).run_ids()
    arguments: list[Any] = ["caption", *(["--resume", runs[0]] if runs else [folder]), "--workers", "2"]
    arguments += [] if runs else ["--shard-items", str(SHARD_ITEMS)]
    plain = ("--store", store, "--no-prefect", "--json", "--quiet")
    process: subprocess.Popen[str] = zellige.start(*arguments, *plain, FAKE_ENGINE_DELAY_S="0.03")
    return process


def parts(store: Path) -> list[Path]:
    return list(store.glob("runs/*/parts/shard-*.parquet"))


def work_on(process: subprocess.Popen[str], store: Path, shards: int) -> bool:
    """Wait until so many more shards are done; False where the command ended before."""
    wanted = len(parts(store)) + shards
    while process.poll() is None:
        if len(parts(store)) >= wanted:
            return True
        time.sleep(0.005)
    return False


def assert_whole(store: Path, rows: Rows) -> None:
    (run_id,) = Store(store).run_ids()
    run, answered = Store(store).open_run(run_id), rows(store, run_id)
    assert (run.state(), run.bad_parts()) == ("finished", [])
    assert len({row["row_id"] for row in answered}) == len({row["uri"] for row in answered}) == len(answered) == ITEMS
    assert {(row["status"], row["error"]) for row in answered} == {("ok", None)}
    assert {row["answer"] for row in answered} == {f"colour {n} 0 0" for n in range(ITEMS)}


def test_any_process_killed_at_any_moment_costs_no_item(zellige: Any, folder: Path, tmp_path: Path, rows: Rows) -> None:
    chance, kills, number = random.Random(0), 0, 0
    while kills < KILLS:
        number += 1
        store = tmp_path / f"store-{number}"
        while True:
            process = begun(zellige, folder, store)
            if kills >= KILLS:
                break
            if chance.random() < 0.3:
                time.sleep(chance.random() * 1.5)
            else:
                work_on(process, store, chance.choice([0, 1, 1, 2]))
                time.sleep(chance.random() * 0.1)
            if process.poll() is not None:
                break
            workers = decoders(process.pid)
            if workers and chance.random() < 0.4:
                os.kill(chance.choice(workers), signal.SIGKILL)
                kills += 1
                work_on(process, store, 1)
            process.kill()
            process.communicate()
            kills += 1
            end = time.monotonic() + 10
            while any(map(alive, workers)):
                assert time.monotonic() < end, "decode workers outlive their flow"
                time.sleep(0.01)
            for part in parts(store):
                assert pq.read_table(part).num_rows == SHARD_ITEMS
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, out + err
        assert_whole(store, rows)


def test_killed_decode_workers_fail_no_item_and_do_not_stop_the_run(
    zellige: Any, folder: Path, tmp_path: Path, rows: Rows
) -> None:
    chance, kills, number = random.Random(1), 0, 0
    while kills < KILLS:
        number += 1
        store = tmp_path / f"store-{number}"
        process = begun(zellige, folder, store)
        # Two shards on, whatever the last kill hit is answered: an image that kills two workers is the image's fault.
        while kills < KILLS and work_on(process, store, 2):
            time.sleep(chance.random() * 0.1)
            if workers := decoders(process.pid):
                os.kill(chance.choice(workers), signal.SIGKILL)
                kills += 1
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, out + err
        assert_whole(store, rows)
