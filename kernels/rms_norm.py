"""Root-mean-square norm over the last dimension, alone or of a sum.

    y[t, :] = x[t, :] / sqrt(mean(x[t, :]²) + eps) · weight
    with a residual:  s = x + residual, rounded to the dtype;  y = the norm of s

T tokens (any leading shape), H hidden. ``x`` and ``weight`` share a floating dtype; the sum is taken in float32.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from zellige.kernels.contract import ROUNDED_ONCE, Empty, Operator, noise
from zellige.kernels.meter import METER
from zellige.kernels.tiles import rows_of, tile, warps
from zellige.kernels.tritonic import jit, tl


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The formula, in float32, rounded once."""
    x32 = x.float()
    scale = torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)
    return (x32 * scale * weight.float()).to(x.dtype)


def add_rms_norm_reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm of the sum, and the sum."""
    total = (x.float() + residual.float()).to(x.dtype)
    return rms_norm_reference(total, weight, eps), total


@jit
def _rms_norm_kernel(  # type: ignore[no-untyped-def]
    x,
    residual,
    weight,
    out,
    total,
    x_stride,
    residual_stride,
    T,
    H,
    eps,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """ROWS rows a program; a row lies in one tile."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, COLS)[None, :]
    inside = (row < T) & (col < H)
    v = tl.load(x + row * x_stride + col, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        v += tl.load(residual + row * residual_stride + col, mask=inside, other=0.0).to(tl.float32)
        rounded = v.to(total.dtype.element_ty)
        tl.store(total + row * H + col, rounded, mask=inside)
        v = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v, axis=1, keep_dims=True) / H + eps)
    w = tl.load(weight + col, mask=col < H, other=0.0).to(tl.float32)
    tl.store(out + row * H + col, (v * scale * w).to(out.dtype.element_ty), mask=inside)


def _launch(empty: Empty, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    H = x.shape[-1]
    flat = rows_of(x)
    T = flat.shape[0]
    out = empty(x.shape, dtype=x.dtype, device=x.device)
    total, more = out, flat
    if residual is not None:
        total, more = empty(x.shape, dtype=x.dtype, device=x.device), rows_of(residual)
    rows, cols = tile(H)
    if T and H:
        _rms_norm_kernel[(-(-T // rows),)](
            flat,
            more,
            weight.contiguous(),
            out,
            total,
            flat.stride(0),
            more.stride(0),
            T,
            H,
            eps,
            ADD=residual is not None,
            ROWS=rows,
            COLS=cols,
            num_warps=warps(rows * cols),
        )
    return out, total


def _run(empty: Empty, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _launch(empty, x, None, weight, eps)[0]


def _run_add(empty: Empty, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return _launch(empty, x, residual, weight, eps)


def _inputs(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Any, ...]:
    return noise(shape, dtype, device), noise(shape[-1:], dtype, device, 0.3) + 1, 1e-6


def _inputs_add(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Any, ...]:
    x, weight, eps = _inputs(shape, dtype, device)
    return x, noise((*shape, 1), dtype, device).squeeze(-1), weight, eps


_EDGES = ((1, 1), (3, 7), (17, 256), (5, 72), (2, 2049), (0, 64))
_LARGE = ((1, 2048), (3, 4096), (4096, 2048), (8547, 1152), (65537, 128))

OPERATOR = Operator("rms_norm", _run, rms_norm_reference, _inputs, _EDGES, _LARGE, ROUNDED_ONCE)
ADD_OPERATOR = Operator("add_rms_norm", _run_add, add_rms_norm_reference, _inputs_add, _EDGES, _LARGE, ROUNDED_ONCE)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm of each row of ``x`` (..., H) by ``weight`` (H,)."""
    if x.shape[-1:] != weight.shape:
        raise ValueError(f"rms_norm: rows of {x.shape[-1]} with a weight of {tuple(weight.shape)}")
    if not x.is_cuda:
        METER.count(OPERATOR)
        return F.rms_norm(x, weight.shape, weight, eps)
    H = x.shape[-1]
    out: Tensor = METER.launch(OPERATOR, (x.numel() // H, H), 2 * x.nbytes, x, weight, eps)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Norm of each row of ``x + residual`` (..., H) by ``weight`` (H,), and that sum."""
    if x.shape[-1:] != weight.shape or x.shape != residual.shape or x.dtype != residual.dtype:
        raise ValueError(
            f"add_rms_norm: {x.dtype} {tuple(x.shape)} and {residual.dtype} {tuple(residual.shape)} "
            f"with a weight of {tuple(weight.shape)}"
        )
    if not x.is_cuda:
        METER.count(ADD_OPERATOR)
        total = x + residual
        return F.rms_norm(total, weight.shape, weight, eps), total
    H = x.shape[-1]
    outputs: tuple[Tensor, Tensor] = METER.launch(
        ADD_OPERATOR, (x.numel() // H, H), 4 * x.nbytes, x, residual, weight, eps
    )
    return outputs
