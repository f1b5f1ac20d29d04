"""Who is alive, who is gone, and who may take what they held."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace

import pytest

from zellige.data import leases, workers
from zellige.data.folder import LocalFolder, read_json, write_json
from zellige.data.leases import LeaseBook
from zellige.data.workers import SILENT_S, Roster, Worker


@pytest.fixture
def roster(tmp_path):
    return Roster(LocalFolder(tmp_path))


def stored(roster: Roster, worker: Worker, silent_s: float = 0.0) -> Worker:
    """``worker``'s file as its own process would have left it ``silent_s`` ago."""
    name = f"worker-{worker.name}.json"
    write_json(roster.folder, name, worker.__dict__)
    os.utime(roster.folder.at(name), (time.time() - silent_s,) * 2)
    return worker


def test_a_worker_joins_once_and_leaves_no_file(roster):
    me = roster.join()
    assert roster.join() is me
    assert list(roster.workers()) == [(me, True)]
    roster.leave()
    assert list(roster.workers()) == []
    assert roster.join().name != me.name  # and what it held before is free


def test_a_dropped_roster_leaves_too(tmp_path):
    Roster(LocalFolder(tmp_path)).join()
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_gone_or_another_with_its_number_is_dead(roster):
    me = roster.join()
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert roster.is_gone(stored(roster, replace(me, name="ended", pid=ended.pid)))
    assert roster.is_gone(stored(roster, replace(me, name="reused", start="another boot:1")))
    slow = replace(me, name="slow")  # it lives, so it may take its time
    assert not roster.is_gone(stored(roster, slow, silent_s=10 * SILENT_S))
    assert roster.is_gone(replace(me, name="has left"))


def test_a_killed_child_that_nobody_waited_for_is_dead(roster):
    child = subprocess.Popen(["sleep", "60"])
    me = roster.join()
    worker = stored(roster, replace(me, name="child", pid=child.pid, start=workers._start_of(child.pid) or ""))
    assert not roster.is_gone(worker)
    child.kill()
    deadline = time.monotonic() + 5
    while not roster.is_gone(worker) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert roster.is_gone(worker)
    child.wait()


def test_another_host_is_judged_by_its_heartbeat_alone(roster):
    me = roster.join()
    far = replace(me, host="elsewhere", pid=2**22 + 1)
    assert not roster.is_gone(stored(roster, replace(far, name="beats"), silent_s=SILENT_S - 10))
    assert roster.is_gone(stored(roster, replace(far, name="silent"), silent_s=SILENT_S + 10))


def test_the_heart_beats_and_comes_back_after_being_taken_for_dead(roster, monkeypatch):
    monkeypatch.setattr(workers, "HEARTBEAT_S", 0.02)
    me = roster.join()
    path = roster.folder.at(f"worker-{me.name}.json")
    os.utime(path, (0, 0))
    deadline = time.monotonic() + 5
    while path.stat().st_mtime == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert path.stat().st_mtime > 0
    roster.forget(me)
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert read_json(roster.folder, path.name) == me.__dict__
    roster.leave()
    time.sleep(0.1)
    assert not path.exists()


def test_a_forked_child_neither_speaks_for_its_parent_nor_says_goodbye_for_it(roster):
    me = roster.join()
    child = os.fork()
    if child == 0:
        roster.leave()
        os._exit(0 if roster.my_name != me.name else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(roster.workers()) == [(me, True)]


def test_a_claim_torn_by_a_kill_is_free_after_a_moment(roster, monkeypatch):
    book = LeaseBook(roster)
    (roster.folder.path / "shard-00000.0001.lease").touch()
    (roster.folder.path / "shard-00001.0001.lease").write_text('{"name": "half')
    assert book.claim(["shard-00000", "shard-00001"]) is None
    monkeypatch.setattr(leases, "TORN_S", 0.0)
    time.sleep(0.01)
    for what in ("shard-00000", "shard-00001"):
        claim = book.claim([what])
        assert claim is not None
        assert (claim.generation, claim.taken_from) == (2, "unknown")
        assert book.holds(claim)
        book.release(claim)
    assert not list(roster.folder.path.glob("*.lease"))


def test_who_was_taken_for_dead_gives_back_nothing_that_is_not_its_own(tmp_path):
    slow, quick, third = (LeaseBook(Roster(LocalFolder(tmp_path))) for _ in range(3))
    lost = slow.claim(["x"])
    slow._roster.leave()
    taken = quick.claim(["x"])
    assert taken is not None
    assert taken.generation == 2
    assert not slow.holds(lost)
    quick.release(taken)
    again = third.claim(["x"])
    assert again is not None
    assert again.file == lost.file  # the same name, another holder
    slow.release(lost)
    assert third.holds(again)
    assert not slow.holds(lost)
