"""What people said of a run's rows: ``reviews/`` of the run, Parquet files written whole, one reader's at a time.

Each session of reviewing writes files of its own, so any number may be open on one run. The latest word on a row
counts, as long as the row is still the one that was looked at.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from zellige.data.columns import REVIEWS, SCHEMA_VERSION
from zellige.data.files import StoreUnusable, usable
from zellige.data.folder import Folder, matching
from zellige.data.run import Run
from zellige.data.schema import storable

Verdict = Literal["accepted", "edited", "rejected", "withdrawn"]
#: Words of one file; each word writes its file anew, so that none is lost.
WORDS_A_FILE = 500


@dataclass(frozen=True)
class Review:
    """One word on one row; ``answer`` is the right one where the row was ``edited``."""

    row_id: str
    verdict: Verdict
    row_created_at: datetime
    reviewer: str
    answer: str | None = None

    def __post_init__(self) -> None:
        if self.verdict not in get_args(Verdict):
            raise ValueError(f"verdict {self.verdict!r}: give one of {', '.join(get_args(Verdict))}")
        if (self.answer is not None) != (self.verdict == "edited"):
            raise ValueError("an edited row has the right answer, and no other row has one")

    def of(self, row: Mapping[str, Any]) -> bool:
        """Whether ``row`` is the one that was looked at, and was not answered again since."""
        return bool(row["row_id"] == self.row_id and row["created_at"] == self.row_created_at)


class ReviewLog:
    """The words of one session, each on the disk before ``add`` returns. For one thread at a time."""

    def __init__(self, run: Run) -> None:
        self._run_id, self._folder = run.run_id, _folder(run)
        self._name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}-{secrets.token_hex(3)}"
        self._words: list[dict[str, Any]] = []
        self._files = 0

    def add(self, review: Review) -> None:
        """Store one word; raises StoreUnusable, and then nothing of it is stored."""
        word = {
            "schema_version": SCHEMA_VERSION,
            "run_id": self._run_id,
            "row_id": review.row_id,
            "verdict": review.verdict,
            "answer": storable(review.answer),
            "reviewer": review.reviewer,
            "row_created_at": review.row_created_at,
            "created_at": datetime.now(UTC),
        }
        if not self._words or len(self._words) >= WORDS_A_FILE:
            self._words, self._files = [], self._files + 1
        table = pa.Table.from_pylist([*self._words, word], schema=REVIEWS)
        with usable(self._folder, "write to"):
            self._folder.make()
            self._folder.put(
                f"{self._name}-{self._files:05d}.parquet",
                lambda file: pq.write_table(table, file, compression="zstd", write_page_checksum=True),
            )
        self._words.append(word)


def review_files(run: Run) -> list[Path]:
    """The files of all sessions that can be read."""
    good = []
    for path in _files(run):
        try:
            with path.open("rb") as file:
                if pq.read_schema(file).equals(REVIEWS):
                    good.append(path)
        except (pa.ArrowException, OSError):
            continue
    return good


def reviews_of(run: Run) -> dict[str, Review]:
    """The latest word on each row, by the row's id; raises StoreUnusable for a damaged file."""
    words: list[dict[str, Any]] = []
    for path in _files(run):
        with usable(path, "read"), pa.OSFile(str(path)) as file:  # why no file of Python's: see ``health.py``
            try:
                words += pq.ParquetFile(file, page_checksum_verification=True).read().cast(REVIEWS).to_pylist()
            except (pa.ArrowException, ValueError) as error:
                raise StoreUnusable(f"{path} is damaged ({error}); move it away to go on without its words") from error
    latest = {word["row_id"]: word for word in sorted(words, key=lambda word: word["created_at"])}
    names = ("row_id", "verdict", "row_created_at", "reviewer", "answer")
    return {
        row: Review(**{name: word[name] for name in names})
        for row, word in latest.items()
        if word["verdict"] != "withdrawn"
    }


def _files(run: Run) -> list[Path]:
    folder = _folder(run)
    names = matching(folder, "*.parquet")
    with usable(folder, "read"):
        return folder.fetch(names)


def _folder(run: Run) -> Folder:
    return run.folder / "reviews"
