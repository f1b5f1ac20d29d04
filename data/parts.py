"""The Parquet file of one shard: written whole, judged by its footer."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from zellige.data.files import StoreUnusable, remove_leftovers, usable, write_whole
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

    def __init__(self, folder: Path, aside: Path) -> None:
        self._folder = folder
        self._aside = aside
        self._known: dict[int, tuple[tuple[int, int, int], PartInfo | None]] = {}

    def path(self, index: int) -> Path:
        return self._folder / f"shard-{index:05d}.parquet"

    def write(self, index: int, rows: Sequence[AnswerRow], retries: int = 0, kept: Sequence[str] | None = None) -> None:
        """Put the part of shard ``index`` in place at once; the checksums of its pages let a reader notice damage.

        With ``kept``, the ids of all of the shard's rows in order, those not in ``rows`` stay as the part has them.
        """
        table = to_table(rows)
        if kept is not None:
            table = self._among_kept(index, table, kept)
        statuses = table["status"].to_pylist()
        counts = {s: statuses.count(s) for s in ("ok", "failed", "skipped")}
        about = {_COUNTS: json.dumps(counts), _RETRIES: str(retries)}
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), **about})

        write_whole(
            self.path(index), lambda file: pq.write_table(table, file, compression="zstd", write_page_checksum=True)
        )

    def parts(self) -> dict[int, PartInfo | None]:
        """Every part that is there, by shard; None for one that cannot be read."""
        found: dict[int, PartInfo | None] = {}
        with usable(self._folder, "list"), os.scandir(self._folder) as entries:
            for entry in entries:
                if match := _NAME.fullmatch(entry.name):
                    try:
                        found[int(match[1])] = self._info(int(match[1]), entry)
                    except FileNotFoundError:  # moved aside this instant
                        continue
        return found

    def part(self, index: int) -> PartInfo | None:
        """The part of one shard; None where there is none or it cannot be read."""
        try:
            return read_footer(self.path(index))
        except FileNotFoundError:
            return None

    def set_aside(self, index: int) -> Path | None:
        """Move a part that is no good out of the way, never deleting it; where it went. For the shard's holder only."""
        remove_leftovers(self.path(index))
        if not self.path(index).exists():
            return None
        with usable(self._aside, "move a part to"):
            self._aside.mkdir(exist_ok=True)
            number = 1
            while (target := self._aside / f"shard-{index:05d}.{number}.parquet").exists():
                number += 1
            self.path(index).rename(target)
        return target

    def failed_rows(self, index: int, kinds: Collection[str]) -> list[str]:
        """The ids of the part's rows that failed as one of ``kinds``; raises StoreUnusable for a damaged part."""
        table = self._read(index, ["row_id", "status", "error_kind"])
        return [r["row_id"] for r in table.to_pylist() if r["status"] == "failed" and r["error_kind"] in kinds]

    def _among_kept(self, index: int, fresh: pa.Table, order: Sequence[str]) -> pa.Table:
        old = self._read(index).cast(fresh.schema)
        place = {row: i for i, row in enumerate(old["row_id"].to_pylist())}
        place |= {row: old.num_rows + i for i, row in enumerate(fresh["row_id"].to_pylist())}
        return pa.concat_tables([old, fresh]).take([place[row] for row in order])

    def _read(self, index: int, columns: list[str] | None = None) -> pa.Table:
        path = self.path(index)
        with usable(path, "read"), pa.OSFile(str(path)) as file:  # why no file of Python's: see ``health.py``
            try:
                return pq.ParquetFile(file, page_checksum_verification=True).read(columns)
            except pa.ArrowException as error:
                raise StoreUnusable(
                    f"{path} is damaged ({error}); move it away, and --resume answers its items again"
                ) from error

    def _info(self, index: int, entry: os.DirEntry[str]) -> PartInfo | None:
        status = entry.stat()
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        known = self._known.get(index)
        if known is None or known[0] != stamp:
            known = self._known[index] = (stamp, read_footer(Path(entry.path)))
        return known[1]


def read_footer(path: Path) -> PartInfo | None:
    """What the footer says; None where there is no whole footer of ours; raises FileNotFoundError."""
    try:
        with path.open("rb") as file:
            metadata = pq.read_metadata(file)
        counts = json.loads(metadata.metadata[_COUNTS])
        retries = int(metadata.metadata.get(_RETRIES, 0))
        return PartInfo(metadata.num_rows, counts["ok"], counts["failed"], counts["skipped"], retries)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError):
        return None
