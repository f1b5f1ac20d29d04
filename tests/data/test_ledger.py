"""Runs as files: whole or not there, resumable, and with errors that say what to do."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from zellige.data import files
from zellige.data.ledger import LedgerError, RecipeDiffers, RunExists, Store, StoreUnusable, UnknownRun
from zellige.data.schema import ANSWERS, SCHEMA_VERSION, ErrorKind, Item, Question


def all_rows(run):
    return [row for i in range(run.shard_count) for row in pq.read_table(run.part_path(i)).to_pylist()]


def kinds(run):
    return [event["kind"] for event in run.events()]


# --- making and opening


def test_a_run_is_planned_answered_and_finished(new_run, answer_all):
    run = new_run(items=10, shard_items=4)
    assert (run.planned, run.shard_count, run.state()) == (True, 3, "running")
    assert [len(s.items) for s in run.shards()] == [4, 4, 2]
    assert answer_all(run) == 3
    assert run.finish("finished") == "finished"
    progress = run.progress()
    assert (progress.items, progress.items_done, progress.rows, progress.shards_done) == (10, 10, 20, 3)
    assert (progress.ok, progress.failed, progress.skipped) == (18, 2, 0)
    rows = all_rows(run)
    assert len({row["row_id"] for row in rows}) == 20
    assert [row["uri"] for row in rows[::2]] == [item.uri for item in run.items()]
    assert pq.read_schema(run.part_path(0)).equals(ANSWERS)
    assert run.lease() is None
    assert not list((run.path / "leases").iterdir())


def test_items_come_back_as_they_were_given(store, recipe_with):
    items = [
        Item("file:///a%FF.png", "m", 3, 2, 10, 20, 30, ErrorKind.NOT_FOUND, "gone \udce9", (("id", "7"), ("id", "8"))),
        Item("file:///b.png"),
    ]
    run = store.create_run(recipe_with(), items, shard_items=1, inputs=[])
    first, second = run.items()
    assert second == items[1]
    assert first == Item(**{**items[0].__dict__, "error": "gone \\udce9"})
    assert isinstance(first.error_kind, ErrorKind)
    assert run.shard(0).items == (first,)
    with pytest.raises(IndexError):
        run.shard(2)


@pytest.mark.parametrize(("items", "shard_items"), [(0, 4), (1, 1), (9000, 7), (5000, 4999), (4096, 1), (10, 100_000)])
def test_shards_partition_the_items_at_every_size(new_run, items, shard_items):
    run = new_run(items=items, shard_items=shard_items)
    assert run.shard_count == -(-items // shard_items)
    stored = list(run.items())
    assert len(stored) == items
    last = run.shard_count - 1
    for index in {0, last // 2, last} if items else ():
        assert run.shard(index).items == tuple(stored[index * shard_items : (index + 1) * shard_items])


def test_a_run_of_nothing_is_finished_at_once(new_run):
    run = new_run(items=0)
    assert run.lease() is None
    assert run.finish("finished") == "finished"


def test_planning_streams(store, recipe_with):
    def stream():
        for n in range(30_000):
            yield Item(f"file:///{'x' * 400}/{n}.png")

    tracemalloc.start()
    try:
        run = store.create_run(recipe_with(), stream(), shard_items=100, inputs=[])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert run.shard_count == 300
    assert peak < 10_000_000  # all of them would be over 20 MB


def test_what_was_asked_comes_back(store, recipe_with, items_of):
    recipe = recipe_with(questions=(Question("q", "caf\u00e9 \u2028?"),))
    made = store.create_run(
        recipe,
        items_of(1),
        shard_items=2,
        inputs=["file:///a%FF"],
        include=["*.png"],
        exclude=["x"],
        limit=5,
        run_id="mine",
    )
    run = Store(store.root).open_run("mine", recipe)
    assert run.recipe.fingerprint == recipe.fingerprint
    assert (run.inputs, run.include, run.exclude, run.limit) == (("file:///a%FF",), ("*.png",), ("x",), 5)
    assert (run.shard_items, run.started_at) == (2, made.started_at)


def test_an_unknown_run_names_near_ones(store, new_run):
    with pytest.raises(UnknownRun, match="no runs in"):
        store.open_run("anything")
    new_run(run_id="20260101-000000-caption-abcd")
    with pytest.raises(UnknownRun, match=r"did you mean 20260101-000000-caption-abcd\?"):
        store.open_run("20260101-000000-caption-abce")
    with pytest.raises(UnknownRun, match="the latest is 20260101"):
        store.open_run("zzz")
    for name in ("../x", "", ".", "a/b", "a\0b"):
        with pytest.raises(UnknownRun):
            store.open_run(name)


def test_another_recipe_is_refused_with_the_differences(store, new_run, recipe_with):
    run = new_run()
    with pytest.raises(RecipeDiffers, match='tiling: 640 != "auto"') as caught:
        store.open_run(run.run_id, recipe_with(tiling=640))
    assert caught.value.differences == ['tiling: 640 != "auto"']
    assert store.open_run(run.run_id, recipe_with()).run_id == run.run_id


def test_names_of_runs(store, new_run):
    new_run(run_id="a")
    with pytest.raises(RunExists, match="run a exists"):
        new_run(run_id="a")
    for name in ("../a", ".a", "a b", "x" * 200):
        with pytest.raises(ValueError, match="run id"):
            new_run(run_id=name)
    made = new_run()
    assert store.run_ids() == sorted(["a", made.run_id])
    assert not [p for p in (store.root / "runs").iterdir() if p.name.startswith(".")]
    with pytest.raises(ValueError, match="shard_items"):
        new_run(shard_items=0)


# --- leases and commits


def test_two_workers_share_a_run_and_each_shard_is_answered_once(store, new_run, rows_of):
    first = new_run(items=20, shard_items=1)
    second = store.open_run(first.run_id)
    taken: list[int] = []

    def work(run):
        while (lease := run.lease()) is not None:
            with lease:
                taken.append(lease.shard.index)
                lease.commit(rows_of(run, lease.shard))

    threads = [threading.Thread(target=work, args=(run,)) for run in (first, second, first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(20))


def test_a_lease_keeps_others_away_and_is_given_back(store, new_run, rows_of):
    run = new_run(items=2, shard_items=1)
    other = store.open_run(run.run_id)
    with run.lease() as lease:
        assert lease.shard.index == 0
        assert other.lease(0) is None
        with other.lease() as second:
            assert second.shard.index == 1
            assert run.lease() is None
    with other.lease(0) as again:
        assert again.commit(rows_of(other, again.shard))
    assert run.lease(0) is None
    assert run.done_shards() == {0}


def test_rows_that_are_not_the_shards_are_refused_and_nothing_is_written(new_run, rows_of, recipe_with):
    run = new_run(items=4, shard_items=2)
    foreign = rows_of(run, run.shard(1))
    with run.lease(0) as lease:
        rows = rows_of(run, lease.shard)
        for wrong in (rows[:-1], [*rows, rows[0]], [*rows[:-1], foreign[0]], []):
            with pytest.raises(ValueError, match="needs 4 rows"):
                lease.commit(wrong)
        rows[0].run_id = "another"
        with pytest.raises(ValueError, match="needs 4 rows"):
            lease.commit(rows)
    assert not list((run.path / "parts").iterdir())
    with run.lease(0) as lease:
        assert lease.commit(list(reversed(rows_of(run, lease.shard))))
    assert [r["question_id"] for r in pq.read_table(run.part_path(0)).to_pylist()] == ["colour", "shape"] * 2


@pytest.mark.parametrize("damage", ["cut", "empty", "magic", "short", "text"])
def test_a_part_that_is_no_good_is_moved_aside_and_done_again(new_run, rows_of, answer_all, damage):
    run = new_run(items=4, shard_items=2)
    answer_all(run)
    part = run.part_path(1)
    whole = part.read_bytes()
    if damage == "short":  # readable, but a row is missing
        table = pq.read_table(part)
        pq.write_table(table.slice(0, 3), part)
    else:
        part.write_bytes({"cut": whole[:-20], "empty": b"", "magic": b"PAR1", "text": b"hello"}[damage])
    bad = part.read_bytes()
    assert run.done_shards() == {0}
    assert part.exists()  # looking changes nothing
    assert answer_all(run) == 1
    assert run.done_shards() == {0, 1}
    assert [p.read_bytes() for p in (run.path / "aside").iterdir()] == [bad]
    assert "part_set_aside" in kinds(run)


def test_a_late_commit_never_makes_a_second_part(store, new_run, rows_of, monkeypatch):
    """A worker that was silent for too long wakes up: the part that was written in the meantime stays."""
    run = new_run(items=1, shard_items=1)
    slow = run.lease()
    other = store.open_run(run.run_id)
    monkeypatch.setattr(other._roster, "is_gone", lambda worker, now=None: True)
    quick = other.lease()
    assert quick is not None
    assert "lease_taken_over" in kinds(run)
    assert quick.commit(rows_of(other, quick.shard))
    before = run.part_path(0).read_bytes()
    assert slow.commit(rows_of(run, slow.shard)) is False
    assert run.part_path(0).read_bytes() == before
    assert "late_commit_dropped" in kinds(run)
    assert not list((run.path / "leases").glob("*.lease"))


def test_a_late_commit_is_welcome_while_nobody_else_has_one(store, new_run, rows_of, monkeypatch):
    run = new_run(items=1, shard_items=1)
    slow = run.lease()
    other = store.open_run(run.run_id)
    monkeypatch.setattr(other._roster, "is_gone", lambda worker, now=None: True)
    quick = other.lease()
    assert slow.commit(rows_of(run, slow.shard)) is True
    assert quick.commit(rows_of(other, quick.shard)) is True  # whole for whole
    assert len(all_rows(run)) == 2
    assert run.done_shards() == {0}


# --- planning that was killed


def test_a_run_killed_while_planning_is_planned_again(store, recipe_with, items_of, answer_all):
    def dies():
        yield from items_of(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.create_run(recipe_with(), dies(), shard_items=2, inputs=[], run_id="r")
    run = store.open_run("r")
    assert not run.planned
    assert run.done_shards() == set()
    assert run.progress().items == 0
    (run.path / ".items.parquet.abc.tmp").write_bytes(b"half")
    assert run.plan(items_of(5)) == 5
    assert run.plan(items_of(9)) == 5  # it keeps what it has
    assert not list(run.path.glob(".*.tmp"))
    assert answer_all(run) == 3


def test_two_do_not_plan_at_once(store, recipe_with, items_of):
    def nosy():
        with pytest.raises(LedgerError, match="another process is planning"):
            store.open_run("r").plan(items_of(1))
        yield from items_of(2)

    assert store.create_run(recipe_with(), nosy(), shard_items=2, inputs=[], run_id="r").shard_count == 1


def test_a_run_without_its_recipe_is_never_seen(store, new_run, monkeypatch):
    monkeypatch.setattr("zellige.data.folder.write_whole", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        new_run(run_id="r")
    assert store.run_ids() == []
    with pytest.raises(UnknownRun):
        store.open_run("r")


# --- how a run stands


def test_states_are_what_the_files_say(store, new_run, answer_all):
    run = new_run(items=4, shard_items=2)
    seen = Store(store.root).open_run(run.run_id)
    assert seen.state() == "running"
    assert run.finish("interrupted") == "interrupted"
    assert run.finish("failed", "the engine is gone") == "failed"
    assert seen.outcome()["error"] == "the engine is gone"
    with run.lease():
        assert seen.state() == "running"
    assert answer_all(run) == 2
    assert seen.state() == "finished"  # all is there, whatever was last said and whoever still lives
    run.close()
    assert seen.state() == "finished"


def test_finished_is_not_believed_while_shards_are_left(new_run):
    run = new_run()
    assert run.finish("finished") == "interrupted"


HOLDER = """
import os, sys, time
from zellige.data.ledger import Store
root, run_id, how = sys.argv[1:]
lease = Store(root).open_run(run_id).lease()
print(lease.shard.index, flush=True)
if how == "die":
    os.kill(os.getpid(), 9)
