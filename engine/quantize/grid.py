"""Integers for weights: groups of neighbouring inputs of an output share a scale and, where wanted, a zero point.

    W[n, k] ≈ scale[n, k // group] · (q[n, k] − zero[n, k // group]),        0 ≤ q < 2^bits

Functions take any leading dimensions: an expert more is a row more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

#: How far an end of a group's range is pulled in, to be tried: what is cut off costs less than coarser steps would.
_SHRINKS = {
    2: (1.0, 0.88, 0.76, 0.64, 0.52),
    3: (1.0, 0.92, 0.84, 0.76, 0.68),
    4: (1.0, 0.95, 0.9, 0.85, 0.8, 0.75),
    8: (1.0,),
}


@dataclass(frozen=True)
class Grid:
    """``bits`` an integer, ``group`` inputs a scale; ``symmetric``: the zero point is the middle, 2^(bits − 1)."""

    bits: int
    group: int
    symmetric: bool

    @property
    def top(self) -> int:
        """The largest integer."""
        return (1 << self.bits) - 1

    @property
    def middle(self) -> int:
        return 1 << (self.bits - 1)


@dataclass(frozen=True, eq=False)
class Kept:
    """Inputs that have 8 bits: ``index`` (…, C) int64, ``q`` (…, N, C) int8, ``scale`` (…, N, 1)."""

    index: Tensor
    q: Tensor
    scale: Tensor

    @classmethod
    def of(cls, index: Tensor, w: Tensor, dtype: torch.dtype) -> Kept:
        scale = (w.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-7).to(dtype)
        return cls(index, (w / scale.float()).round().clamp(-127, 127).to(torch.int8), scale)

    def dense(self) -> Tensor:
        """Their weights (…, N, C) in float32."""
        return self.scale.float() * self.q.float()


@dataclass(frozen=True, eq=False)
class Codes:
    """A matrix as integers: ``q`` (…, N, K) uint8, ``scale`` (…, N, G), ``zero`` likewise uint8, or None: the middle.

    Where there are ``kept`` inputs their ``q`` is the zero point.
    """

    q: Tensor
    scale: Tensor
    zero: Tensor | None
    bits: int
    group: int
    kept: Kept | None = None

    def dense(self) -> Tensor:
        """The weights in float32."""
        K = self.q.shape[-1]
        scale = self.scale.float().repeat_interleave(self.group, -1)[..., :K]
        if self.zero is None:
            w = scale * (self.q.float() - (1 << (self.bits - 1)))
        else:
            w = scale * (self.q.float() - self.zero.float().repeat_interleave(self.group, -1)[..., :K])
        if self.kept is not None:
            at = self.kept.index.unsqueeze(-2).expand(*w.shape[:-1], -1)
            w = w.scatter(-1, at, self.kept.dense())
        return w

    def one(self, number: int) -> Codes:
        """Of many matrices one."""
        kept = self.kept and Kept(self.kept.index[number], self.kept.q[number], self.kept.scale[number])
        zero = None if self.zero is None else self.zero[number]
        return replace(self, q=self.q[number], scale=self.scale[number], zero=zero, kept=kept)

    def rows(self, begin: int, end: int) -> Codes:
        """Of one matrix the outputs from ``begin`` to ``end``."""
        kept = self.kept and Kept(self.kept.index, self.kept.q[begin:end], self.kept.scale[begin:end])
        zero = None if self.zero is None else self.zero[begin:end]
        return replace(self, q=self.q[begin:end], scale=self.scale[begin:end], zero=zero, kept=kept)


def rounded(w: Tensor, scale: Tensor, zero: Tensor, top: int) -> Tensor:
    """The integers nearest to ``w``, as floats; all of one shape or broadcast."""
    return (w / scale + zero).round_().clamp_(0, top)


def fit(w: Tensor, grid: Grid, weight: Tensor, dtype: torch.dtype, *, quick: bool = False) -> tuple[Tensor, Tensor]:
    """Scale and zero (…, N, G), float32, of ``w`` (…, N, K): of several ranges, those with the least error.

    ``weight`` (…, K): what a squared error of that input costs. Scales are rounded to ``dtype``, as they are stored.
    ``quick``: fewer ranges are tried, to compare with.
    """
    K = w.shape[-1]
    pad = -K % grid.group
    parts = F.pad(w, (0, pad)).unflatten(-1, (-1, grid.group))
    cost = F.pad(weight, (0, pad)).unflatten(-1, (-1, grid.group)).unsqueeze(-3)
    low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
    best = torch.full_like(low, torch.inf)
    best_scale, best_zero = torch.ones_like(low), torch.full_like(low, float(grid.middle))
    for scale, zero in _ranges(low, high, grid, quick):
        scale = scale.to(dtype).float()
        scale = torch.where(scale == 0, torch.ones_like(scale), scale)
        s, z = scale.unsqueeze(-1), zero.unsqueeze(-1)
        error = ((s * (rounded(parts, s, z, grid.top) - z) - parts).square_() * cost).sum(-1)
        better = error < best
        best = torch.where(better, error, best)
        best_scale = torch.where(better, scale, best_scale)
        best_zero = torch.where(better, zero, best_zero)
    return best_scale, best_zero


def _ranges(low: Tensor, high: Tensor, grid: Grid, quick: bool) -> Iterator[tuple[Tensor, Tensor]]:
    shrinks = _SHRINKS[grid.bits]
    if grid.symmetric:
        # The side with one integer more is the one that reaches farther: a negative scale turns the range round.
        middle = torch.full_like(low, float(grid.middle))
        for shrink in shrinks:
            yield torch.where(-low >= high, -low / grid.middle, -high / grid.middle) * shrink, middle
        return
    for down in shrinks:
        for up in (down,) if quick else shrinks:
            scale = (high * up - low * down) / grid.top
            zero = (-low * down / scale.clamp(min=1e-30)).round().clamp(0, grid.top)
            yield scale, zero


def nearest(
    w: Tensor, grid: Grid, weight: Tensor, dtype: torch.dtype, kept: Tensor | None = None, *, quick: bool = False
) -> Codes:
    """Each weight rounded for itself; ``kept`` (…, C): inputs that have 8 bits; ``quick`` as in ``fit``."""
    K = w.shape[-1]
    wide = None
    if kept is not None:
        at = kept.unsqueeze(-2).expand(*w.shape[:-1], -1)
        wide = Kept.of(kept, w.gather(-1, at), dtype)
        w, weight = w.scatter(-1, at, 0.0), weight.scatter(-1, kept, 0.0)
    scale, zero = fit(w, grid, weight, dtype, quick=quick)
    s, z = (t.repeat_interleave(grid.group, -1)[..., :K] for t in (scale, zero))
    q = rounded(w, s, z, grid.top).to(torch.uint8)
    stored_zero = None if grid.symmetric else zero.to(torch.uint8)
    return Codes(q, scale.to(dtype), stored_zero, grid.bits, grid.group, wide)
