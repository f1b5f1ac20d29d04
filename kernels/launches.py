"""What a meter keeps of an operator's launches of about one size."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from zellige.kernels.contract import Operator

#: Up to this many rows every count is a size of its own: faults at exactly 2 or 3 rows are old acquaintances.
EXACT_ROWS = 32


def bucket(rows: int) -> int:
    """The least number of rows that is taken for the same size; four sizes an octave above EXACT_ROWS."""
    if rows <= EXACT_ROWS:
        return rows
    octave = rows.bit_length() - 3
    return (rows >> octave) << octave


@dataclass(slots=True, eq=False)
class Launches:
    """Counts, times by samples, and when to do more than launch."""

    operator: Operator
    device: torch.device
    launches: int = 0
    bytes: int = 0
    #: The launch number from which something is to be done beside launching.
    due: int = 0
    check_at: int = 0
    checked: int = 0
    #: Milliseconds of the launches up to number ``timed``, by samples; ``last_ms`` is the latest sample.
    device_ms: float = 0.0
    last_ms: float = 0.0
    timed: int = 0
    #: What the last reading held.
    read: tuple[int, int, float] = (0, 0, 0.0)

    def sample(self, ms: float) -> float:
        """A launch took ``ms``: so did, nearly enough, those since the sample before; returns what that adds."""
        added = (self.launches - self.timed) * ms
        self.device_ms += added
        self.last_ms, self.timed = ms, self.launches
        return added

    def so_far(self) -> tuple[int, int, float]:
        """Launches, bytes and milliseconds up to now."""
        return self.launches, self.bytes, self.device_ms + (self.launches - self.timed) * self.last_ms


@dataclass(frozen=True, slots=True)
class Captured:
    """The launches inside a captured graph."""

    launches: tuple[tuple[Launches, int, int], ...]
