"""What an export is asked for, what it says when it is done, and the rows that it is made of."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from zellige.data.reviews import Review, reviews_of
from zellige.data.run import Run

Row = dict[str, Any]
IfExists = Literal["skip", "overwrite", "append", "prepend"]

DEFAULT_SHARD_BYTES = 1 << 30
#: Why a row that a reviewer said no to is left out.
REJECTED = "rejected in review"
#: Rows in memory at once while a part is read.
_BATCH_ROWS = 256
#: Line ends for some readers and plain characters for JSON: written as escapes, lines are the same for every reader.
_LINE_ENDS = {ord(c): f"\\u{ord(c):04x}" for c in "\x85\u2028\u2029"}


class ExportError(Exception):
    """The export cannot be made; the message says what to do."""


class WrongPlace(ExportError):
    """The place named is none that an export may be written to."""


@dataclass(frozen=True)
class ExportOptions:
    """``if_exists``, ``prefix`` and ``suffix`` are for ``txt``; ``shard_bytes`` is the size of a file of many images.

    ``overwrite`` replaces what an earlier export left at the same place.
    """

    overwrite: bool = False
    if_exists: IfExists = "skip"
    prefix: str = ""
    suffix: str = ""
    shard_bytes: int = DEFAULT_SHARD_BYTES


@dataclass
class Exported:
    """What was written: ``rows`` of them, in ``files`` files; the others are in ``left_out``, counted by reason."""

    to: str
    dest: str
    rows: int = 0
    files: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    #: Rows that are ok and could not be written all the same, with why; the first of them only.
    problems: list[str] = field(default_factory=list)
    items_without_rows: int = 0

    MOST_PROBLEMS = 20

    def leave_out(self, row: Row, reason: str, detail: str = "") -> None:
        """Count a row that is ok and cannot be written."""
        self.left_out[reason] += 1
        if len(self.problems) < self.MOST_PROBLEMS:
            self.problems.append(f"{where(row)}: {reason}{f': {detail}' if detail else ''}")


def where(row: Row) -> str:
    """An item in words: its address, the member's name and the page."""
    member = f" {row['member']}" if row["member"] is not None else ""
    place = f" row {row['ordinal']}" if row["member"] is None and row["ordinal"] is not None else ""
    return f"{row['uri']}{member}{place}{f' page {page}' if (page := row['page']) is not None else ''}"


def rows(run: Run) -> Iterator[Row]:
    """Every committed row, by shard, item and question, as a dict of columns; ``metadata`` is a dict.

    ``review`` is what a person said of it (None: nothing) and ``model_answer`` what an edited answer was before. A row
    that was accepted or edited is ok, whatever the model's answer was refused for. Memory holds one batch of rows, and
    the reviews. Raises ExportError for a part that is damaged.
    """
    reviews = reviews_of(run)
    for index in sorted(run.done_shards()):
        path = run.part_path(index)
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as part:
                for batch in part.iter_batches(_BATCH_ROWS):
                    for row in batch.to_pylist():
                        row["metadata"] = dict(row["metadata"])
                        yield _reviewed(row, reviews.get(row["row_id"]))
        except (pa.ArrowException, OSError) as error:
            raise ExportError(
                f"{path} cannot be read ({error}); resume the run, which makes damaged parts again, then export"
            ) from error


def ok_rows(run: Run, done: Exported) -> Iterator[Row]:
    """The rows that are ok and not rejected by a reviewer; the others are counted in ``done``."""
    for row in rows(run):
        if row["review"] == "rejected":
            done.left_out[REJECTED] += 1
        elif row["status"] == "ok":
            yield row
        else:
            done.left_out[row["status"]] += 1


def _reviewed(row: Row, review: Review | None) -> Row:
    row["review"] = row["model_answer"] = None
    if review is None or not review.of(row):
        return row
    row["review"] = review.verdict
    if review.verdict == "edited":
        row["model_answer"], row["answer"] = row["answer"], review.answer
    if review.verdict in ("accepted", "edited") and row["answer"] is not None:
        row["status"], row["error_kind"] = "ok", None
    return row


def to_json(value: Any) -> str:
    """One line of JSON in UTF-8 letters; times in ISO form, numbers that JSON lacks as null."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=_plain)
    return text.translate(_LINE_ENDS)


def folder_of(path: Path) -> Path:
    """The folder that ``path`` lies in, made if need be; raises ExportError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(f"{path.parent} cannot be made ({error.strerror}); name another place") from error
    return path.parent


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is no plain value")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list) else value
