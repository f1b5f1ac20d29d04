"""The store on an object store: a real S3-speaking server, workers killed on it, and a storage that misbehaves."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from zellige.data import objects, workers
from zellige.data.catalog import Catalog
from zellige.data.files import StoreUnusable
from zellige.data.ledger import Run, RunExists, Store
from zellige.data.objects import ObjectFolder
from zellige.data.sources import storage

LONG = os.environ.get("ZELLIGE_TEST_LONG") == "1"
ITEMS, SHARD_ITEMS, QUESTIONS = 24, 4, 2


def beside(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def memory() -> Store:
    return Store(f"memory://{uuid.uuid4()}/store")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("s3fs", reason="s3fs is not installed (pip install 'zellige[s3]')")
    s3_server, folder = beside("s3_server"), tmp_path_factory.mktemp("s3")
    if problem := s3_server.why_not(folder):
        pytest.skip(problem)
    with s3_server.s3_server(folder) as running:
        yield running


def use(server: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket of this test's own on ``server``, which the usual variables point at; its address."""
    import s3fs

    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(storage, "_SYSTEMS", {})
    s3fs.S3FileSystem.clear_instance_cache()
    bucket = f"bucket-{uuid.uuid4()}"
    storage.filesystem("s3://").mkdir(bucket)
    return f"s3://{bucket}"


