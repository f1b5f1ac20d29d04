"""Splits a vision block's fused projection into query, key and value, and rotates query and key by place.

    [q | k | v] = qkv[n];   (a, b) = halves of q (or k);   q' = [a·cos − b·sin | b·cos + a·sin]

N patches, A heads, D head size. ``cos`` and ``sin`` (N, D/2) hold the row's angles, then the column's (2-D rotary), in
float32 whatever the dtype of ``qkv`` (N, 3·A·D): bfloat16 angles collapse neighbouring positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zellige.kernels.contract import ROUNDED_ONCE, Empty, Operator, noise
from zellige.kernels.meter import METER
from zellige.kernels.tiles import TILE, power_of_two, rows_of, warps
from zellige.kernels.tritonic import jit, tl


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the two halves of the last dimension of ``x``; ``cos``, ``sin`` broadcast over a half."""
    half = x.shape[-1] // 2
    x32 = x.float()
    out = x32 * torch.cat((cos, cos), dim=-1)
    out[..., :half].addcmul_(x32[..., half:], sin, value=-1)
    out[..., half:].addcmul_(x32[..., :half], sin)
    return out.to(x.dtype)


def vision_qkv_rope_reference(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """The formula with complex numbers: a rotation is a product with e^(i·angle)."""
    N, width = qkv.shape
    q, k, v = qkv.view(N, 3, heads, width // (3 * heads)).unbind(1)
    turn = torch.complex(cos.float(), sin.float()).unsqueeze(1)

    def turned(x: Tensor) -> Tensor:
        a, b = x.float().chunk(2, dim=-1)
        z = torch.complex(a, b) * turn
        return torch.cat((z.real, z.imag), dim=-1).to(x.dtype)

    return turned(q), turned(k), v


def _turned_reference(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    q, k, _ = vision_qkv_rope_reference(qkv, cos, sin, heads)
    return torch.stack((q, k), dim=1)


@jit
def _vision_qkv_rope_kernel(  # type: ignore[no-untyped-def]
    qkv,
    cos,
    sin,
    out,
    qkv_stride,
    rows,
    TURNED: tl.constexpr,
    HALF: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """A row is one head of one patch: TURNED = 2·A of them a patch, queries first. Each pair (a, b) has one owner."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (col < HALF)
    patch, head = row // TURNED, row % TURNED
    at = qkv + patch * qkv_stride + head * (2 * HALF) + col
    a = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(cos + patch * HALF + col, mask=inside, other=0.0)
    s = tl.load(sin + patch * HALF + col, mask=inside, other=0.0)
    to = out + row * (2 * HALF) + col
    tl.store(to, (a * c - b * s).to(out.dtype.element_ty), mask=inside)
    tl.store(to + HALF, (b * c + a * s).to(out.dtype.element_ty), mask=inside)


def _run(empty: Empty, qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    N, half = cos.shape
    flat = rows_of(qkv)
    out = empty((N, 2, heads, 2 * half), dtype=qkv.dtype, device=qkv.device)
    cols = power_of_two(half)
    tile_rows = max(1, TILE // cols)
    rows = N * 2 * heads
    if rows:
        _vision_qkv_rope_kernel[(-(-rows // tile_rows),)](
            flat,
            cos.contiguous(),
            sin.contiguous(),
            out,
            flat.stride(0),
            rows,
            TURNED=2 * heads,
            HALF=half,
            ROWS=tile_rows,
            COLS=cols,
            num_warps=warps(tile_rows * cols),
        )
    return out


def angles(rows: int, half: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of some angles, for ``inputs``: two float32 tensors (rows, half)."""
    at = noise((rows, half), torch.float32, device, 20.0)
    return at.cos(), at.sin()


def _inputs(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Any, ...]:
    patches, heads, size = shape
    return noise((patches, 3 * heads * size), dtype, device), *angles(patches, size // 2, device), heads


OPERATOR = Operator(
    name="vision_qkv_rope",
    run=_run,
    reference=_turned_reference,
    inputs=_inputs,
    edges=((1, 1, 4), (2, 3, 64), (3, 16, 72), (5, 2, 80), (33, 1, 72), (0, 2, 64)),
    large=tuple((n, 16, size) for n in (1, 3, 1499, 3535, 3536, 8547, 16384) for size in (64, 72, 80)),
    tolerance=ROUNDED_ONCE,
)


def vision_qkv_rope(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """``qkv`` (N, 3·A·D) to q, k, v, each (N, A, D); v, and on a GPU q and k, are views of something wider."""
    N, width = qkv.shape
    if width % (3 * heads) or cos.shape != (N, width // (6 * heads)) or sin.shape != cos.shape:
        raise ValueError(f"vision_qkv_rope: qkv {tuple(qkv.shape)}, {heads} heads, angles {tuple(cos.shape)}")
    parts = qkv.view(N, 3, heads, width // (3 * heads))
    if qkv.is_cuda:
        turned = METER.launch(
            OPERATOR, (N, heads, parts.shape[3]), qkv.nbytes * 4 // 3 + 2 * cos.nbytes, qkv, cos, sin, heads
        )
        return turned[:, 0], turned[:, 1], parts[:, 2]
    METER.count(OPERATOR)
    turned = rotate(parts[:, :2], cos[:, None, None], sin[:, None, None])
    return turned[:, 0], turned[:, 1], parts[:, 2]
