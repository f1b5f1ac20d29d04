"""What is known of each operator on each device: counts, the worst of the checks, a verdict. Plain values, no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Verdict = Literal["healthy", "unchecked", "suspect", "failed"]
FaultKind = Literal["tolerance", "nonfinite", "guard", "repeat", "launch"]
#: From best to worst; a whole is as good as its worst part, and knows nothing where nothing was checked.
_RANK: tuple[Verdict, ...] = ("healthy", "unchecked", "suspect", "failed")


@dataclass(frozen=True, slots=True)
class Tally:
    """One operator on one device. ``launches`` and ``bytes`` are not whole where a launch served several runs.

    ``max_rel_l2`` and ``tolerance`` are of the check that came nearest to its tolerance or furthest beyond it.
    ``nonfinite`` counts values that are NaN or infinite where the reference's are not; ``guard_hits`` bytes that were
    written beside an output; ``repeat_mismatches`` and ``launch_errors`` launches.
    """

    operator: str
    device: str
    launches: float = 0.0
    checked: int = 0
    max_rel_l2: float | None = None
    tolerance: float | None = None
    nonfinite: int = 0
    guard_hits: int = 0
    repeat_mismatches: int = 0
    launch_errors: int = 0
    device_ms: float = 0.0
    bytes: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """``failed``: a launch reported an error. ``suspect``: a check did. ``unchecked``: nothing was compared."""
        if self.launch_errors:
            return "failed"
        if self.nonfinite or self.guard_hits or self.repeat_mismatches or self._excess > 1:
            return "suspect"
        return "healthy" if self.checked else "unchecked"

    @property
    def _excess(self) -> float:
        """The worst error in units of its tolerance; below 0 where none was measured."""
        return -1.0 if self.max_rel_l2 is None or not self.tolerance else self.max_rel_l2 / self.tolerance

    def plus(self, other: Tally) -> Tally:
        """Both together."""
        worst = other if other._excess > self._excess else self
        return Tally(
            self.operator,
            self.device,
            self.launches + other.launches,
            self.checked + other.checked,
            worst.max_rel_l2,
            worst.tolerance,
            self.nonfinite + other.nonfinite,
            self.guard_hits + other.guard_hits,
            self.repeat_mismatches + other.repeat_mismatches,
            self.launch_errors + other.launch_errors,
            self.device_ms + other.device_ms,
            self.bytes + other.bytes,
        )

    def share(self, part: float) -> Tally:
        """What falls to a run that had ``part`` (0 to 1) of the tokens: its part of the work, all of the findings."""
        return replace(self, launches=self.launches * part, device_ms=self.device_ms * part, bytes=self.bytes * part)


@dataclass(frozen=True, slots=True)
class Fault:
    """What a check or a launch found wrong, with the launch that did it (``sequence`` counts all launches from 1)."""

    operator: str
    kind: FaultKind
    sequence: int
    device: str
    stream: int
    shapes: str
    detail: str

    def __str__(self) -> str:
        return f"{self.operator}: {self.detail} (launch {self.sequence} on {self.device}: {self.shapes})"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a meter saw: one tally an operator and device, and the faults in the order they were found."""

    tallies: tuple[Tally, ...] = ()
    faults: tuple[Fault, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst of all; ``unchecked`` where there is nothing."""
        return max((t.verdict for t in self.tallies), key=_RANK.index, default="unchecked")

    def share(self, part: float) -> Reading:
        """A run's share of this reading."""
        return replace(self, tallies=tuple(t.share(part) for t in self.tallies))


def merged(readings: Iterable[Reading]) -> Reading:
    """All of them as one: by operator and device, in order of name."""
    whole: dict[tuple[str, str], Tally] = {}
    faults: list[Fault] = []
    for reading in readings:
        faults += reading.faults
        for t in reading.tallies:
            key = t.operator, t.device
            whole[key] = whole[key].plus(t) if key in whole else t
    return Reading(tuple(whole[key] for key in sorted(whole)), tuple(faults))
