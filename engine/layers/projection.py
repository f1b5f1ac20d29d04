"""A decoder's matrix product, with the weight stored the way it is read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
