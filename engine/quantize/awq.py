"""Activation-aware scaling (AWQ, Lin et al. 2023): inputs with large activations get finer steps, at no cost.

W·x = (W·s)·(x/s). Each input's s multiplies its column of W before rounding; what makes that input (a norm's weight,
the rows of another matrix) is divided by it, so that the checkpoint stays an ordinary one. s = rms(x)^α, with the α,
from 0 to 1, whose rounded weights give the least error of the outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zellige.engine.quantize.gptq import loss
from zellige.engine.quantize.grid import Grid, nearest

_STEPS = 10


@dataclass(frozen=True, eq=False)
class Reader:
    """Matrices (B, N, K) that read the same input, and its energy (B, K, K); K may be shared by all B or not."""

    w: Tensor
    energy: Tensor
    grid: Grid


def search(readers: Sequence[Reader]) -> Tensor:
    """The scales s (K,)."""
    energy = torch.stack([r.energy.diagonal(dim1=-2, dim2=-1).sum(0) for r in readers]).sum(0)
    rms = energy.clamp(min=1e-12 * float(energy.max()) + 1e-30).sqrt()
    best, chosen = torch.inf, torch.ones_like(rms)
    for step in range(_STEPS + 1):
        s = rms ** (step / _STEPS)
        s = s / (s.max() * s.min()).sqrt()
        cost = float(sum(_cost(r, s) for r in readers))
        if cost < best:
            best, chosen = cost, s
    return chosen


def _cost(reader: Reader, s: Tensor) -> Tensor:
    energy = reader.energy.diagonal(dim1=-2, dim2=-1) / s.square()
    codes = nearest(reader.w * s, reader.grid, energy, torch.float32, quick=True)
    return loss(reader.w, codes.dense() / s, reader.energy).sum()
