"""The index of a store, in DuckDB: a copy of what the files say, to be asked in SQL, deleted and rebuilt at any time.

DuckDB lets one process write. So nobody holds the index while a run is worked on: who finishes a run opens it for a
moment, and reading never depends on it. What cannot be opened because it is damaged is moved aside and made anew.

Views: ``runs`` (one row a run), ``answers`` (every row of every part, columns by name), ``reviews`` (the latest word of
a person on each row) and ``reviewed`` (the answers, with ``review`` and ``reviewed_answer``).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from zellige.data.columns import REVIEWS
from zellige.data.files import LedgerError, usable
from zellige.data.ledger import Run, Store
from zellige.data.reviews import review_files
from zellige.data.schema import ANSWERS

#: Raised when a table below changes; an index of another version is made anew.
_VERSION = 1
_RETRIES, _WAIT_S = 20, 0.25
_NOT_DAMAGE = ("lock", "Permission denied", "No space left", "Read-only file system", "Too many open files")

_RUNS = pa.schema(
    [
        ("run_id", pa.string()),
        ("flow", pa.string()),
        ("state", pa.string()),
        ("items", pa.int64()),
        ("items_done", pa.int64()),
        ("rows", pa.int64()),
        ("ok", pa.int64()),
        ("failed", pa.int64()),
        ("skipped", pa.int64()),
        ("started_at", pa.string()),
        ("ended_at", pa.string()),
        ("error", pa.string()),
        ("model", pa.string()),
        ("model_fingerprint", pa.string()),
        ("dtype", pa.string()),
        ("recipe", pa.string()),
        ("inputs", pa.list_(pa.string())),
        ("parts_changed_ns", pa.int64()),  # of the folder: whether the counts are those of the files as they are
    ]
)


class CatalogError(LedgerError):
    """A query that cannot be answered; the message is DuckDB's."""


class Catalog:
    """The index ``zellige.duckdb`` of one store, and what can be asked of the store with or without it."""

    def __init__(self, store_root: str | Path) -> None:
        self._store = Store(store_root)
        self.path = self._store.root / "zellige.duckdb"

    def record(self, run: Run) -> bool:
        """Put the run, and any other that is missing, into the index.

        False, and an event in the run, where the index cannot be written now (held by another process through every
        retry, read-only, disk full): nothing is lost, the files are the truth and ``rebuild`` catches up.
        """
        if not self._store.is_local:
            return True  # the index is this machine's own, and no file of the run: ``rebuild`` makes it
        if "?" in str(self.path):
            run.event("index_not_written", reason="DuckDB keeps no index below a folder with a '?' in its name")
            return False
        error: duckdb.Error | None = None
        for _ in range(_RETRIES):
            try:
                with duckdb.connect(str(self.path)) as index:
                    self._update(index, run.run_id)
                return True
            except duckdb.Error as caught:
                if not any(text in str(caught) for text in _NOT_DAMAGE):
                    run.event("index_rebuilt", reason=str(caught), aside=self._set_aside())
                    self.rebuild()
                    return True
                error = caught
            time.sleep(_WAIT_S)
        run.event("index_not_written", reason=str(error))
        return False

    def rebuild(self, runs: Sequence[Run] | None = None) -> int:
        """Make the index anew from the files, in place of the old one at once; how many runs it holds.

        ``runs`` are those of the store that can be opened, where the caller has them open. Raises StoreUnusable where
        the index cannot be written.
        """
        runs = self._store.open_all()[0] if runs is None else runs
        fresh = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.tmp")
        with usable(self.path, "write"):
            self._store.root.mkdir(parents=True, exist_ok=True)
            try:
                with duckdb.connect(str(fresh)) as index:
                    self._update(index, runs=runs)
                self._wal.unlink(missing_ok=True)  # it belongs to the file that goes
                fresh.replace(self.path)
            except duckdb.Error as error:
                raise OSError(str(error)) from error
            finally:
                fresh.unlink(missing_ok=True)
        return len(runs)

    def runs(self, runs: Sequence[Run] | None = None) -> list[dict[str, Any]]:
        """One dict a run, oldest first; the keys are the columns of the view ``runs``; ``runs`` as in ``rebuild``.

        From the files as they are now; of the index only what still agrees with them is taken, to spare reading.
        """
        indexed = {row["run_id"]: row for row in self._indexed()}
        opened = self._store.open_all()[0] if runs is None else runs
        rows = [self._row(run, indexed.get(run.run_id)) for run in opened]
        return sorted(rows, key=lambda row: (row["started_at"], row["run_id"]))

    def run(self, run_id: str) -> dict[str, Any]:
        """One run as in ``runs``, read from the files, with ``throughput`` (sums by column); raises UnknownRun."""
        run = self._store.open_run(run_id)
        return {**self._row(run, None), "throughput": run.throughput()}

    def query(self, sql: str, parameters: Sequence[Any] = (), run_id: str | None = None) -> list[dict[str, Any]]:
        """Ask the views over the files as they are now, without the index; raises CatalogError.

        With ``run_id``, ``answers`` holds that run's rows only, and the parts of other runs are not opened. Parts that
        are unreadable or short are no part of ``answers``.
        """
        try:
            runs = self._store.open_all()[0]
            asked = runs if run_id is None else [self._store.open_run(run_id)]
            with duckdb.connect() as memory:
                _create(memory, self.runs(runs), self._parts(asked), _reviews(asked))
                return _dicts(memory.sql(sql, params=list(parameters)))
        except duckdb.Error as error:
            raise CatalogError(str(error)) from error

    def _update(
        self, index: duckdb.DuckDBPyConnection, changed: str | None = None, runs: Sequence[Run] | None = None
    ) -> None:
        """Bring every table and view up to date; of the runs already there only ``changed`` is read again."""
        runs = self._store.open_all()[0] if runs is None else runs
        known = {row["run_id"]: row for row in _stored(index) if row["run_id"] != changed}
        rows = [self._row(run, known.get(run.run_id)) for run in runs]
        index.begin()
        _create(index, rows, self._parts(runs), _reviews(runs))
        index.commit()

    def _row(self, run: Run, known: dict[str, Any] | None) -> dict[str, Any]:
        changed_ns = run.parts_changed()
        if known is not None and known["state"] == "finished" and known["parts_changed_ns"] == changed_ns:
            return known
        standing, outcome = run.standing(), run.outcome() or {}
        state = standing["state"]
        return {
            **standing,
            "started_at": run.started_at,
            "ended_at": None if state in ("planning", "running") else outcome.get("at"),
            "error": outcome.get("error") if state == "failed" else None,
            "model": run.recipe.model_name,
            "model_fingerprint": run.recipe.model_fingerprint,
            "dtype": run.recipe.model_dtype,
            "recipe": run.recipe.fingerprint,
            "inputs": list(run.inputs),
            "parts_changed_ns": changed_ns,
        }

    def _indexed(self) -> list[dict[str, Any]]:
        """What the index says; nothing where it is missing, held by a writer, of another version or damaged."""
        if not self.path.exists():
            return []
        try:
            with duckdb.connect(str(self.path), read_only=True) as index:
                return _stored(index)
        except duckdb.Error:
            return []

    def _parts(self, runs: Sequence[Run]) -> list[str]:
        """The complete parts of the runs, as globs: one a run where all of its parts are good, else one a part."""
        globs = []
        for run in runs:
            done, all_parts = sorted(run.whole_shards()), run.path / "parts"
            if self._store.is_local and len(done) == sum(1 for _ in all_parts.glob("shard-*.parquet")):
                globs += [_escaped(all_parts) + "/shard-*.parquet"] if done else []
            else:
                globs += [_escaped(path) for path in run.part_paths(done)]
        return globs

    def _set_aside(self) -> str:
        """Move a damaged index and its log out of the way; the new name."""
        aside = self.path.with_name(f"{self.path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")
        with usable(self.path, "move aside"):
            if self._wal.exists():
                self._wal.rename(aside.with_name(f"{aside.name}.wal"))
            if self.path.exists():
                self.path.rename(aside)
        return aside.name

    @property
    def _wal(self) -> Path:
        return self.path.with_name(f"{self.path.name}.wal")


