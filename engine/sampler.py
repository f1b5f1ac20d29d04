"""What one request's sampling needs from step to step: its random numbers, its stop tokens, its repetition stop."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from zellige.engine.api import Sampling
from zellige.kernels.sampling import Draws

#: A pattern of up to so many tokens, three times in a row and at least so many tokens in all, ends an answer.
PATTERN_TOKENS, REPEATED_TOKENS = 256, 24


class RequestSampler:
    """The state of one request. Its draws depend on its seed alone, never on what else is in the batch."""

    def __init__(self, sampling: Sampling, eos: frozenset[int]) -> None:
        self.sampling = sampling
        self._random = random.Random(sampling.seed)
        self._stops = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else eos)

    def uniform(self) -> float:
        """The next number in [0, 1) of this request; a greedy request draws none."""
        return self._random.random() if self.sampling.temperature > 0 else 0.0

    def stops_at(self, token: int) -> bool:
        return token in self._stops


def draws(samplers: Sequence[RequestSampler], device: torch.device) -> Draws | None:
    """One row a request; None where all are greedy."""
    if all(s.sampling.temperature == 0 for s in samplers):
        return None
    rows = [(s.sampling.temperature, s.sampling.top_p, s.sampling.min_p, s.uniform()) for s in samplers]
    return Draws(*torch.tensor(rows, dtype=torch.float32).to(device).unbind(1))


def repeats(tokens: Sequence[int]) -> bool:
    """Whether ``tokens`` end in a pattern that stands there three times in a row.

    Short patterns must go on for REPEATED_TOKENS tokens: "1,000,000" and a row of dots are not loops.
    """
    n = len(tokens)
    last = tokens[-1] if n else None
    for period in range(1, min(PATTERN_TOKENS, n // 3) + 1):
        if tokens[n - 1 - period] != last:
            continue
        span = max(3 * period, REPEATED_TOKENS)
        if span <= n and all(tokens[i] == tokens[i - period] for i in range(n - span + period, n)):
            return True
    return False
