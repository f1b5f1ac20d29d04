"""A matrix product with 4-bit weights, each group of neighbouring inputs of an output with its own scale.

    y[m, n] = Σ_k x[m, k] · W[n, k],        W[n, k] = scale[n, k // group] · (q[n, k] − zero[n, k // group])

M rows, N outputs, K inputs (a multiple of 8), q from 0 to 15. ``packed`` (N, K/8) int32: q of input 8w + j stands in
bits 4j to 4j + 3 of word w. ``scale`` (N, ⌈K/group⌉); ``zero`` likewise uint8, or None where it is 8 throughout.

    one row       float32 multiply-adds; each lane keeps 4 words of each of several outputs
    up to 64      tensor cores: nibble j of all words times every eighth input, for j = 0 … 7 (``int4_tiles``)
    more          the weights are written out once in the dtype of x, and PyTorch multiplies

Float32, which is for exact comparisons only, takes the last way from two rows on: unpacking beside products in full
float32 takes more registers than there are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from zellige.kernels.contract import Empty, Operator, noise, seeded, tolerances
from zellige.kernels.dot import INTERPRETED
from zellige.kernels.int4_tiles import GROUPS, dequantize_reference, eight_weights, split_eight, tile_product
from zellige.kernels.meter import METER
from zellige.kernels.tiles import rows_of
from zellige.kernels.tritonic import jit, tl

#: Up to this many rows the weights are unpacked inside the product.
FUSED_ROWS = 64


def quant_matmul_reference(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, group: int) -> Tensor:
    """The formula, in float32, rounded once."""
    return (x.float() @ dequantize_reference(packed, scale, zero, group).T).to(x.dtype)


@jit
def _lifted(p, LOW: tl.constexpr):  # type: ignore[no-untyped-def]
    """P + q as float32: bits 12 to 15 of p in the mantissa of P = 2048 if LOW, else bits 16 to 19 in that of 128.

    P's part, P·Σx, is the same for every output of a group, so it is taken off once.
    """
    mask: tl.constexpr = 0xF000 if LOW else 0xF0000
    base: tl.constexpr = 0x45000000 if LOW else 0x43000000
    if INTERPRETED:
        bits = (p & mask) | base
    elif LOW:
        bits = tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, 0xF000, 0x45000000, 0xEA;", "=r,r", [p], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        # One instruction; from two operators the compiler makes two.
        bits = tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, 0xF0000, 0x43000000, 0xEA;", "=r,r", [p], dtype=tl.int32, is_pure=True, pack=1
        )
    return bits.to(tl.float32, bitcast=True)


@jit
def _word(p, x, word, words):  # type: ignore[no-untyped-def]
    """Σ_j x[8·word + j]·(q_j − 8) for words p (outputs, lanes), and Σ_j x[8·word + j] (1, lanes)."""
    at = word[:, None] * 8 + tl.arange(0, 8)[None, :]
    inputs = tl.load(x + at, mask=(word < words)[:, None], other=0.0).to(tl.float32)
    x0, x1, x2, x3, x4, x5, x6, x7 = split_eight(tl.reshape(inputs, [1, word.shape[0], 2, 2, 2]))
    even = (x0 + x2) + (x4 + x6)
    odd = (x1 + x3) + (x5 + x7)
    total = -136.0 * even - 2056.0 * odd
    left = p << 8
    right = p >> 8
    total = _lifted(p << 16, False) * x0 + total
    total = _lifted(left, True) * x1 + total
    total = _lifted(left, False) * x2 + total
    total = _lifted(p, True) * x3 + total
    total = _lifted(p, False) * x4 + total
    total = _lifted(right, True) * x5 + total
    total = _lifted(right, False) * x6 + total
    total = _lifted(p >> 16, True) * x7 + total
    return total, even + odd


@jit
def _matvec_kernel(  # type: ignore[no-untyped-def]
    x,
    packed,
    scale,
    zero,
    y,
    N,
    words,
    groups,
    QUADS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    LANES: tl.constexpr,
    ZERO: tl.constexpr,
):
    """``QUADS``: how many runs of 4 words a group holds. A lane takes such a run: its weights have one scale.

    The weights of a step are on their way while those of the step before are multiplied.
    """
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    lane = tl.arange(0, LANES)
    each = tl.arange(0, LANES * 4)
    rows = packed + n.to(tl.int64)[:, None] * words
    scales = scale + n.to(tl.int64)[:, None] * groups
    zeros = zero + n.to(tl.int64)[:, None] * groups
    total = tl.zeros([OUTPUTS, LANES], dtype=tl.float32)
    ahead = tl.load(rows + each[None, :], mask=(n < N)[:, None] & (each < words)[None, :], other=0)
    for at in range(0, words, LANES * 4):
        word = at + lane * 4
        inside = (n < N)[:, None] & (word < words)[None, :]
        p = ahead
        each += LANES * 4
        ahead = tl.load(rows + each[None, :], mask=(n < N)[:, None] & (each < words)[None, :], other=0)
        even, odd = tl.split(tl.reshape(p, [OUTPUTS, LANES, 2, 2]))
        p0, p2 = tl.split(even)
        p1, p3 = tl.split(odd)
        group = (word // (4 * QUADS))[None, :]
        s = tl.load(scales + group, mask=inside, other=0.0).to(tl.float32)
        y0, x0 = _word(p0, x, word, words)
        y1, x1 = _word(p1, x, word + 1, words)
        y2, x2 = _word(p2, x, word + 2, words)
        y3, x3 = _word(p3, x, word + 3, words)
        part = (y0 + y1) + (y2 + y3)
        if ZERO:
            z = tl.load(zeros + group, mask=inside, other=8).to(tl.float32)
            part += (8.0 - z) * ((x0 + x1) + (x2 + x3))
        total += s * part
    tl.store(y + n, tl.sum(total, axis=1).to(y.dtype.element_ty), mask=n < N)


@jit
def _matmul_kernel(  # type: ignore[no-untyped-def]
    x,
    packed,
    scale,
    zero,
    y,
    M,
    N,
    words,
    groups,
    x_row,
    GROUP_WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SLICES: tl.constexpr,
    ZERO: tl.constexpr,
):
    row_tiles = tl.cdiv(M, ROWS)
    pid = tl.program_id(0)
    m = (pid % row_tiles) * ROWS + tl.arange(0, ROWS)
    n = (pid // row_tiles) * OUTPUTS + tl.arange(0, OUTPUTS)
    total = tile_product(
        packed + n.to(tl.int64) * words,
        x + m.to(tl.int64) * x_row,
        scale + n.to(tl.int64) * groups,
        zero + n.to(tl.int64) * groups,
        n < N,
        m < M,
        words,
        groups,
        x.dtype.element_ty,
        GROUP_WORDS,
        SLICES,
        ZERO,
    )
    at = y + m.to(tl.int64)[None, :] * N + n[:, None]
    tl.store(at, total.to(y.dtype.element_ty), mask=(m < M)[None, :] & (n < N)[:, None])


@jit
def _dequantize_kernel(  # type: ignore[no-untyped-def]
    packed,
    scale,
    zero,
    out,
    N,
    words,
    groups,
    GROUP_WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    ZERO: tl.constexpr,
):
    word_tiles = tl.cdiv(words, WORDS)
    pid = tl.program_id(0)
    n = ((pid // word_tiles) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    word = (pid % word_tiles) * WORDS + tl.arange(0, WORDS)
    inside = (n < N)[:, None] & (word < words)[None, :]
    p = tl.load(packed + n[:, None] * words + word[None, :], mask=inside, other=0)
    of_group = n[:, None] * groups + (word // GROUP_WORDS)[None, :]
    s = tl.load(scale + of_group, mask=inside, other=0.0).to(tl.float32)
    z = tl.full([ROWS, WORDS], 8.0, dtype=tl.float32)
    if ZERO:
        z = tl.load(zero + of_group, mask=inside, other=8).to(tl.float32)
    w0, w1, w2, w3, w4, w5, w6, w7 = eight_weights(p, z, s, out.dtype.element_ty)
    even = tl.join(tl.join(w0, w4), tl.join(w2, w6))
    odd = tl.join(tl.join(w1, w5), tl.join(w3, w7))
    w = tl.reshape(tl.join(even, odd), [ROWS, WORDS * 8])
    k = (pid % word_tiles) * WORDS * 8 + tl.arange(0, WORDS * 8)
    tl.store(out + n[:, None] * (words * 8) + k[None, :], w, mask=(n < N)[:, None] & (k < words * 8)[None, :])


class Lanes(NamedTuple):
    """How one row is cut: outputs a program, lanes along the inputs, warps."""

    outputs: int
    lanes: int
    warps: int


class Cut(NamedTuple):
    """How rows are cut: outputs and rows a program, slices of the inputs (a warp each), depth of the pipeline."""

    outputs: int
    rows: int
    slices: int
    stages: int


def cut(rows: int, outputs: int) -> Cut:
    """Rows fill tiles of a tensor core; of outputs a program takes as many as leave the card enough programs."""
    across = 8 if rows <= 8 else (16 if rows <= 16 else 32)
    wide = next((n for n in (64, 32) if outputs >= 256 * n and n * across <= 512), 16)
    return Cut(wide, across, 4 if across <= 16 else 2, 4)


def _run(
    empty: Empty,
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    group: int,
    sizes: Cut | Lanes | None = None,
) -> Tensor:
    x = rows_of(x)
    M, (N, words) = x.shape[0], packed.shape
    if M > FUSED_ROWS or (M > 1 and x.dtype == torch.float32):
        return x @ dequantize(empty, packed, scale, zero, group, x.dtype).T
    y = empty((M, N), dtype=x.dtype, device=x.device)
    if not M:
        return y
    weights = x, packed, scale, scale if zero is None else zero, y
    sizes = sizes or (Lanes(8, 64, 2) if M == 1 else cut(M, N))
    if isinstance(sizes, Lanes):
        _matvec_kernel[(-(-N // sizes.outputs),)](
            *weights,
            N,
            words,
            scale.shape[1],
            QUADS=group // 32,
            OUTPUTS=sizes.outputs,
            LANES=sizes.lanes,
            ZERO=zero is not None,
            num_warps=sizes.warps,
        )
        return y
    _matmul_kernel[(-(-M // sizes.rows) * -(-N // sizes.outputs),)](
        *weights,
        M,
        N,
        words,
        scale.shape[1],
        x.stride(0),
        GROUP_WORDS=group // 8,
        ROWS=sizes.rows,
        OUTPUTS=sizes.outputs,
        SLICES=sizes.slices,
        ZERO=zero is not None,
        num_warps=sizes.slices,
        num_stages=sizes.stages,
    )
    return y


def dequantize(
    empty: Empty, packed: Tensor, scale: Tensor, zero: Tensor | None, group: int, dtype: torch.dtype
) -> Tensor:
    """The weights (N, K) in ``dtype``."""
    N, words = packed.shape
    out = empty((N, words * 8), dtype=dtype, device=packed.device)
    rows, wide = 4, 64
    _dequantize_kernel[(-(-N // rows) * -(-words // wide),)](
        packed,
        scale,
        scale if zero is None else zero,
        out,
        N,
        words,
        scale.shape[1],
        GROUP_WORDS=group // 8,
        ROWS=rows,
        WORDS=wide,
        ZERO=zero is not None,
        num_warps=4,
    )
    return out


def _inputs(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[object, ...]:
    """``shape``: rows, outputs, inputs, group, and 1 where there are zero points."""
    M, N, K, group, asymmetric = shape
    groups = -(-K // group)
    x = noise((M, K), dtype, device)
    drawn = seeded(shape, device)
    packed = torch.randint(-(2**31), 2**31 - 1, (N, K // 8), dtype=torch.int32, device=device, generator=drawn)
    scale = noise((N, groups), dtype, device, K**-0.5)
    zero = None
    if asymmetric:
        zero = torch.randint(0, 16, (N, groups), dtype=torch.uint8, device=device, generator=drawn)
    return x, packed, scale, zero, group


OPERATOR = Operator(
    name="quant_matmul",
    run=_run,
    reference=quant_matmul_reference,
    inputs=_inputs,
    edges=(
        *((m, 33, 96, 32, m % 2) for m in range(1, 18)),
        *((m, n, 264, 128, 1) for m in (1, 2, 3) for n in (1, 4, 31, 32, 96)),
        *((m, 31, 136, 64, 0) for m in (1, 3, 8, 64, 65)),
    ),
    large=(
        *((m, n, k, 128, 0) for m in (1, 2, 8) for n in (2048, 12288) for k in (2048, 5120)),
        *((m, 4096, 4096, group, 1) for m in (1, 3, 17, 64, 300) for group in GROUPS),
    ),
    tolerance=tolerances(float32=2e-4, bfloat16=8e-3, float16=1.5e-3),
    least_norm=1.0,  # a row of one output may cancel to almost nothing, of terms that do not
)


def quant_matmul(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, group: int) -> Tensor:
    """``x`` (M, K) to (M, N). ``group`` is 32, 64 or 128; K a multiple of 8."""
    (M, K), (N, words) = x.shape, packed.shape
    groups = (N, -(-K // group))
    if words * 8 != K or group not in GROUPS or scale.shape != groups or (zero is not None and zero.shape != groups):
        raise ValueError(
            f"quant_matmul: x {tuple(x.shape)}, packed {tuple(packed.shape)}, scale {tuple(scale.shape)}, "
            f"zero {None if zero is None else tuple(zero.shape)}, groups of {group}: want x (M, K), "
            f"K a multiple of 8, packed (N, K/8), scale and zero (N, ⌈K/group⌉), group one of {GROUPS}"
        )
    if not x.is_cuda:
        METER.count(OPERATOR)
        return quant_matmul_reference(x, packed, scale, zero, group)
    if packed.dtype != torch.int32 or not all(t.is_contiguous() for t in (packed, scale, zero) if t is not None):
        raise ValueError("quant_matmul: packed must be int32, and packed, scale and zero contiguous")
    moved = packed.numel() * 4 + scale.numel() * scale.element_size() + M * (K + N) * x.element_size()
    y: Tensor = METER.launch(OPERATOR, (M, N, K, group), moved, x, packed, scale, zero, group)
    return y
