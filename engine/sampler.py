"""How the tokens of a step are chosen: each request's random numbers, edits and stop tokens; together, on a device."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor

from zellige.engine.api import Sampling
from zellige.kernels.sampling import Allowed, Controls, Draws, Edits

#: A pattern of up to so many tokens, three times in a row and at least so many tokens in all, ends an answer.
PATTERN_TOKENS, REPEATED_TOKENS = 256, 24
#: More tokens than any vocabulary has; a larger top_k means the same.
_ALL = 1 << 31


class RequestSampler:
    """The state of one request. Its draws depend on its seed and the place in the answer, on nothing else."""

    def __init__(self, sampling: Sampling, eos: frozenset[int]) -> None:
        self.sampling = sampling
        self._key = str(secrets.randbits(64) if sampling.seed is None else sampling.seed).encode()
        self._stops = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else eos)
        self._bias = dict(sampling.logit_bias)
        self._penalized: dict[int, float] = {}

    def row(self, place: int) -> RowControls:
        """What decides the token at ``place`` in the answer."""
        u = self._uniform(place) if self.sampling.temperature > 0 else 0.0
        return RowControls(self.sampling, u, self._edits(place))

    def _uniform(self, place: int) -> float:
        digest = hashlib.blake2b(self._key + place.to_bytes(8, "little"), digest_size=8).digest()
        return (int.from_bytes(digest, "little") >> 11) * 2.0**-53

    def stops_at(self, token: int) -> bool:
        return token in self._stops

    @property
    def looks_back(self) -> bool:
        """Whether a token is chosen with regard to those before it."""
        return bool(self.sampling.frequency_penalty or self.sampling.presence_penalty)

    def count(self, token: int) -> None:
        """A token was generated: penalties fall on it from now on."""
        s = self.sampling
        if s.frequency_penalty or s.presence_penalty:
            self._penalized[token] = self._penalized.get(token, -s.presence_penalty) - s.frequency_penalty

    def _edits(self, place: int) -> dict[int, float]:
        if not (self._bias or self._penalized or place < self.sampling.min_tokens):
            return {}
        edits = dict(self._bias)
        for token, penalty in self._penalized.items():
            edits[token] = edits.get(token, 0.0) + penalty
        if place < self.sampling.min_tokens:
            edits |= dict.fromkeys(self._stops, -math.inf)
        return edits


@dataclass(frozen=True)
class Chosen:
    """What a step chose for one row: the token, its log-probability, the likeliest tokens with theirs.

    Where the row was not ``finite`` none of it means anything.
    """

    token: int
    logprob: float
    finite: bool
    top: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True)
class RowControls:
    """What decides one row's token: its settings, its uniform number, what is added to single logits."""

    sampling: Sampling
    u: float
    edits: dict[int, float]


@dataclass(frozen=True)
class StepControls:
    """What decides the tokens of a step, while the masks of the rows ``masked`` are still being computed."""

    rows: Sequence[RowControls]
    masked: Sequence[int] = ()
    masks: Future[Tensor] | None = None

    def on(self, device: torch.device) -> Controls:
        """The same on the device, to be called when the logits are on their way: it waits for the masks."""
        allowed = None
        if self.masks is not None:
            allowed = Allowed(_integers(self.masked, device), self.masks.result().to(device))
        top = max((r.sampling.logprobs or 0 for r in self.rows), default=0)
        return Controls(self._draws(device), self._edits(device), allowed, top)

    def _draws(self, device: torch.device) -> Draws | None:
        settings = [r.sampling for r in self.rows]
        if all(s.temperature == 0 for s in settings):
            return None
        numbers = torch.tensor([(s.temperature, s.top_p, s.min_p) for s in settings], dtype=torch.float32).to(device)
        cut = [i for i, s in enumerate(settings) if s.temperature > 0 and (s.top_p < 1 or s.top_k > 0)]
        return Draws(
            temperature=numbers[:, 0],
            top_p=numbers[:, 1],
            top_k=_integers([min(max(s.top_k, 0), _ALL) for s in settings], device),
            min_p=numbers[:, 2],
            u=torch.tensor([r.u for r in self.rows], dtype=torch.float64).to(device),
            cut=_integers(cut, device),
        )

    def _edits(self, device: torch.device) -> Edits | None:
        flat = [(row, token, value) for row, r in enumerate(self.rows) for token, value in r.edits.items()]
        if not flat:
            return None
        row, token, value = zip(*flat, strict=True)
        values = torch.tensor(value, dtype=torch.float32).to(device)
        return Edits(_integers(row, device), _integers(token, device), values)


def _integers(values: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int64).to(device)


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
