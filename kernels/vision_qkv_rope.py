"""Splits a vision block's fused projection into query, key and value, and rotates query and key by place.

    [q | k | v] = qkv[n];   (a, b) = halves of q (or k);   q' = [a·cos − b·sin | b·cos + a·sin]

N patches, A heads, D head size. ``cos`` and ``sin`` (N, D/2) hold the row's angles, then the column's (2-D rotary), in
float32 whatever the dtype of ``qkv`` (N, 3·A·D): bfloat16 angles collapse neighbouring positions.

On a GPU each head is followed by zeros up to a width W of two powers of two (``widened``): attention then reads whole
tiles without asking which columns are there, which saves it a quarter of its time where D = 72.
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


def widened(size: int) -> tuple[int, int]:
    """Columns of a head's tile: the largest power of two in ``size``, and what the rest takes (0: nothing is left)."""
    main = max(16, 1 << (size.bit_length() - 1))
    return main, 0 if main >= size else max(16, power_of_two(size - main))


def _wide_reference(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    q, k, v = vision_qkv_rope_reference(qkv, cos, sin, heads)
    return F.pad(torch.stack((q, k, v), dim=1), (0, sum(widened(q.shape[2])) - q.shape[2]))


@jit
def _vision_qkv_rope_kernel(  # type: ignore[no-untyped-def]
    qkv,
    cos,
    sin,
    out,
    qkv_stride,
    rows,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """A row is one head of one patch: HEADS = 3·A of them a patch, queries first; the values are not turned."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (col < HALF)
    patch, head = row // HEADS, row % HEADS
    turned = inside & (head < HEADS // 3 * 2)
    at = qkv + patch * qkv_stride + head * (2 * HALF) + col
    a = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(cos + patch * HALF + col, mask=turned, other=1.0)
    s = tl.load(sin + patch * HALF + col, mask=turned, other=0.0)
    to = out + row * WIDTH + col
    tl.store(to, tl.where(turned, a * c - b * s, a).to(out.dtype.element_ty), mask=inside)
    tl.store(to + HALF, tl.where(turned, b * c + a * s, b).to(out.dtype.element_ty), mask=inside)
    if WIDTH > 2 * HALF:
        zero = tl.zeros([ROWS, COLS], dtype=out.dtype.element_ty)
        for at_col in tl.static_range(2 * HALF, WIDTH, COLS):
            tl.store(out + row * WIDTH + at_col + col, zero, mask=(row < rows) & (at_col + col < WIDTH))


def _run(empty: Empty, qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    N, half = cos.shape
    flat = rows_of(qkv)
    width = sum(widened(2 * half))
    out = empty((N, 3, heads, width), dtype=qkv.dtype, device=qkv.device)
    cols = power_of_two(half)
    tile_rows = max(1, TILE // cols)
    rows = N * 3 * heads
    if rows:
        _vision_qkv_rope_kernel[(-(-rows // tile_rows),)](
            flat,
            cos.contiguous(),
            sin.contiguous(),
            out,
            flat.stride(0),
            rows,
            HEADS=3 * heads,
            HALF=half,
            WIDTH=width,
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
    reference=_wide_reference,
    inputs=_inputs,
    edges=((1, 1, 4), (2, 3, 64), (3, 16, 72), (5, 2, 80), (33, 1, 72), (0, 2, 64)),
    large=tuple((n, 16, size) for n in (1, 3, 1499, 3535, 3536, 8547, 16384) for size in (64, 72, 80)),
    tolerance=ROUNDED_ONCE,
)


def vision_qkv_rope(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """``qkv`` (N, 3·A·D) to q, k, v, each (N, A, D), on a GPU (N, A, W) with zeros behind D; all may be views."""
    N, width = qkv.shape
    if width % (3 * heads) or cos.shape != (N, width // (6 * heads)) or sin.shape != cos.shape:
        raise ValueError(f"vision_qkv_rope: qkv {tuple(qkv.shape)}, {heads} heads, angles {tuple(cos.shape)}")
    parts = qkv.view(N, 3, heads, width // (3 * heads))
    if qkv.is_cuda:
        wide = sum(widened(parts.shape[3])) / parts.shape[3]
        moved = int(qkv.nbytes * (1 + wide)) + 2 * cos.nbytes
        whole = METER.launch(OPERATOR, (N, heads, parts.shape[3]), moved, qkv, cos, sin, heads)
        return whole[:, 0], whole[:, 1], whole[:, 2]
    METER.count(OPERATOR)
    turned = rotate(parts[:, :2], cos[:, None, None], sin[:, None, None])
    return turned[:, 0], turned[:, 1], parts[:, 2]