@pytest.fixture
def bucket(server: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    return use(server, monkeypatch)


def start(address: str, delay_ms: int = 0) -> subprocess.Popen[bytes]:
    killed = beside("test_killed")
    program = killed.WORKER + "\nmain()"
    command = killed.arguments(program, address, ITEMS, SHARD_ITEMS, delay_ms)
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def said(worker: subprocess.Popen[bytes], word: bytes) -> None:
    assert worker.stdout is not None
    assert any(line.startswith(word) for line in worker.stdout), f"the worker ended and never said {word!r}"


def assert_complete(run: Run) -> None:
    assert run.state() == "finished"
    shards = range(run.shard_count)
    rows = [row for path in run.part_paths(shards) for row in pq.read_table(path).to_pylist()]
    assert len(rows) == len({row["row_id"] for row in rows}) == ITEMS * QUESTIONS


@pytest.mark.long
@pytest.mark.parametrize("step", [b"leased 2", *([b"planning", b"planned"] if LONG else [])])
def test_a_worker_killed_on_s3_leaves_a_run_that_the_next_one_finishes(bucket: str, step: bytes) -> None:
    worker = start(f"{bucket}/a b", delay_ms=50)
    said(worker, step)
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    run = Store(f"{bucket}/a b").open_run("r")
    assert run.state() == "crashed"
    committed = run.done_shards()
    assert len(committed) == (2 if step == b"leased 2" else 0)
    assert start(f"{bucket}/a b").communicate()[0].splitlines()[-1] == b"finished"
    assert_complete(run)
    done = [event["shard"] for event in run.events() if event["kind"] == "committed"]
    assert sorted(done) == list(range(run.shard_count))  # nothing was done twice


def test_two_workers_share_a_run_on_s3_and_one_takes_over_what_the_other_dies_with(bucket: str) -> None:
    doomed = start(bucket, delay_ms=400)
    said(doomed, b"leased")
    other = start(bucket, delay_ms=100)
    said(other, b"leased")
    doomed.kill()
    doomed.communicate()
    assert other.communicate()[0].splitlines()[-1] == b"finished"
    run = Store(bucket).open_run("r")
    assert_complete(run)
    assert [event["kind"] for event in run.events()].count("committed") == run.shard_count


def test_a_worker_of_another_machine_is_judged_by_its_heartbeat(
    bucket: str, recipe_with: Any, items_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(bucket)
    monkeypatch.setattr(workers, "HEARTBEAT_S", 0.3)
    silent = store.create_run(recipe_with(), items_of(4), shard_items=4, inputs=[], run_id="r")
    lease = silent.lease()
    assert lease is not None
    monkeypatch.setattr(workers, "this_host", lambda: "another machine")
    other = store.open_run("r")
    monkeypatch.setattr(workers, "SILENT_S", 3.0)  # times of S3 are whole seconds
    assert other.lease() is None
    assert silent._roster._leave is not None
    heart = silent._roster._leave.peek()[1].__self__  # type: ignore[index,union-attr]
    heart._stopped.set()
    assert until(lambda: other.lease() is not None)
    assert "lease_taken_over" in {event["kind"] for event in other.events()}
    heart._stopped.clear()


def until(true: Callable[[], bool], within_s: float = 10.0) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.1)
    return False


def test_a_storage_without_conditional_writes_is_refused(
    tmp_path: Path, memory: Store, monkeypatch: pytest.MonkeyPatch, server: Any
) -> None:
    memory.check_writable()
    system = storage.filesystem("memory://")
    put = system.pipe_file
    with monkeypatch.context() as patch:
        patch.setattr(system, "pipe_file", lambda key, data, mode="": put(key, data), raising=False)
        with pytest.raises(StoreUnusable, match="knows no conditional writes"):
            memory.check_writable()
    monkeypatch.setenv("ZELLIGE_PLAIN_SWIFT", "1")  # it says so itself
    with beside("s3_server").s3_server(tmp_path) as plain:
        store = Store(use(plain, monkeypatch))
        with pytest.raises(StoreUnusable, match="knows no conditional writes"):
            store.check_writable()
    with pytest.raises(StoreUnusable, match="no such bucket"):
        Store(f"{use(server, monkeypatch)}-missing").check_writable()


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``failing(n, after)``: the next n writes of the memory storage fail, having been made where ``after``."""
    monkeypatch.setattr(objects, "_PAUSE_S", 0.001)
    system = storage.filesystem("memory://")

    def fail(count: int, *, after: bool) -> None:
        left = count
        for name in ("pipe_file", "put_file"):
            call = getattr(system, name)

            def failing_call(*given: Any, call: Any = call, **named: Any) -> Any:
                nonlocal left
                left -= 1
                if left >= 0 and not after:
                    raise ConnectionError("no route to the storage")
                done = call(*given, **named)
                if left >= 0:
                    raise ConnectionError("no route to the storage")
                return done

            monkeypatch.setattr(system, name, failing_call, raising=False)

    return fail


@pytest.mark.parametrize("after", [False, True])
def test_a_request_whose_answer_is_lost_is_made_again_and_counts_once(
    memory: Store, recipe_with: Any, items_of: Any, rows_of: Any, failing: Any, after: bool
) -> None:
    memory.check_writable()
    failing(3, after=after)
    run = memory.create_run(recipe_with(), items_of(4), shard_items=4, inputs=[], run_id="r")
    failing(2, after=after)
    lease = run.lease()
    assert lease is not None
    failing(2, after=after)
    assert lease.commit(rows_of(run, lease.shard))
    assert run.finish("finished") == "finished"
    assert [event["kind"] for event in run.events()] == ["planned", "committed", "finish"]
    with pytest.raises(RunExists):
        memory.create_run(recipe_with(), items_of(4), shard_items=4, inputs=[], run_id="r")


def test_a_storage_that_stays_away_is_told_and_loses_nothing(
    memory: Store, recipe_with: Any, items_of: Any, rows_of: Any, failing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = memory.create_run(recipe_with(), items_of(8), shard_items=4, inputs=[], run_id="r")
    with run.lease() as lease:
        lease.commit(rows_of(run, lease.shard))
    lease = run.lease()
    with monkeypatch.context() as patch:
        patch.setattr(objects, "PATIENT_S", 0.02)
        patch.setattr(objects, "FIRST_PATIENT_S", 0.02)
        patch.setattr(storage.filesystem("memory://"), "put_file", _away, raising=False)
        with pytest.raises(StoreUnusable, match="nothing committed is lost"):
            lease.commit(rows_of(run, lease.shard))
    assert run.done_shards() == {0}
    assert lease.commit(rows_of(run, lease.shard))
    assert run.state() == "finished"


def _away(*_: Any, **__: Any) -> None:
    raise ConnectionError("no route to the storage")


def test_a_late_part_does_not_replace_the_one_that_came_before(
    memory: Store, recipe_with: Any, items_of: Any, rows_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = memory.create_run(recipe_with(), items_of(4), shard_items=4, inputs=[], run_id="r")
    lease, other = run.lease(), memory.open_run("r")
    monkeypatch.setattr(other._roster, "is_gone", lambda worker, now=None: True)
    taken = other.lease()
    monkeypatch.setattr(run._leases, "holds", lambda claim: True)  # as it was when it looked
    assert taken.commit(rows_of(other, taken.shard))
    first = run.part_path(0).read_bytes()
    assert not lease.commit(rows_of(run, lease.shard))
    assert run.part_path(0).read_bytes() == first


def test_events_of_a_long_life_are_several_objects_and_are_read_in_order(memory: Store) -> None:
    folder = ObjectFolder(f"{memory.address}/events", memory.root)
    lines = [b"%06d\n" % number for number in range(objects._LONG_BYTES // 7 + 10)]
    for at in range(0, len(lines), 1000):
        folder.append("w.jsonl", b"".join(lines[at : at + 1000]))
    folder.append("w.jsonl", b"last\n")
    assert sorted(folder.names()) == ["w.0001.jsonl", "w.0002.jsonl"]
    assert folder.read("w.0001.jsonl") + folder.read("w.0002.jsonl") == b"".join([*lines, b"last\n"])


def test_what_is_read_here_is_what_the_storage_holds_now(memory: Store) -> None:
    folder = ObjectFolder(f"{memory.address}/parts", memory.root / "parts")
    for content in (b"one", b"two"):
        folder.put("a", lambda file, c=content: file.write(c))
        (path,) = folder.fetch(["a"])
        assert path.read_bytes() == content
    assert len(list(folder.path.iterdir())) == 1
    with pytest.raises(FileNotFoundError):
        folder.fetch(["b"])


def test_a_deleted_run_leaves_no_object_and_no_index_is_needed(
    bucket: str, recipe_with: Any, items_of: Any, answer_all: Any
) -> None:
    store = Store(f"{bucket}/deep/er")
    run = store.create_run(recipe_with(), items_of(10), shard_items=4, inputs=[])
    answer_all(run)
    run.finish("finished")
    catalog = Catalog(store.address)
    assert catalog.record(run)
    assert [row["state"] for row in catalog.runs()] == ["finished"]
    assert not catalog.path.exists()
    assert catalog.query("SELECT count(*) AS n FROM answers") == [{"n": 20}]
    assert run.errors() == {"truncated": 2}
    assert catalog.rebuild() == 1
    assert catalog.runs()[0]["failed"] == 2
    assert run.retry(["truncated"]) == 2
    assert catalog.runs()[0]["state"] != "finished"  # the index does not hide it
    run.close()
    store.delete_run(run.run_id)
    assert store.run_ids() == []
    assert storage.filesystem("s3://").find(bucket.removeprefix("s3://")) == []
