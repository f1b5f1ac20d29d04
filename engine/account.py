"""What one run had of an engine, as plain values that add up: its counts and seconds, and what the meter saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from zellige.engine.api import KernelHealth, RunMeter
from zellige.kernels.tally import Reading, merged


@dataclass(frozen=True)
class Account:
    """``values`` are the numbers of a ``RunMeter`` by name; what is missing is 0."""

    values: Mapping[str, float] = field(default_factory=dict)
    reading: Reading = field(default_factory=Reading)

    def plus(self, other: Account) -> Account:
        """Both together."""
        values = Counter(self.values)
        values.update(other.values)
        return Account(values, merged((self.reading, other.reading)))

    def without_launch_errors(self) -> Account:
        """The same, but for launches that reported an error."""
        tallies = tuple(replace(t, launch_errors=0) for t in self.reading.tallies)
        return replace(self, reading=Reading(tallies))

    def meter(self) -> RunMeter:
        """The same as flows see it."""
        values: dict[str, Any] = dict(self.values)
        return RunMeter(**values, kernels=health_rows(self.reading))


def health_rows(reading: Reading) -> tuple[KernelHealth, ...]:
    """One row an operator and device, in order of name."""
    return tuple(
        KernelHealth(
            operator=t.operator,
            device=t.device,
            launches=round(t.launches),
            checked=t.checked,
            max_rel_l2=t.max_rel_l2,
            tolerance=t.tolerance,
            nonfinite=t.nonfinite,
            guard_hits=t.guard_hits,
            repeat_mismatches=t.repeat_mismatches,
            launch_errors=t.launch_errors,
            device_ms=t.device_ms,
            bytes=round(t.bytes),
            verdict=t.verdict,
        )
        for t in reading.tallies
    )
