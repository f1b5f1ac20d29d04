"""SIGKILL at any instant: what was committed stays, what was in hand is done again, and nothing is there twice.

Quick by default; ``ZELLIGE_TEST_LONG=1`` kills 200 times.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from zellige.data.ledger import Store

LONG = os.environ.get("ZELLIGE_TEST_LONG") == "1"
ITEMS, SHARD_ITEMS, QUESTIONS = 120, 4, 2

#: A worker as a flow has one: create or resume the run, answer what is left. Prints a line at every step.
WORKER = """
import sys
import time
from zellige.data.ledger import RunExists, Store
from zellige.data.schema import AnswerRow, Item, Question, Recipe

root, (items, shard_items, questions, delay_ms) = sys.argv[1], map(int, sys.argv[2:])
recipe = Recipe("ask", tuple(Question(f"q{n}", "?") for n in range(questions)), "", "off", {}, {}, "m", "f", "d")


def listing():
    for n in range(items):
        if n == items // 2:
            print("planning", flush=True)
        yield Item(f"file:///{n}.png")


def main():
    store = Store(root)
    try:
        run = store.create_run(recipe, listing(), shard_items=shard_items, inputs=[], run_id="r")
    except RunExists:
        run = store.open_run("r", recipe)
        run.plan(listing())
    print("planned", flush=True)
    while (lease := run.lease()) is not None:
        with lease:
            print("leased", lease.shard.index, flush=True)
            time.sleep(delay_ms / 1000)
            pairs = [(i, q) for i in lease.shard.items for q in recipe.questions]
            lease.commit([AnswerRow.of("r", recipe, i, q, "ok", answer="x") for i, q in pairs])
    print(run.finish("finished"), flush=True)
"""


def arguments(program: str, root: Path, items: int, shard_items: int, delay_ms: int = 0) -> list[str]:
    return [sys.executable, "-c", program, str(root), *map(str, (items, shard_items, QUESTIONS, delay_ms))]


def start(root: Path, items: int = ITEMS, delay_ms: int = 0) -> subprocess.Popen[bytes]:
    program = WORKER + "\nmain()"
    return subprocess.Popen(arguments(program, root, items, SHARD_ITEMS, delay_ms), stdout=subprocess.PIPE)


def wait_for(worker: subprocess.Popen[bytes], word: bytes) -> None:
    assert worker.stdout is not None
    for line in worker.stdout:
        if line.startswith(word):
            return
    pytest.fail(f"the worker ended and never said {word!r}")


def parts_of(root: Path) -> list[Path]:
    return sorted((root / "runs/r/parts").glob("shard-*.parquet"))


def assert_complete(root: Path, items: int) -> None:
    rows = [row for part in parts_of(root) for row in pq.read_table(part, columns=["row_id", "uri"]).to_pylist()]
    assert len(rows) == items * QUESTIONS
    assert len({row["row_id"] for row in rows}) == len(rows)
    assert {row["uri"] for row in rows} == {f"file:///{n}.png" for n in range(items)}


@pytest.mark.long
def test_killed_at_random_moments_and_resumed_every_row_is_there_once(tmp_path):
    chance = random.Random(0)
    tries, items = (200, 40 * ITEMS) if LONG else (8, 3 * ITEMS)
    kills, resumed_from = 0, 0
    for _ in range(tries):
        worker = start(tmp_path, items)
        assert worker.stdout is not None
        # Wait for some step of its life, then a little longer: the moment within the step is random.
        for _ in range(chance.choice([0, 1, 2, 3, 4, 8])):
            worker.stdout.readline()
        time.sleep(chance.random() * 0.03)
        worker.send_signal(signal.SIGKILL)
        kills += worker.wait() == -signal.SIGKILL
        worker.stdout.close()
        for part in parts_of(tmp_path):
            assert pq.read_table(part).num_rows == SHARD_ITEMS * QUESTIONS
        assert len(parts_of(tmp_path)) >= resumed_from  # what was committed stays
        resumed_from = len(parts_of(tmp_path))
    assert kills == tries
    assert resumed_from > 0
    assert Store(tmp_path).open_run("r").state() in ("crashed", "finished")
    final = start(tmp_path, items)
    assert final.communicate()[0].splitlines()[-1] == b"finished"
    assert_complete(tmp_path, items)
    assert not list((tmp_path / "runs/r/parts").glob(".*.tmp"))
    assert not list((tmp_path / "runs/r/leases").glob("worker-*.json"))


def test_two_workers_one_of_them_killed_share_the_run(tmp_path):
    doomed = start(tmp_path, delay_ms=60)
    wait_for(doomed, b"leased")
    other = start(tmp_path, delay_ms=30)
    wait_for(other, b"leased")
    wait_for(doomed, b"leased")
    doomed.kill()
    doomed.communicate()
    assert other.communicate()[0].splitlines()[-1] == b"finished"  # it took over what the other held
    assert_complete(tmp_path, ITEMS)
    leased = [e["shard"] for e in Store(tmp_path).open_run("r").events() if e["kind"] == "committed"]
    assert sorted(leased) == list(range(ITEMS // SHARD_ITEMS))  # and nothing was done twice


#: Runs the worker in forked children, and kills the n-th of them before the n-th time it touches the store's files.
EVERY_STEP = (
    WORKER
    + """
import os


def child(kill_at):
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    touched = 0

    def hook(event, arguments):
        nonlocal touched
        if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.utime") and str(arguments[0]).startswith(root):
            touched += 1
            if touched == kill_at:
                os.kill(os.getpid(), 9)

    sys.addaudithook(hook)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.fsync = lambda descriptor: None  # a kill is no power cut
    main()
    os._exit(0)


base, kill_at = root, 0
while True:
    kill_at += 1
    root = f"{base}/{kill_at}"
    killed = child(kill_at) == -9
    assert child(0) == 0, kill_at
    if not killed:
        break
print(kill_at)
"""
)


def test_killed_before_every_single_touch_of_a_file(tmp_path):
    items, shard_items = 3, 2
    program = arguments(EVERY_STEP, tmp_path, items, shard_items)
    steps = int(subprocess.run(program, check=True, capture_output=True).stdout)
    assert steps > 20
    for kill_at in range(1, steps + 1):
        root = tmp_path / str(kill_at)
        assert_complete(root, items)
        assert Store(root).open_run("r").state() == "finished"
