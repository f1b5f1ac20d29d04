"""A run over time, in equal pieces of the time that was worked: what the page's charts show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from zellige.data.columns import ANSWERS
from zellige.data.report.rows import read_part
from zellige.data.run import Run

#: Pieces of the time line: so many at most and at least, and in between one for so many rows.
MOST_PIECES, LEAST_PIECES, ROWS_A_PIECE = 90, 12, 8
#: Between two rows nothing was worked on, where it took so long and so large a share of the whole time.
PAUSE_S, PAUSE_SHARE = 60.0, 0.1

_VIEWS = "tiles.list.element.x"
_COLUMNS = ("created_at", "status", "engine_s", "attempts", "prompt_tokens", "completion_tokens", _VIEWS)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Clock:
    """Seconds of the calendar to seconds of work: pauses are taken out."""

    begin: float
    pauses: tuple[tuple[float, float], ...]
    length_s: float
    pieces: int

    @classmethod
    def over(cls, at: Floats) -> Clock:
        """The clock of a run whose rows were made ``at`` these times, in order."""
        gaps = np.diff(at)
        long = np.flatnonzero(gaps > max(PAUSE_S, PAUSE_SHARE * float(at[-1] - at[0])))
        pauses = tuple((float(at[i]), float(at[i + 1])) for i in long)
        length = float(at[-1] - at[0]) - sum(end - start for start, end in pauses)
        pieces = min(MOST_PIECES, max(LEAST_PIECES, len(at) // ROWS_A_PIECE))
        return cls(float(at[0]), pauses, max(length, 1.0), pieces)

    def worked(self, at: Floats) -> Floats:
        """Seconds of work since the first row."""
        lost = np.zeros(len(at))
        for start, end in self.pauses:
            lost += np.clip(at - start, 0.0, end - start)
        return at - self.begin - lost

    def piece(self, at: Floats) -> NDArray[np.intp]:
        """The piece of the time line that each moment is in."""
        return np.clip((self.worked(at) / self.length_s * self.pieces).astype(np.intp), 0, self.pieces - 1)

    def per_s(self, at: Floats, amounts: Floats) -> list[float]:
        """In each piece the sum of the amounts of its moments, a second."""
        sums = np.bincount(self.piece(at), amounts, self.pieces)
        return [round(float(n), 4) for n in sums * self.pieces / self.length_s]

    def each(self, at: Floats, values: Floats, of: Callable[[Floats], Any]) -> list[float | None]:
        """In each piece ``of`` the values of its moments that are known; None where there are none."""
        piece, known = self.piece(at), ~np.isnan(values)
        inside = [values[known & (piece == i)] for i in range(self.pieces)]
        return [round(float(of(some)), 4) if len(some) else None for some in inside]


def series(run: Run) -> dict[str, Any] | None:
    """The charts' figures, one a piece; None where there are no rows. ``null`` where nothing was measured."""
    rows = _rows_of(run)
    if not rows.num_rows:
        return None
    order = np.argsort(_seconds(rows["created_at"]))
    at = _seconds(rows["created_at"])[order]
    clock = Clock.over(at)
    failed = np.asarray(rows["status"].to_pylist())[order] == "failed"
    # A row's seconds are those of all its views together: what a request took is its share of them.
    views = np.maximum(1.0, _numbers(pc.list_value_length(rows["tiles"])))
    engine_s = (_numbers(rows["engine_s"]) / views)[order]
    engine_s[_numbers(rows["attempts"])[order] < 1] = np.nan  # a copy's answer took no time
    return {
        "piece_s": clock.length_s / clock.pieces,
        "begin": float(at[0]),
        "pauses": [[float(clock.worked(np.array([start]))[0]), end - start] for start, end in clock.pauses],
        "rows_per_s": clock.per_s(at, np.where(failed, 0.0, 1.0)),
        "failed_per_s": clock.per_s(at, np.where(failed, 1.0, 0.0)),
        "prompt_tokens_per_s": clock.per_s(at, np.nan_to_num(_numbers(rows["prompt_tokens"])[order])),
        "completion_tokens_per_s": clock.per_s(at, np.nan_to_num(_numbers(rows["completion_tokens"])[order])),
        "latency_p50_s": clock.each(at, engine_s, np.median),
        "latency_p95_s": clock.each(at, engine_s, lambda values: np.percentile(values, 95)),
        **_moments(run.timeline(), clock),
    }


def _moments(timeline: pa.Table, clock: Clock) -> dict[str, Any]:
    """Queue and GPUs: of several workers the queues together, and the hottest GPU."""
    if not timeline.num_rows:
        return {}
    at = _seconds(timeline["at"])
    workers = np.asarray(timeline["worker"].to_pylist())
    found: dict[str, Any] = {}
    for name in ("in_flight", "engine_running", "engine_waiting"):
        each = [clock.each(at[workers == w], _numbers(timeline[name])[workers == w], np.mean) for w in set(workers)]
        found[name] = [_sum(values) for values in zip(*each, strict=True)]
    found["temperature_c"] = clock.each(at, _numbers(timeline["temperature_c"]), np.max)
    return {name: values for name, values in found.items() if any(v is not None for v in values)}


def _rows_of(run: Run) -> pa.Table:
    tables = [read_part(run.part_path(index), list(_COLUMNS)) for index in sorted(run.whole_shards())]
    return pa.concat_tables(tables) if tables else ANSWERS.empty_table()


def _seconds(column: pa.ChunkedArray) -> Floats:
    return np.asarray(column.cast(pa.int64()).to_numpy(), np.float64) / 1e6


def _numbers(column: pa.ChunkedArray) -> Floats:
    return np.array(column.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)


def _sum(values: tuple[float | None, ...]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None