def _reviews(runs: Sequence[Run]) -> list[str]:
    return [_escaped(path) for run in runs for path in review_files(run)]


def _create(
    connection: duckdb.DuckDBPyConnection, rows: list[dict[str, Any]], parts: list[str], reviews: list[str]
) -> None:
    """The tables and views; ``parts`` and ``reviews`` are paths or globs of Parquet files."""
    connection.register("given_runs", pa.Table.from_pylist(rows, schema=_RUNS))
    connection.register("no_rows", ANSWERS.empty_table())
    connection.execute(f"CREATE OR REPLACE TABLE index_version AS SELECT {_VERSION} AS version")
    connection.execute("CREATE OR REPLACE TABLE run_records AS SELECT * FROM given_runs")
    connection.execute("CREATE OR REPLACE VIEW runs AS SELECT * FROM run_records ORDER BY started_at, run_id")
    # The empty table gives every column its type where no part is there, or only parts of an older version.
    connection.execute("CREATE OR REPLACE TABLE answer_columns AS SELECT * FROM no_rows")
    connection.execute(f"CREATE OR REPLACE VIEW answers AS SELECT * FROM answer_columns{_and_of(parts)}")
    connection.register("no_reviews", REVIEWS.empty_table())
    connection.execute("CREATE OR REPLACE TABLE review_columns AS SELECT * FROM no_reviews")
    connection.execute(
        f"CREATE OR REPLACE VIEW reviews AS WITH said AS (SELECT * FROM review_columns{_and_of(reviews)}), "
        "latest AS (SELECT * FROM said QUALIFY "
        "row_number() OVER (PARTITION BY run_id, row_id ORDER BY created_at DESC) = 1) "
        "SELECT * FROM latest WHERE verdict <> 'withdrawn'"
    )
    connection.execute(
        "CREATE OR REPLACE VIEW reviewed AS SELECT a.*, r.verdict AS review, "
        "CASE WHEN r.verdict = 'edited' THEN r.answer ELSE a.answer END AS reviewed_answer FROM answers a "
        "LEFT JOIN reviews r ON r.run_id = a.run_id AND r.row_id = a.row_id AND r.row_created_at = a.created_at"
    )
    for name in ("given_runs", "no_rows", "no_reviews"):
        connection.unregister(name)


def _and_of(files: list[str]) -> str:
    """The rows of Parquet files, to be added to a table of their columns."""
    named = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    return f" UNION ALL BY NAME SELECT * FROM read_parquet([{named}], union_by_name = true)" if files else ""


def _stored(index: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """The recorded runs; none where the index is new or of another version."""
    tables = {row[0] for row in index.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    if not {"index_version", "run_records"} <= tables:
        return []
    if index.execute("SELECT version FROM index_version").fetchall() != [(_VERSION,)]:
        return []
    return _dicts(index.sql("SELECT * FROM run_records"))


def _dicts(asked: duckdb.DuckDBPyRelation) -> list[dict[str, Any]]:
    table: pa.Table = asked.to_arrow_table()
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _escaped(path: Path) -> str:
    """``path`` as a DuckDB glob that matches it alone."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in str(path))
