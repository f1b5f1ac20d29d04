"""How the kernels behaved in each run: what the meter saw in a step is shared among the runs that were in it."""

from __future__ import annotations

from collections.abc import Mapping

from zellige.engine.account import health_rows
from zellige.engine.api import KernelHealth
from zellige.kernels.tally import Reading, merged


class RunHealth:
    """Readings by run. Work is shared by tokens; a finding concerns every run that was in the step."""

    def __init__(self) -> None:
        self._readings: dict[str, Reading] = {}

    def share(self, reading: Reading, tokens: Mapping[str, int]) -> None:
        """Attribute what happened in a step to its runs, which had so many ``tokens`` each."""
        total = sum(tokens.values())
        for run_id, n in tokens.items():
            before = self._readings.get(run_id, Reading())
            self._readings[run_id] = merged((before, reading.share(n / total)))

    def reading(self, run_id: str) -> Reading:
        """What was attributed to a run so far."""
        return self._readings.get(run_id, Reading())

    def rows(self, run_id: str) -> tuple[KernelHealth, ...]:
        """One row an operator and device, in order of name."""
        return health_rows(self.reading(run_id))