if how == "wait":
    time.sleep(60)
"""


def hold(store, run, how):
    """A process that has taken shard 0 and then dies, leaves or waits."""
    arguments = [sys.executable, "-c", HOLDER, str(store.root), run.run_id, how]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"0\n"
    return process


@pytest.mark.parametrize("how", ["die", "leave", "wait"])
def test_what_a_process_held_is_free_as_soon_as_it_is_gone(store, new_run, answer_all, how):
    run = new_run(items=2, shard_items=1)
    run.close()
    process = hold(store, run, how)
    if how == "wait":
        assert run.state() == "running"
        assert run.lease(0) is None
        with run.lease() as lease:
            assert lease.shard.index == 1
        run.close()
        process.kill()
    process.communicate()
    assert run.state() == ("interrupted" if how == "leave" else "crashed")
    assert answer_all(run) == 2
    assert run.finish("finished") == "finished"
    assert not list((run.path / "leases").iterdir())
    if how != "leave":
        assert {"worker_gone", "lease_taken_over"} <= set(kinds(run))


# --- events and throughput


def test_events_of_all_writers_in_order_even_with_odd_text_and_a_torn_end(store, new_run):
    run = new_run()
    other = store.open_run(run.run_id)
    run.event("note", text="a\u2028b\u0085c \udce9\n")
    other.event("note", text="second")
    with (run.path / "events" / f"{run._roster.my_name}.jsonl").open("ab") as file:
        file.write(b'{"at": "2')
    notes = [e for e in run.events() if e["kind"] == "note"]
    assert [e["text"] for e in notes] == ["a\u2028b\u0085c \udce9\n", "second"]
    assert len({e["worker"] for e in notes}) == 2


def test_throughput_adds_up_over_workers_and_refuses_what_it_does_not_know(store, new_run):
    run = new_run()
    run.write_throughput({"items": 1, "engine_s": 0.5})
    run.write_throughput({"items": 3, "engine_s": 1.5})
    store.open_run(run.run_id).write_throughput({"items": 4, "tiles": None})
    sums = run.throughput()
    assert (sums["items"], sums["engine_s"], sums["tiles"], sums["images"], sums["workers"]) == (7, 1.5, 0, 0, 2)
    with pytest.raises(ValueError, match="no throughput column speed; there are items"):
        run.write_throughput({"speed": 1})
    next((run.path / "health").iterdir()).write_bytes(b"PAR1")
    with pytest.raises(StoreUnusable, match="is damaged"):
        run.throughput()


# --- stores that cannot be written


def test_a_full_disk_says_so_loses_nothing_and_leaves_nothing(new_run, rows_of, monkeypatch):
    run = new_run(items=4, shard_items=2)
    with run.lease() as lease:
        lease.commit(rows_of(run, lease.shard))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with run.lease() as lease, monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        with pytest.raises(
            StoreUnusable, match=r"cannot write .*shard-00001.parquet: the disk is full; free some space"
        ):
            lease.commit(rows_of(run, lease.shard))
    assert sorted(p.name for p in (run.path / "parts").iterdir()) == ["shard-00000.parquet"]
    assert run.done_shards() == {0}
    with run.lease() as lease:
        assert lease.shard.index == 1
        assert lease.commit(rows_of(run, lease.shard))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_store_that_may_not_be_written_says_so(store, new_run, monkeypatch, number):
    def refuse(self: Path, *_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(
        StoreUnusable, match=f"cannot create .*: {os.strerror(number)}; name a store that you may write"
    ):
        new_run()


def test_a_file_where_the_store_should_be_says_so(tmp_path, recipe_with, items_of):
    (tmp_path / "store").write_text("a file")
    with pytest.raises(StoreUnusable, match="Not a directory"):
        Store(tmp_path / "store").create_run(recipe_with(), items_of(1), shard_items=1, inputs=[])
    with pytest.raises(StoreUnusable, match="no store can be there"):
        Store("gopher://bucket/x")
    with pytest.raises(StoreUnusable, match="UTF-8"):
        Store(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))


def test_damaged_files_of_a_run_are_named(store, new_run):
    run = new_run(run_id="r")
    recipe = (run.path / "recipe.json").read_text()
    (run.path / "items.parquet").write_bytes((run.path / "items.parquet").read_bytes()[:-20])
    with pytest.raises(StoreUnusable, match=r"items\.parquet is damaged"):
        store.open_run("r").shard(0)
    for text in (recipe[:-20], "[]", json.dumps({"schema_version": 1}), recipe.replace('"ask"', "3, 4")):
        (run.path / "recipe.json").write_text(text)
        with pytest.raises(StoreUnusable, match=r"recipe\.json is damaged"):
            store.open_run("r")
    (run.path / "recipe.json").write_text(recipe.replace(f'"schema_version": {SCHEMA_VERSION}', '"schema_version": 99'))
    with pytest.raises(StoreUnusable, match="schema version 99"):
        store.open_run("r")


def test_a_store_may_have_any_letters_in_its_path(tmp_path, recipe_with, items_of, answer_all):
    run = Store(tmp_path / "st[o]re *?#%20 é").create_run(recipe_with(), items_of(2), shard_items=1, inputs=[])
    assert answer_all(run) == 2
    assert len(all_rows(run)) == 4
