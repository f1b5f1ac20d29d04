"""Rows that failed are answered again, and nothing else; a kill meanwhile loses nothing."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from zellige.data.catalog import Catalog
from zellige.data.ledger import LedgerError, Store, UnknownRun
from zellige.data.schema import AnswerRow, ErrorKind


def stored(run):
    return {r["row_id"]: r for i in range(run.shard_count) for r in pq.read_table(run.part_path(i)).to_pylist()}


def answered(run, items, answer, failing=()):
    return [
        AnswerRow.of(run.run_id, run.recipe, item, q, "failed", error_kind=ErrorKind.TRUNCATED, error="cut")
        if item.uri in failing
        else AnswerRow.of(run.run_id, run.recipe, item, q, "ok", answer=answer)
        for item in items
        for q in run.recipe.questions
    ]


@pytest.fixture
def run(new_run):
    made = new_run(items=10, shard_items=4)
    bad = {list(made.items())[1].uri}
    while (lease := made.lease()) is not None:
        lease.commit(answered(made, lease.shard.items, "first", bad))
    made.finish("finished")
    return made


def test_only_rows_that_failed_so_are_answered_again(run):
    before = stored(run)
    assert run.retry({"truncated"}) == len(run.recipe.questions)
    assert run.state() != "finished"
    with run.lease() as lease:
        assert [item.uri for item in lease.shard.items] == [list(run.items())[1].uri]
        lease.commit(answered(run, lease.shard.items, "second"))
    assert run.lease() is None
    run.finish("finished")
    after = stored(run)
    assert (run.state(), list(after)) == ("finished", list(before))
    changed = {k for k in before if before[k] != after[k]}
    assert changed == {k for k in before if before[k]["status"] == "failed"}
    assert {after[k]["answer"] for k in changed} == {"second"}
    assert run.progress().failed == 0


def test_other_kinds_are_left_alone(run):
    assert run.retry({"timeout"}) == 0
    assert run.state() == "finished"


def test_run_left_while_retrying_has_its_old_rows_and_goes_on(run, store):
    before = stored(run)
    run.retry({"truncated"})
    run.lease().release()
    again = store.open_run(run.run_id)
    assert stored(again) == before
    assert len(Catalog(store.root).query("SELECT row_id FROM answers")) == len(before)
    assert again.progress().failed == len(run.recipe.questions)
    with again.lease() as lease:
        lease.commit(answered(again, lease.shard.items, "second"))
    assert again.progress().failed == 0


def test_part_damaged_before_its_retry_is_answered_whole(run):
    run.retry({"truncated"})
    run.part_path(0).write_bytes(run.part_path(0).read_bytes()[:-20])
    assert run.bad_parts() == [run.part_path(0)]
    with run.lease() as lease:
        assert len(lease.shard.items) == 4
        lease.commit(answered(run, lease.shard.items, "second"))
    assert len(run.done_shards()) == run.shard_count


def test_deleting_a_run_is_refused_while_somebody_works_on_it(run, store: Store):
    other = store.open_run(run.run_id)
    other.retry({"truncated"})
    with pytest.raises(LedgerError, match="being worked on"):
        store.delete_run(run.run_id)
    other.close()
    store.delete_run(run.run_id)
    assert not any((store.root / "runs").iterdir())
    with pytest.raises(UnknownRun):
        store.delete_run(run.run_id)
