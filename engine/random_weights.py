"""Weights drawn at random, by name: a model's full size without its files, to measure how fast it runs.

The same name and shape always give the same numbers, so that another engine can be given the same model.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from zellige.engine.checkpoint import Weights

#: Of a matrix; small beside the embeddings, so that tokens stay apart and are sent to experts evenly.
SCALE, EMBEDDING_SCALE = 0.02, 1.0


class RandomWeights(Weights):
    """Every tensor that is asked for is there, experts as released checkpoints hold them."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype

    def __contains__(self, name: str) -> bool:
        return True

    def ignore(self, name: str) -> None:
        """Nothing is left over."""

    def shape(self, name: str) -> tuple[int, ...] | None:
        """None: whatever shape is asked for."""
        return None

    def matrix(self, name: str, outputs: int, inputs: int) -> Tensor:
        return self.take(f"{name}.weight", outputs, inputs)

    def dense(self, name: str, outputs: int, inputs: int) -> Tensor:
        return self.matrix(name, outputs, inputs)

    def take(self, name: str, *shape: int) -> Tensor:
        """Normal numbers; about 1 for norms, 0 for biases."""
        return fill(name, torch.empty(shape, dtype=self.dtype, device=self.device))


def fill(name: str, tensor: Tensor) -> Tensor:
    """Fill ``tensor`` with the numbers of ``name``, in place."""
    if name.endswith(".bias"):
        return tensor.zero_()
    generator = torch.Generator(tensor.device).manual_seed(zlib.crc32(name.encode()))
    scale = EMBEDDING_SCALE if name.endswith("embed_tokens.weight") else SCALE
    tensor.normal_(0.0, scale, generator=generator)
    return tensor.add_(1.0) if "norm" in name else tensor
