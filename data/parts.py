"""The Parquet file of one shard: written whole, judged by its footer."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from zellige.data.files import StoreUnusable, usable
from zellige.data.folder import Folder, Stamp
from zellige.data.schema import AnswerRow, to_table

_NAME = re.compile(r"shard-(\d{5,})\.parquet")
_COUNTS = b"zellige.status_counts"
_RETRIES = b"zellige.retries"


@dataclass(frozen=True)
class PartInfo:
    """What a part's footer says: rows, how many of each status, and how many of the run's retries it has seen to."""

    rows: int
    ok: int
    failed: int
    skipped: int
    retries: int = 0


class PartFolder:
    """``parts/`` of one run. Footers are read once and again only when a file changed."""

    def __init__(self, folder: Folder, aside: Folder) -> None:
        self._folder = folder
        self._aside = aside
        self._known: dict[int, tuple[Stamp, PartInfo | None]] = {}

    def at(self, index: int) -> Path | str:
        """The address of a shard's part, whether it is there or not."""
        return self._folder.at(_file(index))

    def paths(self, indices: Sequence[int]) -> list[Path]:
        """The parts of these shards on this machine, as they are now; of a local store whether they are there or not.

        Raises StoreUnusable.
        """
        with usable(self._folder, "read"):
            return self._folder.fetch([_file(index) for index in indices])

    def write(self, index: int, rows: Sequence[AnswerRow], retries: int = 0, kept: Sequence[str] | None = None) -> bool:
        """Put the part of shard ``index`` in place at once; the checksums of its pages let a reader notice damage.

        False where another worker's came before, and stays.

        With ``kept``, the ids of all of the shard's rows in order, those not in ``rows`` stay as the part has them.
        """
        table = to_table(rows)
        if kept is not None:
            table = self._among_kept(index, table, kept)
        statuses = table["status"].to_pylist()
        counts = {s: statuses.count(s) for s in ("ok", "failed", "skipped")}
        about = {_COUNTS: json.dumps(counts), _RETRIES: str(retries)}
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), **about})

        with usable(self.at(index), "write"):
            return self._folder.put(
                _file(index),
                lambda file: pq.write_table(table, file, compression="zstd", write_page_checksum=True),
                first=kept is None,
            )

    def parts(self) -> dict[int, PartInfo | None]:
        """Every part that is there, by shard; None for one that cannot be read."""
        found: dict[int, PartInfo | None] = {}
        with usable(self._folder, "list"):
            now = {int(match[1]): s for name, s in self._folder.stamps().items() if (match := _NAME.fullmatch(name))}
        changed = {_file(index): index for index in now if self._known.get(index, (None,))[0] != now[index]}
        for name, end in self._folder.ends(changed):
            index = changed[name]
            self._known[index] = now[index], read_footer(end)
        for index in now:
            known = self._known.get(index)
            if known is not None and known[0] == now[index]:  # else it was moved aside this instant
                found[index] = known[1]
        return found

    def part(self, index: int) -> PartInfo | None:
        """The part of one shard; None where there is none or it cannot be read."""
        return next((read_footer(end) for _, end in self._folder.ends([_file(index)])), None)

    def set_aside(self, index: int) -> str | None:
        """Move a part that is no good out of the way, never deleting it; its new name. For the shard's holder only."""
        self._folder.clear(_file(index))
        if not self._folder.has(_file(index)):
            return None
        with usable(self._aside, "move a part to"):
            self._aside.make()
            number = 1
            while self._aside.has(name := f"shard-{index:05d}.{number}.parquet"):
                number += 1
            self._folder.move(_file(index), self._aside, name)
        return name

    def failed_rows(self, index: int, kinds: Collection[str]) -> list[str]:
        """The ids of the part's rows that failed as one of ``kinds``; raises StoreUnusable for a damaged part."""
        table = self._read(index, ["row_id", "status", "error_kind"])
        return [r["row_id"] for r in table.to_pylist() if r["status"] == "failed" and r["error_kind"] in kinds]

    def error_kinds(self, index: int) -> list[str]:
        """Why the part's failed rows failed, one word a row; raises StoreUnusable for a damaged part."""
        rows = self._read(index, ["status", "error_kind"]).to_pylist()
        return [row["error_kind"] for row in rows if row["status"] == "failed"]

    def _among_kept(self, index: int, fresh: pa.Table, order: Sequence[str]) -> pa.Table:
        old = self._read(index).cast(fresh.schema)
        place = {row: i for i, row in enumerate(old["row_id"].to_pylist())}
        place |= {row: old.num_rows + i for i, row in enumerate(fresh["row_id"].to_pylist())}
        return pa.concat_tables([old, fresh]).take([place[row] for row in order])

    def _read(self, index: int, columns: list[str] | None = None) -> pa.Table:
        path = self.paths([index])[0]
        with usable(path, "read"), pa.OSFile(str(path)) as file:  # why no file of Python's: see ``health.py``
            try:
                return pq.ParquetFile(file, page_checksum_verification=True).read(columns)
            except pa.ArrowException as error:
                raise StoreUnusable(
                    f"{self.at(index)} is damaged ({error}); move it away, and --resume answers its items again"
                ) from error


def _file(index: int) -> str:
    return f"shard-{index:05d}.parquet"


def read_footer(file: BinaryIO) -> PartInfo | None:
    """What the footer says; None where there is no whole footer of ours."""
    try:
        metadata = pq.read_metadata(file)
        counts = json.loads(metadata.metadata[_COUNTS])
        retries = int(metadata.metadata.get(_RETRIES, 0))
        return PartInfo(metadata.num_rows, counts["ok"], counts["failed"], counts["skipped"], retries)
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError):
        return None
