"""A decoder's matrix product, with the weight stored the way it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from zellige.engine.quantize.packed import Packed


class Product(Protocol):
    """``x`` (T, in) to (T, out)."""

    def __call__(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Projection:
    """y = x · W + b with ``weight`` (in, out): the faster order on a CPU for the few rows of a decoding step."""

    weight: Tensor
    bias: Tensor | None = None

    @classmethod
    def of(cls, *weights: Tensor, biases: tuple[Tensor, ...] = ()) -> Projection:
        """From weights as checkpoints store them (out, in); several become one, their outputs side by side."""
        return cls(torch.cat(weights).T.contiguous(), torch.cat(biases) if biases else None)

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.weight if self.bias is None else torch.addmm(self.bias, x, self.weight)


@dataclass(frozen=True, eq=False)
class QuantizedProjection:
    """The same with a quantised weight."""

    weight: Packed
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        y = self.weight(x)
        return y if self.bias is None else y.add_(self.bias)


@dataclass(frozen=True, eq=False)
class SideBySide:
    """Products that read the same input but are stored differently."""

    parts: tuple[Product, ...]

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], dim=1)


def product(*weights: Tensor | Packed, biases: Sequence[Tensor] = ()) -> Product:
    """One product of several weights, dense (out, in) or quantised, their outputs side by side."""
    bias = torch.cat(list(biases)) if biases else None
    packed = [w for w in weights if isinstance(w, Packed)]
    dense = [w for w in weights if isinstance(w, Tensor)]
    if not packed:
        return Projection.of(*dense, biases=tuple(biases))
    if not dense and (whole := Packed.stacked(packed)) is not None:
        return QuantizedProjection(whole, bias)
    each: Sequence[Tensor | None] = biases or [None] * len(weights)
    return SideBySide(
        tuple(
            QuantizedProjection(w, b) if isinstance(w, Packed) else Projection(w.T.contiguous(), b)
            for w, b in zip(weights, each, strict=True)
        )
    )
