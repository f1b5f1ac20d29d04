"""A check of one launch: guarded memory, comparison with the reference, equality of bits when launched again.

All of it stays on the device until the figures are fetched at once: one wait a check.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zellige.kernels.contract import Operator, Outputs
from zellige.kernels.tally import FaultKind

#: Bytes before and behind each output. A multiple of what allocators align to, so that a kernel takes the same path.
BAND_BYTES = 64 * 1024
_PATTERN = 0xA5


class GuardedMemory:
    """Memory for one launch, with a pattern on both sides; floats hold NaN until they are written."""

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []

    def empty(self, size: tuple[int, ...], /, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """As ``torch.empty``."""
        nbytes = math.prod(size) * dtype.itemsize
        buffer = torch.full((nbytes + 2 * BAND_BYTES,), _PATTERN, dtype=torch.uint8, device=device)
        self._buffers.append(buffer)
        inner = buffer[BAND_BYTES : BAND_BYTES + nbytes].view(dtype).view(size)
        return inner.fill_(math.nan) if dtype.is_floating_point else inner

    def hits(self) -> list[Tensor]:
        """For each buffer how many bytes of its bands were written over."""
        return [(b[:BAND_BYTES] != _PATTERN).sum() + (b[-BAND_BYTES:] != _PATTERN).sum() for b in self._buffers]


def difference(got: Tensor, want: Tensor, least_norm: float = 0.0) -> tuple[Tensor, Tensor]:
    """Relative L2 of the worst row, and how many values are not finite where ``want`` is.

    A row's error is measured against its own norm or the rows' root mean square, whichever is larger: one wrong row
    among ten thousand shows, and a row of almost nothing raises no alarm. Integers must be equal: error 1 where one is
    not.
    """
    if got.shape != want.shape:
        raise ValueError(f"a result {tuple(got.shape)} where the reference gives {tuple(want.shape)}")
    zero = torch.zeros((), dtype=torch.float64, device=got.device)
    if not got.numel():
        return zero, zero
    if not got.is_floating_point():
        return (got != want).any().double(), zero
    g, w = (t.reshape(len(t), -1) if t.ndim > 1 else t.reshape(1, -1) for t in (got, want))
    known, finite = torch.isfinite(w), torch.isfinite(g)
    off = torch.where(known & finite, g.float() - w.float(), 0.0)
    off = torch.linalg.vector_norm(off, dim=1, dtype=torch.float64)
    own = torch.linalg.vector_norm(torch.where(known, w, 0.0), dim=1, dtype=torch.float64)
    against = torch.maximum(own, own.square().mean().sqrt()).clamp(min=max(least_norm, 1e-30))
    return (off / against).max(), (known & ~finite).sum().double()


def bits_differ(first: Sequence[Tensor], second: Sequence[Tensor]) -> list[Tensor]:
    """For each pair whether any bit differs."""
    return [
        (a.reshape(-1).view(torch.uint8) != b.reshape(-1).view(torch.uint8)).any()
        for a, b in zip(first, second, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Findings:
    """The figures of one check; ``error`` is None where the reference found no memory to run in."""

    error: float | None
    tolerance: float
    nonfinite: int
    guard_hits: int
    repeated: bool

    def faults(self) -> Iterator[tuple[FaultKind, str]]:
        """What is wrong, in words."""
        if self.guard_hits:
            yield "guard", f"{self.guard_hits} bytes written beside an output"
        if self.nonfinite:
            yield "nonfinite", f"{self.nonfinite} values not finite where the reference's are"
        if self.error is not None and self.error > self.tolerance:
            yield "tolerance", f"relative L2 {self.error:.1e} over the tolerance {self.tolerance:.0e}"
        if not self.repeated:
            yield "repeat", "other bits when launched again"


def checked(operator: Operator, args: tuple[Any, ...]) -> tuple[Outputs, Findings, float]:
    """Launch under observation: the outputs, what was found, and seconds beyond those of the launch itself.

    Waits for the device, so an asynchronous error of the launch is raised here.
    """
    begin = time.perf_counter()
    want: tuple[Tensor, ...] | None
    try:
        # First: it must see arguments that the launch writes as they were.
        wanted = operator.reference(*args)
        want = (wanted,) if isinstance(wanted, Tensor) else wanted
    except torch.OutOfMemoryError:
        want = None
    memory = GuardedMemory()
    launching = time.perf_counter()
    outputs = operator.run(memory.empty, *args)
    launch_s = time.perf_counter() - launching
    got = operator.results(outputs, args)
    compared = (
        [difference(g, w, operator.least_norm) for g, w in zip(got, want, strict=True)] if want is not None else []
    )
    unequal: list[Tensor] = []
    if operator.repeats:
        again = GuardedMemory()  # elsewhere in memory, and its first values are NaN as well
        unequal = bits_differ(got, operator.results(operator.run(again.empty, *args), args))
    errors, nonfinite = [e for e, _ in compared], [n for _, n in compared]
    hits = memory.hits()
    values = torch.stack([v.double() for v in (*errors, *nonfinite, *hits, *unequal)]).tolist()
    n, bands = 2 * len(compared), 2 * len(compared) + len(hits)
    findings = Findings(
        error=max(values[: len(errors)]) if errors else None,
        tolerance=operator.tolerance[args[0].dtype],
        nonfinite=int(sum(values[len(errors) : n])),
        guard_hits=int(sum(values[n:bands])),
        repeated=not any(values[bands:]),
    )
    return outputs, findings, time.perf_counter() - begin - launch_s
