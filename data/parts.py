"""The Parquet file of one shard: written whole, judged by its footer."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from zellige.data.files import remove_leftovers, usable, write_whole
from zellige.data.schema import AnswerRow, to_table

_NAME = re.compile(r"shard-(\d{5,})\.parquet")
_COUNTS = b"zellige.status_counts"


@dataclass(frozen=True)
class PartInfo:
    """What a part's footer says: rows, and how many of each status."""

    rows: int
    ok: int
    failed: int
    skipped: int


class PartFolder:
    """``parts/`` of one run. Footers are read once and again only when a file changed."""

    def __init__(self, folder: Path, aside: Path) -> None:
        self._folder = folder
        self._aside = aside
        self._known: dict[int, tuple[tuple[int, int, int], PartInfo | None]] = {}

    def path(self, index: int) -> Path:
        return self._folder / f"shard-{index:05d}.parquet"

    def write(self, index: int, rows: Sequence[AnswerRow]) -> None:
        """Put the part of shard ``index`` in place at once; the checksums of its pages let a reader notice damage."""
        counts = {s: sum(r.status == s for r in rows) for s in ("ok", "failed", "skipped")}
        table = to_table(rows)
        table = table.replace_schema_metadata({**table.schema.metadata, _COUNTS: json.dumps(counts)})

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
        with usable(self._aside, "move a part to"):
            self._aside.mkdir(exist_ok=True)
            number = 1
            while (target := self._aside / f"shard-{index:05d}.{number}.parquet").exists():
                number += 1
            try:
                self.path(index).rename(target)
            except FileNotFoundError:
                return None
        return target

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
        return PartInfo(metadata.num_rows, counts["ok"], counts["failed"], counts["skipped"])
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError):
        return None
