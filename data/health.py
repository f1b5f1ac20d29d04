"""Throughput samples of a run: ``health/throughput-<worker>-<n>.parquet``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from zellige.data.files import StoreUnusable, usable, write_whole
from zellige.data.schema import THROUGHPUT

_GIVEN = ("run_id", "worker", "created_at")


class ThroughputFolder:
    """Samples by any number of workers: one file a worker, holding all that it did so far, so that the rows add up."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, run_id: str, worker: str, sample: Mapping[str, int | float | None]) -> None:
        """Store a worker's sample in place of its earlier one; raises ValueError for a column that there is not."""
        columns = [name for name in THROUGHPUT.names if name not in _GIVEN]
        if unknown := sorted(set(sample) - set(columns)):
            raise ValueError(f"no throughput column {', '.join(unknown)}; there are {', '.join(columns)}")
        row = {**sample, "run_id": run_id, "worker": worker, "created_at": datetime.now(UTC)}
        table = pa.Table.from_pylist([row], schema=THROUGHPUT)
        path = self._folder / f"throughput-{worker}.parquet"
        write_whole(path, lambda file: pq.write_table(table, file))

    def sums(self) -> dict[str, float]:
        """Every numeric column added up over all samples; raises StoreUnusable for a damaged one."""
        tables = []
        for path in sorted(self._folder.glob("throughput-*.parquet")):
            with usable(path, "read"), path.open("rb") as file:
                try:
                    tables.append(pq.read_table(file).cast(THROUGHPUT))
                except (pa.ArrowException, ValueError) as error:
                    raise StoreUnusable(f"{path} is damaged ({error}); move it away to see the others") from error
        whole = pa.concat_tables(tables) if tables else THROUGHPUT.empty_table()
        return {name: pc.sum(whole[name]).as_py() or 0 for name in THROUGHPUT.names if name not in _GIVEN}
