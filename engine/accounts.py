"""What each run had of the engine: requests, tokens, seconds by stage, kernel health."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from zellige.engine.account import Account
from zellige.engine.kernel_health import RunHealth
from zellige.engine.runner import StepResult
from zellige.kernels.meter import METER


@dataclass(frozen=True)
class Share:
    """A request's part of a step: its run, tokens, and whether they belong to its prompt."""

    run_id: str
    tokens: int
    prompt: bool


class Accounts:
    """Written by the engine's thread alone; read by any.

    A step's share-out can wait until the next step is on its way to the device: ``ran`` notes it, ``settle`` does it.
    """

    def __init__(self) -> None:
        self._runs: dict[str, Counter[str]] = {}
        self._health = RunHealth()
        self._open: tuple[Sequence[Share], StepResult] | None = None

    def account(self, run_id: str) -> Account:
        """What is settled so far."""
        return Account(dict(self._runs.get(run_id, ())), self._health.reading(run_id))

    def count(self, run_id: str, **more: float) -> None:
        """Add to the fields of a run's meter."""
        self._runs.setdefault(run_id, Counter()).update(more)

    def ran(self, shares: Sequence[Share], result: StepResult) -> None:
        """A step is over, whose tokens were these."""
        self.settle()
        self._open = shares, result

    def settle(self) -> None:
        """Share the last step's seconds by tokens; the tower's among the runs whose prompts were read."""
        if self._open is None:
            return
        (shares, result), self._open = self._open, None
        read: Counter[str] = Counter()
        written: Counter[str] = Counter()
        for share in shares:
            (read if share.prompt else written)[share.run_id] += share.tokens
        total, prompts = read.total() + written.total(), read.total()
        self._health.share(METER.take(), read + written)
        for run_id, n in read.items():
            self.count(run_id, vision_s=result.vision_s * n / prompts, prefill_s=result.decoder_s * n / total)
        for run_id, n in written.items():
            self.count(run_id, decode_s=result.decoder_s * n / total)
