"""The index may be missing, locked or damaged: what it is asked is answered from the files all the same."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from zellige.data import catalog as catalog_module
from zellige.data.catalog import Catalog, CatalogError
from zellige.data.ledger import Store, StoreUnusable, UnknownRun
from zellige.data.schema import ANSWERS

COUNTS = {"items": 10, "items_done": 10, "rows": 20, "ok": 18, "failed": 2, "skipped": 0}


@pytest.fixture
def catalog(store):
    return Catalog(store.root)


def counts(row):
    return {key: row[key] for key in COUNTS}


def in_index(path: Path, sql: str):
    with duckdb.connect(str(path), read_only=True) as index:
        return index.execute(sql).fetchall()


@contextmanager
def locked(path: Path):
    """Another process holds the index."""
    program = f"import duckdb, sys; c = duckdb.connect({str(path)!r}); print('held', flush=True); sys.stdin.read()"
    holder = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    try:
        yield holder
    finally:
        holder.communicate()


def test_runs_are_listed_without_any_index_and_while_a_run_is_at_work(store, catalog, new_run, answer_all):
    assert catalog.runs() == []
    assert catalog.query("SELECT count(*) AS n FROM answers") == [{"n": 0}]
    done = new_run(run_id="b")
    answer_all(done)
    done.finish("finished")
    time.sleep(0.002)
    at_work = new_run(run_id="a")
    rows = catalog.runs()
    assert at_work.state() == "running"
    assert [(r["run_id"], r["state"], r["flow"]) for r in rows] == [("b", "finished", "ask"), ("a", "running", "ask")]
    assert counts(rows[0]) == COUNTS
    assert rows[0]["inputs"] == ["file:///images"]
    assert rows[0]["started_at"] < rows[0]["ended_at"]
    assert not catalog.path.exists()
    assert catalog.run("b")["throughput"]["items"] == 0
    with pytest.raises(UnknownRun):
        catalog.run("c")


def test_answers_are_asked_in_sql_over_all_runs(store, catalog, new_run, answer_all):
    for name in ("x", "y"):
        answer_all(new_run(run_id=name))
    asked = catalog.query(
        "SELECT a.run_id, r.flow, count(*) AS n FROM answers a JOIN runs r USING (run_id) "
        "WHERE status = ? GROUP BY ALL ORDER BY 1",
        ["failed"],
    )
    assert asked == [{"run_id": "x", "flow": "ask", "n": 2}, {"run_id": "y", "flow": "ask", "n": 2}]
    assert catalog.query("SELECT DISTINCT run_id FROM answers", run_id="y") == [{"run_id": "y"}]
    columns = catalog.query("SELECT column_name FROM (DESCRIBE answers)")
    assert [c["column_name"] for c in columns] == ANSWERS.names
    with pytest.raises(CatalogError, match="nothing"):
        catalog.query("SELECT nothing FROM answers")


def test_recording_makes_an_index_that_duckdb_alone_can_ask(store, catalog, new_run, answer_all):
    run = new_run(run_id="r")
    assert catalog.record(run) is True  # before there is any part
    assert in_index(catalog.path, "SELECT count(*) FROM answers") == [(0,)]
    answer_all(run)
    run.finish("finished")
    assert catalog.record(run) is True
    assert in_index(catalog.path, "SELECT run_id, state, ok, failed FROM runs") == [("r", "finished", 18, 2)]
    assert in_index(catalog.path, "SELECT count(DISTINCT row_id) FROM answers") == [(20,)]
    assert not list(store.root.glob("*.wal"))


def test_the_index_is_believed_only_while_the_files_are_as_they_were(store, catalog, new_run, answer_all):
    run = new_run(run_id="r")
    answer_all(run)
    run.finish("finished")
    catalog.record(run)
    run.part_path(0).unlink()
    assert (catalog.runs()[0]["state"], catalog.runs()[0]["ok"]) == ("interrupted", 10)


def test_recording_takes_in_what_the_index_lacks(store, catalog, new_run, answer_all):
    for name in ("a", "b"):
        answer_all(new_run(run_id=name))
    catalog.record(store.open_run("b"))
    assert in_index(catalog.path, "SELECT run_id FROM runs") == [("a",), ("b",)]


@pytest.mark.parametrize("content", [b"", b"garbage" * 5000])
def test_a_damaged_index_is_moved_aside_and_made_anew(store, catalog, new_run, answer_all, content):
    run = new_run(run_id="r")
    answer_all(run)
    catalog.path.write_bytes(content)
    assert catalog.runs()[0]["ok"] == 18
    assert catalog.record(run) is True
    assert in_index(catalog.path, "SELECT ok FROM runs") == [(18,)]
    aside = [p for p in store.root.iterdir() if ".damaged-" in p.name]
    assert [p.read_bytes() for p in aside] == [content]
    assert "index_rebuilt" in [e["kind"] for e in run.events()]


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_log_that_was_cut_loses_nothing(store, catalog, new_run, answer_all, damage):
    """A process dies with the index open: its log is damaged, and records in it are lost without a word."""
    answer_all(new_run(run_id="a"))
    program = (
        "import os; from zellige.data.catalog import Catalog, _create; import duckdb\n"
        f"c = Catalog({str(store.root)!r}); i = duckdb.connect(str(c.path))\n"
        "i.execute(\"SET checkpoint_threshold = '1GB'\")\n"
        "c._update(i); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    wal = Path(f"{catalog.path}.wal")
    log = bytearray(wal.read_bytes())
    log[len(log) // 2] ^= 0xFF
    wal.write_bytes(bytes(log) if damage == "flipped" else bytes(log)[: len(log) // 2])
    if damage == "gone":
        wal.unlink()
    run = new_run(run_id="b")
    answer_all(run)
    assert [r["ok"] for r in catalog.runs()] == [18, 18]
    assert catalog.record(run) is True
    assert in_index(catalog.path, "SELECT run_id, ok FROM runs") == [("a", 18), ("b", 18)]
    assert in_index(catalog.path, "SELECT count(*) FROM answers") == [(40,)]


def test_a_locked_index_holds_nobody_up(store, catalog, new_run, answer_all, monkeypatch):
    monkeypatch.setattr(catalog_module, "_RETRIES", 2)
    monkeypatch.setattr(catalog_module, "_WAIT_S", 0.01)
    run = new_run(run_id="r")
    answer_all(run)
    run.finish("finished")
    with locked(catalog.path):
        assert catalog.record(run) is False
        assert catalog.runs()[0]["state"] == "finished"
        assert catalog.query("SELECT count(*) AS n FROM answers") == [{"n": 20}]
        assert "Could not set lock" in run.events()[-1]["reason"]
        assert run.state() == "finished"  # noting it does not make a worker of us
        assert catalog.rebuild() == 1
    assert in_index(catalog.path, "SELECT run_id FROM runs") == [("r",)]


def test_a_lock_that_goes_away_is_waited_for(store, catalog, new_run, answer_all):
    run = new_run(run_id="r")
    answer_all(run)
    with locked(catalog.path) as holder:
        threading.Timer(0.4, lambda: holder.stdin.close()).start()
        assert catalog.record(run) is True
        holder.stdin = None


def test_rebuild_restores_a_deleted_index_and_one_of_another_version(store, catalog, new_run, answer_all):
    answer_all(new_run(run_id="r"))
    assert catalog.rebuild() == 1
    catalog.path.unlink()
    assert catalog.rebuild() == 1
    with duckdb.connect(str(catalog.path)) as index:
        index.execute("UPDATE index_version SET version = 99; UPDATE run_records SET ok = 7, state = 'finished'")
    assert catalog.runs()[0]["ok"] == 18
    assert catalog.record(store.open_run("r")) is True
    assert in_index(catalog.path, "SELECT ok, version FROM runs, index_version") == [(18, 1)]
    assert sorted(p.name for p in store.root.iterdir()) == ["runs", "zellige.duckdb"]


def test_an_unreadable_part_does_not_hide_the_others(store, catalog, new_run, answer_all):
    run = new_run(run_id="r")
    answer_all(run)
    run.part_path(1).write_bytes(run.part_path(1).read_bytes()[:-20])
    assert catalog.query("SELECT count(*) AS n FROM answers") == [{"n": 12}]
    assert counts(catalog.runs()[0])["items_done"] == 6
    assert catalog.record(run) is True
    assert in_index(catalog.path, "SELECT count(*) FROM answers") == [(12,)]


def test_a_part_of_an_older_schema_is_read_by_column_name(store, catalog, new_run, answer_all):
    run = new_run(run_id="r")
    answer_all(run)
    table = pq.read_table(run.part_path(0)).drop_columns(["finish_reason"])
    pq.write_table(table.select(table.column_names[::-1]), run.part_path(0))
    rows = catalog.query("SELECT finish_reason, question_id FROM answers ORDER BY uri, question_id")
    assert [r["question_id"] for r in rows] == ["colour", "shape"] * 10


def test_a_store_may_have_any_letters_in_its_path(tmp_path, recipe_with, items_of, answer_all):
    store = Store(tmp_path / "st[o]re'*#%20 é")
    run = store.create_run(recipe_with(), items_of(2), shard_items=1, inputs=[])
    answer_all(run)
    catalog = Catalog(store.root)
    assert catalog.query("SELECT count(*) AS n FROM answers") == [{"n": 4}]
    assert catalog.record(run) is True
    assert in_index(catalog.path, "SELECT count(*) FROM answers") == [(4,)]


def test_a_question_mark_in_the_path_costs_the_index_and_nothing_else(tmp_path, recipe_with, items_of, answer_all):
    run = Store(tmp_path / "what?").create_run(recipe_with(), items_of(2), shard_items=1, inputs=[])
    answer_all(run)
    catalog = Catalog(tmp_path / "what?")
    assert catalog.query("SELECT count(*) AS n FROM answers") == [{"n": 4}]
    assert catalog.runs()[0]["rows"] == 4
    assert catalog.record(run) is False
    assert "'?'" in run.events()[-1]["reason"]
    with pytest.raises(StoreUnusable, match="cannot write"):
        catalog.rebuild()


def test_a_damaged_run_hides_no_other_and_is_named(store, new_run):
    new_run(run_id="good")
    (new_run(run_id="bad").path / "recipe.json").write_text("{")
    catalog = Catalog(store.root)
    assert [row["run_id"] for row in catalog.runs()] == ["good"]
    assert catalog.rebuild() == 1
    assert store.open_all()[1].keys() == {"bad"}
