"""Which rows of a run the page holds, and what of each: every failed row, and an even sample of the others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from zellige.data.files import StoreUnusable, usable
from zellige.data.run import Run
from zellige.data.schema import Item

Row = dict[str, Any]
#: Rows of a part in memory at once.
_BATCH_ROWS = 1024
_PLACE = ("uri", "member", "page", "width", "height")
_PLAIN = (
    *("question_id", "question", "status", "error_kind", "error", "answer", "finish_reason"),
    *("image_tokens", "prompt_tokens", "completion_tokens", "attempts", "decode_s", "engine_s", "content_sha256"),
)


@dataclass
class Chosen:
    """The rows of the page and the items they are about; ``total`` is how many rows there are.

    A row names its item by its place in ``items``. What is null is left out of a row.
    """

    total: int
    items: list[Item] = field(default_factory=list)
    places: list[Row] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Add one row as it is stored; the rows of one item follow each other."""
        if not self.items or self.items[-1].item_id != row["item_id"]:
            metadata = tuple(row["metadata"])
            self.items.append(Item(row["uri"], row["member"], row["ordinal"], row["page"], metadata=metadata))
            self.places.append(_known({name: row[name] for name in _PLACE} | {"metadata": dict(metadata) or None}))
        logprob = row["mean_logprob"]
        about = {name: row[name] for name in _PLAIN} | {
            "id": row["row_id"],
            "item": len(self.items) - 1,
            "confidence": None if logprob is None else round(math.exp(min(0.0, logprob)), 4),
            "at": row["created_at"].isoformat(),
            "tiles": [_tile(tile) for tile in row["tiles"]] or None,
        }
        self.rows.append(_known(about))


def choose(run: Run, most: int) -> Chosen:
    """At most ``most`` rows in the run's order: the failed ones (half of ``most`` at most, where there are more), and
    of the others as many as there is room for, evenly spread. Raises StoreUnusable for a damaged part.
    """
    parts = [run.part_path(index) for index in sorted(run.whole_shards())]
    statuses = [read_part(path, ["status"])["status"] for path in parts]
    failed = np.concatenate([np.zeros(0, bool), *(np.asarray(s.to_pylist()) == "failed" for s in statuses)])
    wanted, begin = _wanted(failed, most), 0
    chosen = Chosen(len(failed))
    for path, status in zip(parts, statuses, strict=True):
        mask = wanted[begin : begin + len(status)]
        begin += len(status)
        for row in _rows(path, mask):
            chosen.add(row)
    return chosen


def shortened(rows: Sequence[Row], most_chars: int) -> list[Row]:
    """The rows with no text longer than ``most_chars``; what was cut says so."""
    return [
        {
            **row,
            **{name: _cut(row[name], most_chars) for name in ("answer", "error", "question") if name in row},
            **({"tiles": [[*t[:4], _cut(t[4], most_chars), t[5]] for t in row["tiles"]]} if "tiles" in row else {}),
        }
        for row in rows
    ]


def read_part(path: Path, columns: list[str] | None = None) -> pa.Table:
    """The columns of one part, all where None are named; raises StoreUnusable for a damaged one."""
    with usable(path, "read"), pa.OSFile(str(path)) as file:  # why no file of Python's: see ``data/health.py``
        try:
            return pq.ParquetFile(file, page_checksum_verification=True).read(columns)
        except pa.ArrowException as error:
            raise StoreUnusable(f"{path} is damaged ({error}); resume the run, which makes it anew") from error


def _wanted(failed: NDArray[np.bool_], most: int) -> NDArray[np.bool_]:
    wanted = np.zeros(len(failed), bool)
    if len(failed) <= most:
        return ~wanted
    bad, good = np.flatnonzero(failed), np.flatnonzero(~failed)
    kept = _spread(bad, max(most // 2, most - len(good)))
    wanted[kept] = True
    wanted[_spread(good, most - len(kept))] = True
    return wanted


def _spread(places: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """``places``, or ``most`` of them at even distances."""
    if len(places) <= most:
        return places
    return places[np.linspace(0, len(places) - 1, most).round().astype(np.intp)]


def _rows(path: Path, mask: NDArray[np.bool_]) -> Iterator[Row]:
    if not mask.any():
        return
    table = read_part(path)
    for start in range(0, table.num_rows, _BATCH_ROWS):
        yield from table.slice(start, _BATCH_ROWS).filter(pa.array(mask[start : start + _BATCH_ROWS])).to_pylist()


def _known(row: Row) -> Row:
    return {name: value for name, value in row.items() if value is not None}


def _tile(tile: Row) -> list[Any]:
    confidence = None if tile["confidence"] is None else round(tile["confidence"], 4)
    return [tile["x"], tile["y"], tile["width"], tile["height"], tile["answer"], confidence]


def _cut(text: str | None, most: int) -> str | None:
    return text if text is None or len(text) <= most else f"{text[:most]} … ({len(text):,} characters; cut here)"
