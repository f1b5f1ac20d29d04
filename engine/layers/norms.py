"""Norms as parameters and a call."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from zellige.engine.checkpoint import Weights
from zellige.kernels.rms_norm import add_rms_norm, rms_norm


@dataclass(frozen=True, eq=False)
class RMSNorm:
    """Root-mean-square norm of the last dimension."""

    weight: Tensor
    eps: float

    @classmethod
    def load(cls, w: Weights, name: str, size: int, eps: float) -> RMSNorm:
        return cls(w.take(f"{name}.weight", size), eps)

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def after(self, x: Tensor, more: Tensor | None) -> tuple[Tensor, Tensor]:
        """The norm of ``x + more``, and that sum, in one pass over them; ``more`` None stands for nothing."""
        return (self(x), x) if more is None else add_rms_norm(x, more, self.weight, self.eps)


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """Mean and variance norm of the last dimension, eps 1e-6 (the vision towers' own)."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def load(cls, w: Weights, name: str, size: int) -> LayerNorm:
        return cls(w.take(f"{name}.weight", size), w.take(f"{name}.bias", size))

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-6)


@dataclass(frozen=True, eq=False)
class Linear:
    """y = W x + b."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def load(cls, w: Weights, name: str, out: int, into: int, *, bias: bool) -> Linear:
        return cls(w.dense(name, out, into), w.take(f"{name}.bias", out) if bias else None)

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)
