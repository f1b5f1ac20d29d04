"""Sizes of tiles for operators that work on rows, and rows in a layout that their kernels read."""

from __future__ import annotations

from torch import Tensor

#: Elements of a tile where rows are short; longer rows take a tile each.
TILE = 1024


def tile(columns: int) -> tuple[int, int]:
    """(rows, columns) of a tile that holds whole rows; both powers of two."""
    cols = power_of_two(columns)
    return max(1, TILE // cols), cols


def power_of_two(n: int) -> int:
    """The least power of two that is at least ``n``, and at least 1."""
    return 1 << max(n - 1, 0).bit_length()


def warps(elements: int) -> int:
    """Warps for a tile of that many elements: up to 16 an element and thread."""
    return min(max(power_of_two(elements) // 512, 1), 16)


def rows_of(x: Tensor) -> Tensor:
    """``x`` (..., C) as (rows, C) with neighbouring columns side by side; copied only where no view is."""
    flat = x.reshape(-1, x.shape[-1]) if x.shape[-1] else x.reshape(0, 0)
    return flat if flat.stride(1) == 1 or flat.shape[1] <= 1 else flat.contiguous()
