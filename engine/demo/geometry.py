"""What a grid decides: rotary angles, position-embedding taps, attention mask. All of it may be refilled in place.

Shapes: N patches (merge order), n = N / 4 cells, S text slots' tokens, L sequence (prefix + n + S, to a multiple of 8).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from zellige.engine.demo.architecture import MERGE, Architecture
from zellige.engine.demo.grids import Grid
from zellige.engine.demo.packing import PREFIX_TOKENS


@dataclass(frozen=True, eq=False)
class Geometry:
    """Tensors that depend on the grid and the slots; ``order`` maps a patch in merge order to its raster index."""

    vision_cos: Tensor  # (1, N, 1, D)
    vision_sin: Tensor
    position_taps: Tensor  # (N, side * side)
    order: Tensor  # (N,)
    text_cos: Tensor  # (1, L, 1, D)
    text_sin: Tensor
    mask: Tensor  # (1, 1, L, L), 0 or -inf

    def copy_(self, other: Geometry) -> None:
        """Take over another grid of as many cells, in place."""
        for entry in fields(self):
            getattr(self, entry.name).copy_(getattr(other, entry.name))

    def clone(self) -> Geometry:
        return Geometry(*(getattr(self, entry.name).clone() for entry in fields(self)))


def sequence_length(grid: Grid, slots: tuple[int, ...]) -> int:
    return -(-(PREFIX_TOKENS + grid.cells + sum(slots)) // 8) * 8


def _merge_order(grid: Grid) -> tuple[Tensor, Tensor]:
    """(row, column) of every patch in merge order."""
    rows, columns = torch.meshgrid(torch.arange(grid.rows * MERGE), torch.arange(grid.columns * MERGE), indexing="ij")

    def blocks(x: Tensor) -> Tensor:
        return x.reshape(grid.rows, MERGE, grid.columns, MERGE).transpose(1, 2).flatten()

    return blocks(rows), blocks(columns)


def _taps(index: Tensor, count: int, side: int) -> tuple[Tensor, Tensor]:
    """Two neighbours in the learned square and their weights, for linear interpolation along one axis."""
    source = index.float() * (side - 1) / max(count - 1, 1)
    low = source.floor()
    neighbours = torch.stack([low.long(), low.long() + 1], 1).clamp(0, side - 1)
    return neighbours, torch.stack([1 - (source - low), source - low], 1)


def _position_taps(grid: Grid, rows: Tensor, columns: Tensor, side: int) -> Tensor:
    row_at, row_weight = _taps(rows, grid.rows * MERGE, side)
    column_at, column_weight = _taps(columns, grid.columns * MERGE, side)
    index = (row_at[:, :, None] * side + column_at[:, None, :]).reshape(-1, 4)
    weight = (row_weight[:, :, None] * column_weight[:, None, :]).reshape(-1, 4)
    return torch.zeros(len(rows), side * side).scatter_add_(1, index, weight)


def _vision_angles(a: Architecture, rows: Tensor, columns: Tensor) -> Tensor:
    half = a.vision_hidden // a.vision_heads // 2
    frequency = 1.0 / (a.vision_theta ** (torch.arange(0, half, 2).float() / half))
    angles = torch.cat([rows[:, None] * frequency, columns[:, None] * frequency], -1)
    return torch.cat([angles, angles], -1)


def _text_positions(grid: Grid, slots: tuple[int, ...], length: int) -> tuple[Tensor, Tensor]:
    """(3, L) positions in time, height and width; (L,) segment: 0 prefix and image, then one a slot, 99 padding."""
    positions = torch.zeros(3, length, dtype=torch.long)
    segment = torch.full((length,), 99)
    image_end = PREFIX_TOKENS + grid.cells
    positions[:, :PREFIX_TOKENS] = torch.arange(PREFIX_TOKENS)
    positions[0, PREFIX_TOKENS:image_end] = PREFIX_TOKENS
    positions[1, PREFIX_TOKENS:image_end] = PREFIX_TOKENS + torch.arange(grid.rows).repeat_interleave(grid.columns)
    positions[2, PREFIX_TOKENS:image_end] = PREFIX_TOKENS + torch.arange(grid.columns).repeat(grid.rows)
    segment[:image_end] = 0
    start = image_end
    for number, slot in enumerate(slots):
        positions[:, start : start + slot] = PREFIX_TOKENS + max(grid) + torch.arange(slot)
        segment[start : start + slot] = number + 1
        start += slot
    return positions, segment


def _text_angles(a: Architecture, positions: Tensor) -> Tensor:
    """Interleaved M-RoPE: frequencies take turns between time, height and width as far as the sections reach."""
    frequency = 1.0 / (a.rope_theta ** (torch.arange(0, a.head_size, 2).float() / a.head_size))
    by_axis = positions[..., None].float() * frequency
    angles = by_axis[0].clone()
    for axis in (1, 2):
        reach = a.rope_sections[axis] * 3
        angles[:, axis:reach:3] = by_axis[axis, :, axis:reach:3]
    return torch.cat([angles, angles], -1)


def make_geometry(
    a: Architecture, grid: Grid, slots: tuple[int, ...], device: torch.device, dtype: torch.dtype
) -> Geometry:
    """The geometry of one grid with these slots; vision angles stay in float32, the rest is of ``dtype``."""
    rows, columns = _merge_order(grid)
    vision = _vision_angles(a, rows, columns)[None, :, None, :]
    positions, segment = _text_positions(grid, slots, sequence_length(grid, slots))
    text = _text_angles(a, positions)[None, :, None, :]
    at = torch.arange(len(segment))
    seen = (at[:, None] >= at[None]) & ((segment[None] == 0) | (segment[None] == segment[:, None]))
    mask = torch.zeros(len(segment), len(segment)).masked_fill(~seen, float("-inf"))[None, None]
    return Geometry(
        vision.cos().to(device),
        vision.sin().to(device),
        _position_taps(grid, rows, columns, a.position_side).to(device, dtype),
        (rows * grid.columns * MERGE + columns).to(device),
        text.cos().to(device, dtype),
        text.sin().to(device, dtype),
        mask.to(device, dtype),
    )
