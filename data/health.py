"""How a run went: throughput, time line and how the kernels behaved, in ``health/<kind>-<worker>.parquet``.

One file a worker and kind, holding all that the worker did so far, so that the rows of all workers add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from zellige.data.columns import KERNELS, THROUGHPUT, TIMELINE
from zellige.data.files import StoreUnusable, usable
from zellige.data.folder import Folder, matching

_GIVEN = ("run_id", "worker", "created_at")
#: From best to worst; workers together are as good as the worst of them.
_VERDICTS = ("healthy", "unchecked", "suspect", "failed")


class _Samples:
    """The files of one kind."""

    def __init__(self, folder: Folder, kind: str, schema: pa.Schema) -> None:
        self._folder, self._kind, self._schema = folder, kind, schema
        self.columns = [name for name in schema.names if name not in _GIVEN]

    def write(self, run_id: str, worker: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Store a worker's rows in place of its earlier ones; raises ValueError for a column that there is not."""
        if unknown := sorted({name for row in rows for name in row} - set(self.columns)):
            raise ValueError(f"no {self._kind} column {', '.join(unknown)}; there are {', '.join(self.columns)}")
        given = {"run_id": run_id, "worker": worker, "created_at": datetime.now(UTC)}
        table = pa.Table.from_pylist([{**row, **given} for row in rows], schema=self._schema)
        name = f"{self._kind}-{worker}.parquet"
        with usable(self._folder.at(name), "write"):
            self._folder.put(name, lambda file: pq.write_table(table, file))

    def read(self) -> pa.Table:
        """The rows of all workers; raises StoreUnusable for a damaged file."""
        tables = []
        names = matching(self._folder, f"{self._kind}-*.parquet")
        with usable(self._folder, "read"):
            paths = self._folder.fetch(names)
        for path in paths:
            # Never a file of Python's: Arrow's threads may let go of it last, and that ends a program that is ending.
            with usable(path, "read"), pa.OSFile(str(path)) as file:
                try:
                    tables.append(pq.read_table(file).cast(self._schema))
                except (pa.ArrowException, ValueError) as error:
                    raise StoreUnusable(f"{path} is damaged ({error}); move it away to see the others") from error
        return pa.concat_tables(tables) if tables else self._schema.empty_table()


class ThroughputFolder:
    """Throughput samples by any number of workers."""

    def __init__(self, folder: Folder) -> None:
        self._samples = _Samples(folder, "throughput", THROUGHPUT)

    def write(self, run_id: str, worker: str, sample: Mapping[str, int | float | None]) -> None:
        """Store a worker's sample in place of its earlier one; raises ValueError for a column that there is not."""
        self._samples.write(run_id, worker, [sample])

    def sums(self) -> dict[str, float]:
        """Every numeric column added up, and how many samples they are; raises StoreUnusable for a damaged one."""
        whole = self._samples.read()
        return {name: pc.sum(whole[name]).as_py() or 0 for name in self._samples.columns} | {"workers": whole.num_rows}


class TimelineFolder:
    """How any number of workers stood, moment by moment."""

    def __init__(self, folder: Folder) -> None:
        self._samples = _Samples(folder, "timeline", TIMELINE)

    def write(self, run_id: str, worker: str, moments: Sequence[Mapping[str, Any]]) -> None:
        """Store a worker's moments in place of its earlier ones."""
        self._samples.write(run_id, worker, moments)

    def read(self) -> pa.Table:
        """The moments of all workers; raises StoreUnusable for a damaged file."""
        return self._samples.read()


class KernelFolder:
    """How the operators behaved in the engines of any number of workers."""

    def __init__(self, folder: Folder) -> None:
        self._samples = _Samples(folder, "kernels", KERNELS)

    def write(self, run_id: str, worker: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Store a worker's rows, one an operator and device, in place of its earlier ones."""
        self._samples.write(run_id, worker, rows)

    def rows(self) -> list[dict[str, Any]]:
        """One row an operator and device, all workers together; raises StoreUnusable for a damaged file.

        Counts are added up; ``max_rel_l2`` and ``tolerance`` are those of the check furthest towards or beyond its
        tolerance.
        """
        whole: dict[tuple[str, str], dict[str, Any]] = {}
        for row in self._samples.read().select(self._samples.columns).to_pylist():
            key = row["operator"], row["device"]
            whole[key] = _together(whole[key], row) if key in whole else row
        return [whole[key] for key in sorted(whole)]


def worst(verdicts: Sequence[str]) -> str:
    """The verdict on a whole; ``unchecked`` where there is nothing."""
    return max(verdicts, key=_VERDICTS.index, default="unchecked")


def _together(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    further = max(a, b, key=lambda row: (row["max_rel_l2"] or 0.0) / (row["tolerance"] or 1.0))
    error = {"max_rel_l2": further["max_rel_l2"], "tolerance": further["tolerance"]}
    counts = {n: a[n] + b[n] for n in a.keys() - error.keys() if isinstance(a[n], int | float)}
    return a | counts | error | {"verdict": worst([a["verdict"], b["verdict"]])}
