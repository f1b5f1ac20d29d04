"""A run against a small model of it: workers that come, lease, commit, die and wake up again, and parts that rot."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from zellige.data.folder import matching
from zellige.data.ledger import Lease, Run, Store
from zellige.data.schema import AnswerRow, Item, Question, Recipe

LONG = os.environ.get("ZELLIGE_TEST_LONG") == "1"
ITEMS, SHARD_ITEMS = 11, 3
SHARDS = 4
RECIPE = Recipe("ask", (Question("a", "?"), Question("b", "?")), "", "off", {}, {}, "m", "f", "d")


def rows_for(run: Run, lease: Lease) -> list[AnswerRow]:
    return [
        AnswerRow.of(run.run_id, RECIPE, item, question, "ok", answer="x")
        for item in lease.shard.items
        for question in RECIPE.questions
    ]


class LedgerMachine(RuleBasedStateMachine):
    """``done`` and ``held`` are what the ledger must say; every worker is a ``Run`` of its own over the same folder."""

    workers: Bundle[Run] = Bundle("workers")
    leases: Bundle[tuple[Run, Lease]] = Bundle("leases")
    late: Bundle[tuple[Run, Lease]] = Bundle("late")

    elsewhere = False

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.environment = mock.patch.dict(os.environ, XDG_CACHE_HOME=str(self.root))
        self.environment.start()
        self.patch = mock.patch("zellige.data.files.os.fsync")
        self.patch.start()
        self.store = Store(f"memory:/{self.root}" if self.elsewhere else self.root)
        self.watcher = self.store.create_run(
            RECIPE, (Item(f"file:///{n}") for n in range(ITEMS)), shard_items=SHARD_ITEMS, inputs=[], run_id="r"
        )
        self.watcher.close()
        self.parts = self.watcher.folder / "parts"
        self.done: set[int] = set()
        self.held: dict[int, Run] = {}
        self.opened: list[Run] = []
        self.aside = 0

    def teardown(self) -> None:
        try:
            for run in self.opened:
                run.close()
            worker = self.store.open_run("r", RECIPE)
            while (lease := worker.lease()) is not None:
                assert lease.commit(rows_for(worker, lease))
            assert worker.finish("finished") == "finished"
            rows = [r for i in range(SHARDS) for r in pq.read_table(worker.part_path(i)).to_pylist()]
            assert len({r["row_id"] for r in rows}) == len(rows) == ITEMS * 2
        finally:
            self.patch.stop()
            self.environment.stop()
            shutil.rmtree(self.root)

    @rule(target=workers)
    def open(self) -> Run:
        self.opened.append(self.store.open_run("r", RECIPE))
        return self.opened[-1]

    @rule(target=leases, worker=workers, index=st.one_of(st.none(), st.integers(0, SHARDS - 1)))
    def lease(self, worker: Run, index: int | None) -> object:
        free = [i for i in range(SHARDS) if i not in self.done and i not in self.held]
        expected = (free[0] if free else None) if index is None else (index if index in free else None)
        rotten = set() if expected is None else {expected} & self.rotten()
        lease = worker.lease(index)
        assert (None if lease is None else lease.shard.index) == expected
        if lease is None:
            return multiple()
        self.aside += len(rotten)
        self.held[lease.shard.index] = worker
        return (worker, lease)

    @rule(pair=consumes(leases))
    def commit(self, pair: tuple[Run, Lease]) -> None:
        worker, lease = pair
        if self.held.get(lease.shard.index) is not worker:
            return  # it died meanwhile: see ``wake``
        assert lease.commit(rows_for(worker, lease))
        self.done.add(lease.shard.index)
        del self.held[lease.shard.index]

    @rule(pair=consumes(leases))
    def give_back(self, pair: tuple[Run, Lease]) -> None:
        worker, lease = pair
        if self.held.get(lease.shard.index) is worker:
            lease.release()
            del self.held[lease.shard.index]

    @rule(target=late, pair=consumes(leases))
    def die(self, pair: tuple[Run, Lease]) -> tuple[Run, Lease]:
        """The worker's process ends: its claims stay behind, and nobody beats for it."""
        worker, _ = pair
        worker.close()
        self.held = {index: holder for index, holder in self.held.items() if holder is not worker}
        return pair

    @rule(pair=consumes(late))
    def wake(self, pair: tuple[Run, Lease]) -> None:
        """One that was only thought dead commits after all: harmless, whether its shard is free, held or done."""
        worker, lease = pair
        committed = lease.commit(rows_for(worker, lease))
        # An object store keeps the part that is there, be it rotten; then the shard is done again.
        kept = self.elsewhere and lease.shard.index in self.rotten()
        assert committed or lease.shard.index in self.done or kept
        if committed:
            self.done.add(lease.shard.index)

    @rule(index=st.integers(0, SHARDS - 1), keep=st.integers(0, 300))
    def rot(self, index: int, keep: int) -> None:
        name = f"shard-{index:05d}.parquet"
        if self.parts.has(name):
            rest = self.parts.read(name)[:keep]
            self.parts.put(name, lambda file: file.write(rest))
            self.done.discard(index)

    def rotten(self) -> set[int]:
        return {i for i in range(SHARDS) if i not in self.done and self.parts.has(f"shard-{i:05d}.parquet")}

    @invariant()
    def the_files_say_what_the_model_says(self) -> None:
        assert self.watcher.done_shards() == self.done
        progress = self.watcher.progress()
        assert progress.shards_done == len(self.done)
        assert progress.ok == sum(2 * self.watcher._plan.shard_size(i) for i in self.done)
        assert len(matching(self.watcher.folder / "aside", "*")) == self.aside


class ObjectLedgerMachine(LedgerMachine):
    """The same on an object store: one in this process's memory, which knows conditional writes."""

    elsewhere = True


TestLedger = pytest.mark.long(LedgerMachine.TestCase)
TestObjectLedger = pytest.mark.long(ObjectLedgerMachine.TestCase)
TestLedger.settings = TestObjectLedger.settings = settings(
    max_examples=300 if LONG else 15,
    stateful_step_count=60 if LONG else 25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
