"""Splits a decoder layer's fused projection, norms each query and key head, and rotates them by position.

    [q | k | v] = qkv[t];   q = rms_norm(q);   (a, b) = halves of q;   q' = [a·cos − b·sin | b·cos + a·sin]

T tokens, A query heads, G key heads, D head size. ``qkv`` (T, (A + 2G)·D); ``cos``, ``sin`` (T, D/2) in float32;
``weight`` (A + G, D): the query norm's weight for each query head, then the key norm's for each key head.
Position is multi-dimensional (M-RoPE): which of time, row and column turns a frequency is the caller's table.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zellige.kernels.contract import ROUNDED_ONCE, Empty, Operator, noise
from zellige.kernels.meter import METER
from zellige.kernels.tiles import TILE, power_of_two, rows_of, warps
from zellige.kernels.tritonic import jit, tl
from zellige.kernels.vision_qkv_rope import angles, rotate


def text_qkv_rope_reference(
    qkv: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The formula in float32, the rotation as a product of complex numbers, rounded once."""
    T, (normed, D) = qkv.shape[0], weight.shape
    x = qkv.float().view(T, 2 * normed - heads, D)
    qk = x[:, :normed]
    qk = qk * torch.rsqrt(qk.square().mean(-1, keepdim=True) + eps) * weight.float()
    a, b = qk.chunk(2, dim=-1)
    z = torch.complex(a, b) * torch.complex(cos.float(), sin.float()).unsqueeze(1)
    qk = torch.cat((z.real, z.imag), dim=-1).to(qkv.dtype)
    return qk[:, :heads], qk[:, heads:], x[:, normed:].to(qkv.dtype)


def _turned_reference(qkv: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    q, k, _ = text_qkv_rope_reference(qkv, weight, eps, cos, sin, heads)
    return torch.cat((q, k), dim=1)


@jit
def _text_qkv_rope_kernel(  # type: ignore[no-untyped-def]
    qkv,
    weight,
    cos,
    sin,
    out,
    qkv_stride,
    rows,
    eps,
    NORMED: tl.constexpr,
    HALF: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """A row is one head of one token: NORMED = A + G of them a token, queries first. Each pair (a, b) has one owner."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (col < HALF)
    token, head = row // NORMED, row % NORMED
    at = qkv + token * qkv_stride + head * (2 * HALF) + col
    a = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(a * a + b * b, axis=1, keep_dims=True) / (2 * HALF) + eps)
    by = weight + head * (2 * HALF) + col
    a *= scale * tl.load(by, mask=inside, other=0.0).to(tl.float32)
    b *= scale * tl.load(by + HALF, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(cos + token * HALF + col, mask=inside, other=0.0)
    s = tl.load(sin + token * HALF + col, mask=inside, other=0.0)
    to = out + row * (2 * HALF) + col
    tl.store(to, (a * c - b * s).to(out.dtype.element_ty), mask=inside)
    tl.store(to + HALF, (b * c + a * s).to(out.dtype.element_ty), mask=inside)


def _run(empty: Empty, qkv: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    T, half = cos.shape
    normed = weight.shape[0]
    flat = rows_of(qkv)
    out = empty((T, normed, 2 * half), dtype=qkv.dtype, device=qkv.device)
    cols = power_of_two(half)
    tile_rows = max(1, TILE // cols)
    rows = T * normed
    if rows:
        _text_qkv_rope_kernel[(-(-rows // tile_rows),)](
            flat,
            weight.contiguous(),
            cos.contiguous(),
            sin.contiguous(),
            out,
            flat.stride(0),
            rows,
            eps,
            NORMED=normed,
            HALF=half,
            ROWS=tile_rows,
            COLS=cols,
            num_warps=warps(tile_rows * cols),
        )
    return out


def _inputs(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Any, ...]:
    tokens, heads, kv, size = shape
    qkv = noise((tokens, (heads + 2 * kv) * size), dtype, device)
    weight = noise((heads + kv, size), dtype, device, 0.3) + 1
    return qkv, weight, 1e-6, *angles(tokens, size // 2, device), heads


OPERATOR = Operator(
    name="text_qkv_rope",
    run=_run,
    reference=_turned_reference,
    inputs=_inputs,
    edges=((1, 1, 1, 4), (3, 4, 2, 64), (17, 6, 3, 32), (2, 3, 1, 72), (9, 2, 1, 128), (0, 2, 1, 64)),
    large=((1, 32, 4, 128), (2, 16, 8, 128), (3, 32, 8, 128), (64, 32, 4, 128), (8193, 32, 4, 128)),
    tolerance=ROUNDED_ONCE,
)


def text_qkv_rope(
    qkv: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """``qkv`` to q (T, A, D), k (T, G, D) and v (T, G, D): views of something wider."""
    T, (normed, D) = qkv.shape[0], weight.shape
    if qkv.shape[1] != (2 * normed - heads) * D or cos.shape != (T, D // 2) or sin.shape != cos.shape:
        raise ValueError(f"text_qkv_rope: qkv {tuple(qkv.shape)}, {heads} heads of {D}, angles {tuple(cos.shape)}")
    x = qkv.view(T, 2 * normed - heads, D)
    if qkv.is_cuda:
        moved = 2 * T * normed * D * qkv.element_size() + 2 * cos.nbytes + weight.nbytes
        qk = METER.launch(OPERATOR, (T, heads, normed - heads, D), moved, qkv, weight, eps, cos, sin, heads)
        return qk[:, :heads], qk[:, heads:], x[:, normed:]
    METER.count(OPERATOR)
    qk = x[:, :normed]
    scale = torch.rsqrt(qk.float().square().mean(-1, keepdim=True) + eps)
    qk = (qk * scale).to(qkv.dtype) * weight
    qk = rotate(qk, cos.unsqueeze(1), sin.unsqueeze(1))
    return qk[:, :heads], qk[:, heads:], x[:, normed:]
