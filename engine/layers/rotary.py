"""Angles of rotary position embeddings, always float32: bfloat16 angles make neighbouring positions equal."""

from __future__ import annotations

import torch
from torch import Tensor


def inverse_frequencies(theta: float, dim: int) -> Tensor:
    """1 / theta^(2i/dim) for i < dim/2 (RoFormer, equation 15)."""
    return 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))


class MRope:
    """Interleaved multi-dimensional rotary embedding of Qwen3-VL.

    A token stands at (time, row, column). Of the D/2 frequencies, numbers 1, 4, 7, ... below 3 · sections[1] are turned
    by the row, numbers 2, 5, 8, ... below 3 · sections[2] by the column and all others by time.
    """

    def __init__(self, head_dim: int, theta: float, sections: tuple[int, int, int], device: torch.device) -> None:
        if sum(sections) != head_dim // 2:
            raise ValueError(f"mrope sections {sections} do not add up to {head_dim // 2}")
        which = torch.zeros(head_dim // 2, dtype=torch.int64)
        for axis in (1, 2):
            which[axis : 3 * sections[axis] : 3] = axis
        self._which = which.to(device)
        self._inverse = inverse_frequencies(theta, head_dim).to(device)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """``positions`` (T, 3) to cos and sin, each (T, D/2) float32."""
        angles = positions.index_select(1, self._which).float() * self._inverse
        return angles.cos(), angles.sin()


class AxialRope:
    """Two-dimensional rotary embedding of the vision tower: half of the frequencies by row, half by column."""

    def __init__(self, head_dim: int, theta: float, device: torch.device) -> None:
        self._inverse = inverse_frequencies(theta, head_dim // 2).to(device)

    def __call__(self, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """``rows``, ``columns`` (N,) to cos and sin, each (N, D/2) float32."""
        places = torch.stack((rows, columns), dim=1).float()
        angles = (places[:, :, None] * self._inverse).flatten(1)
        return angles.cos(), angles.sin()
