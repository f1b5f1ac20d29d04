"""The gated activation of a SwiGLU block.

y = silu(g) · u        with [g | u] = x, silu(z) = z / (1 + e^-z)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from zellige.kernels.contract import ROUNDED_ONCE, Empty, Operator, noise
from zellige.kernels.meter import METER
from zellige.kernels.tiles import TILE, power_of_two, rows_of, warps
from zellige.kernels.tritonic import jit, tl


def silu_mul_reference(x: Tensor) -> Tensor:
    """The formula, in float32, rounded once."""
    gate, up = x.float().chunk(2, dim=-1)
    return (gate / (1 + torch.exp(-gate)) * up).to(x.dtype)


@jit
def _silu_mul_kernel(x, out, x_stride, T, half, blocks, ROWS: tl.constexpr, COLS: tl.constexpr):  # type: ignore[no-untyped-def]
    """A program takes ROWS rows of one of the ``blocks`` pieces that COLS columns make of a row."""
    pid = tl.program_id(0)
    row = (pid // blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = pid % blocks * COLS + tl.arange(0, COLS)[None, :]
    inside = (row < T) & (col < half)
    gate = tl.load(x + row * x_stride + col, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * x_stride + half + col, mask=inside, other=0.0).to(tl.float32)
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * half + col, y.to(out.dtype.element_ty), mask=inside)


def _run(empty: Empty, x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    flat = rows_of(x)
    T = flat.shape[0]
    out = empty((*x.shape[:-1], half), dtype=x.dtype, device=x.device)
    cols = min(power_of_two(half), TILE)
    rows = TILE // cols
    blocks = -(-half // cols)
    if T and half:
        grid = (-(-T // rows) * blocks,)
        _silu_mul_kernel[grid](
            flat, out, flat.stride(0), T, half, blocks, ROWS=rows, COLS=cols, num_warps=warps(rows * cols)
        )
    return out


def _inputs(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Any, ...]:
    return (noise(shape, dtype, device, 4.0),)


OPERATOR = Operator(
    name="silu_mul",
    run=_run,
    reference=silu_mul_reference,
    inputs=_inputs,
    edges=((1, 2), (5, 34), (3, 320), (2, 2050), (1025, 2), (0, 8)),
    large=((1, 24576), (3, 1536), (4096, 12288), (65537, 1536)),
    tolerance=ROUNDED_ONCE,
)


def silu_mul(x: Tensor) -> Tensor:
    """``x`` (..., 2I), gate first, to (..., I)."""
    columns = x.shape[-1]
    if columns % 2:
        raise ValueError(f"silu_mul: {columns} columns cannot be halved")
    if not x.is_cuda:
        METER.count(OPERATOR)
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)
    out: Tensor = METER.launch(OPERATOR, (x.numel() // max(columns, 1), columns), x.nbytes * 3 // 2, x)
    return out
