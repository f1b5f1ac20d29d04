"""A matrix product with 4-bit weights, each group of neighbouring inputs of an output with its own scale.

    y[m, n] = Σ_k x[m, k] · W[n, k],        W[n, k] = scale[n, k // group] · (q[n, k] − zero[n, k // group])

M rows, N outputs, K inputs (a multiple of 8), q from 0 to 15. ``packed`` (N, K/8) int32: q of input 8w + j stands in
bits 4j to 4j + 3 of word w. ``scale`` (N, ⌈K/group⌉); ``zero`` likewise uint8, or None where it is 8 throughout.

Integers become floats without a conversion: four bits put into the mantissa of a power of two P give the number P + q
exactly, and P's part, P·Σx, is the same for every output of a group, so it is taken off once.

    one row       float32 multiply-adds; each lane keeps 4 words of each of several outputs
    up to 64      tensor cores: bfloat16 128 + q of nibble j of all words, times every eighth input, for j = 0 … 7
    more          the weights are written out once in the dtype of x, and PyTorch multiplies
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from zellige.kernels.contract import Empty, Operator, noise, seeded, tolerances
from zellige.kernels.dot import INTERPRETED, dot
from zellige.kernels.meter import METER
from zellige.kernels.tiles import rows_of
from zellige.kernels.tritonic import jit, tl

GROUPS = (32, 64, 128)
#: Up to this many rows the weights are unpacked inside the product.
FUSED_ROWS = 64


def pack_int4(q: Tensor) -> Tensor:
    """``q`` (N, K), integers from 0 to 15, to (N, K/8) int32."""
    if q.shape[1] % 8:
        raise ValueError(f"pack_int4: {q.shape[1]} inputs are no multiple of 8")
    shifts = torch.arange(0, 32, 4, device=q.device)
    words = (q.to(torch.int64).view(q.shape[0], -1, 8) << shifts).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def dequantize_reference(packed: Tensor, scale: Tensor, zero: Tensor | None, group: int) -> Tensor:
    """The weights (N, K) in float32."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
    q = ((packed.unsqueeze(-1) >> shifts) & 15).flatten(1).float()
    K = q.shape[1]
    z = 8.0 if zero is None else zero.float().repeat_interleave(group, 1)[:, :K]
    return scale.float().repeat_interleave(group, 1)[:, :K] * (q - z)


def quant_matmul_reference(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, group: int) -> Tensor:
    """The formula, in float32, rounded once."""
    return (x.float() @ dequantize_reference(packed, scale, zero, group).T).to(x.dtype)


@jit
def _split_eight(t, ROWS: tl.constexpr, WORDS: tl.constexpr):  # type: ignore[no-untyped-def]
    """ROWS x WORDS x 8 values to eight of (ROWS, WORDS); one thread holds a word's eight, so nothing moves."""
    even, odd = tl.split(tl.reshape(t, [ROWS, WORDS, 2, 2, 2]))
    even_0, even_1 = tl.split(even)
    odd_0, odd_1 = tl.split(odd)
    t0, t4 = tl.split(even_0)
    t2, t6 = tl.split(even_1)
    t1, t5 = tl.split(odd_0)
    t3, t7 = tl.split(odd_1)
    return t0, t1, t2, t3, t4, t5, t6, t7


@jit
def _lifted(p, LOW: tl.constexpr):  # type: ignore[no-untyped-def]
    """P + q as float32: bits 12 to 15 of p in the mantissa of P = 2048 if LOW, else bits 16 to 19 in that of 128."""
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
    x0, x1, x2, x3, x4, x5, x6, x7 = _split_eight(inputs, 1, word.shape[0])
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
    """``QUADS``: how many runs of 4 words a group holds. A lane takes such a run: its weights have one scale."""
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    lane = tl.arange(0, LANES)
    each = tl.arange(0, LANES * 4)
    rows = packed + n.to(tl.int64)[:, None] * words
    scales = scale + n.to(tl.int64)[:, None] * groups
    zeros = zero + n.to(tl.int64)[:, None] * groups
    total = tl.zeros([OUTPUTS, LANES], dtype=tl.float32)
    for at in range(0, words, LANES * 4):
        word = at + lane * 4
        inside = (n < N)[:, None] & (word < words)[None, :]
        p = tl.load(rows + (at + each)[None, :], mask=(n < N)[:, None] & (at + each < words)[None, :], other=0)
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
def _nibble(p, J: tl.constexpr, kind: tl.constexpr):  # type: ignore[no-untyped-def]
    """P + q_j exactly: P is 128 in bfloat16, 1024 in float16, and 0 in float32, which is for exact tests only."""
    q = (p >> (4 * J)) & 0xF
    if kind == tl.bfloat16:
        number = (q | 0x4300).to(tl.int16).to(tl.bfloat16, bitcast=True)
    elif kind == tl.float16:
        number = (q | 0x6400).to(tl.int16).to(tl.float16, bitcast=True)
    else:
        number = q.to(tl.float32)
    return number


@jit
def tile_product(  # type: ignore[no-untyped-def]
    rows,
    inputs,
    scales,
    zeros,
    live_outputs,
    live_rows,
    words,
    groups,
    kind: tl.constexpr,
    GROUP_WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ZERO: tl.constexpr,
):
    """(OUTPUTS, ROWS) float32 of ``rows`` (OUTPUTS, 16) and ``inputs`` (ROWS, 128), where the first step reads them.

    A step takes 16 words, 128 inputs. The weights are the left side of the product, straight from registers.
    """
    word = tl.arange(0, 16)
    input_ = tl.arange(0, 128)
    base = 128.0 if kind == tl.bfloat16 else (1024.0 if kind == tl.float16 else 0.0)
    total = tl.zeros([OUTPUTS, ROWS], dtype=tl.float32)
    nothing = tl.zeros([OUTPUTS, ROWS], dtype=tl.float32)
    for at in range(0, words, 16):
        p = tl.load(rows + at, mask=live_outputs[:, None] & (at + word < words)[None, :], other=0)
        xs = tl.load(inputs + at * 8, mask=live_rows[:, None] & (at * 8 + input_ < words * 8)[None, :], other=0.0)
        x0, x1, x2, x3, x4, x5, x6, x7 = _split_eight(xs, ROWS, 16)
        for part in tl.static_range(16 // GROUP_WORDS):
            mine = word // GROUP_WORDS == part
            # Past the last group all inputs are 0, so any scale will do.
            g = tl.minimum((at + part * GROUP_WORDS) // GROUP_WORDS, groups - 1)
            q = nothing
            q = dot(_nibble(p, 0, kind), tl.trans(_only(x0, mine, GROUP_WORDS)), q)
            q = dot(_nibble(p, 1, kind), tl.trans(_only(x1, mine, GROUP_WORDS)), q)
            q = dot(_nibble(p, 2, kind), tl.trans(_only(x2, mine, GROUP_WORDS)), q)
            q = dot(_nibble(p, 3, kind), tl.trans(_only(x3, mine, GROUP_WORDS)), q)
            q = dot(_nibble(p, 4, kind), tl.trans(_only(x4, mine, GROUP_WORDS)), q)
            q = dot(_nibble(p, 5, kind), tl.trans(_only(x5, mine, GROUP_WORDS)), q)
            q = dot(_nibble(p, 6, kind), tl.trans(_only(x6, mine, GROUP_WORDS)), q)
            q = dot(_nibble(p, 7, kind), tl.trans(_only(x7, mine, GROUP_WORDS)), q)
            of_group = xs.to(tl.float32)
            if GROUP_WORDS < 16:
                of_group = tl.where((input_ // (8 * GROUP_WORDS) == part)[None, :], of_group, 0.0)
            x_sum = tl.sum(of_group, axis=1)
            s = tl.load(scales + g, mask=live_outputs, other=0.0).to(tl.float32)
            if ZERO:
                z = tl.load(zeros + g, mask=live_outputs, other=8).to(tl.float32) + base
                total += s[:, None] * (q - z[:, None] * x_sum[None, :])
            else:
                total += s[:, None] * (q - (base + 8.0) * x_sum[None, :])
    return total


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
    ZERO: tl.constexpr,
):
    row_tiles = tl.cdiv(M, ROWS)
    pid = tl.program_id(0)
    m = (pid % row_tiles) * ROWS + tl.arange(0, ROWS)
    n = (pid // row_tiles) * OUTPUTS + tl.arange(0, OUTPUTS)
    total = tile_product(
        packed + n.to(tl.int64)[:, None] * words + tl.arange(0, 16)[None, :],
        x + m.to(tl.int64)[:, None] * x_row + tl.arange(0, 128)[None, :],
        scale + n.to(tl.int64) * groups,
        zero + n.to(tl.int64) * groups,
        n < N,
        m < M,
        words,
        groups,
        x.dtype.element_ty,
        GROUP_WORDS,
        ROWS,
        OUTPUTS,
        ZERO,
    )
    at = y + m.to(tl.int64)[None, :] * N + n[:, None]
    tl.store(at, total.to(y.dtype.element_ty), mask=(m < M)[None, :] & (n < N)[:, None])


@jit
def _only(x, mine, GROUP_WORDS: tl.constexpr):  # type: ignore[no-untyped-def]
    if GROUP_WORDS < 16:
        x = tl.where(mine[None, :], x, 0.0)
    return x


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
    kind = out.dtype.element_ty
    even_0 = tl.join(_weight(p, 0, s, z, kind), _weight(p, 4, s, z, kind))
    even_1 = tl.join(_weight(p, 2, s, z, kind), _weight(p, 6, s, z, kind))
    odd_0 = tl.join(_weight(p, 1, s, z, kind), _weight(p, 5, s, z, kind))
    odd_1 = tl.join(_weight(p, 3, s, z, kind), _weight(p, 7, s, z, kind))
    w = tl.reshape(tl.join(tl.join(even_0, even_1), tl.join(odd_0, odd_1)), [ROWS, WORDS * 8])
    k = (pid % word_tiles) * WORDS * 8 + tl.arange(0, WORDS * 8)
    tl.store(out + n[:, None] * (words * 8) + k[None, :], w, mask=(n < N)[:, None] & (k < words * 8)[None, :])


@jit
def _weight(p, J: tl.constexpr, s, z, kind: tl.constexpr):  # type: ignore[no-untyped-def]
    return ((((p >> (4 * J)) & 0xF).to(tl.float32) - z) * s).to(kind)


class Cut(NamedTuple):
    """Outputs a program, lanes along the inputs (one row) or rows of x, warps, depth of the pipeline."""

    outputs: int
    across: int
    warps: int
    stages: int


def cut(rows: int, group: int) -> Cut:
    """Sizes by the number of rows; smaller groups are told apart inside a step, which takes registers."""
    if rows == 1:
        return Cut(8, 64, 2, 1)
    return Cut(64, 32 if rows > 16 and group == 128 else 16, 4, 6)


def _run(
    empty: Empty, x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, group: int, sizes: Cut | None = None
) -> Tensor:
    x = rows_of(x)
    M, (N, words) = x.shape[0], packed.shape
    groups = scale.shape[1]
    if M > FUSED_ROWS:
        return x @ dequantize(empty, packed, scale, zero, group, x.dtype).T
    y = empty((M, N), dtype=x.dtype, device=x.device)
    outputs, across, warps, stages = sizes or cut(M, group)
    zeros = scale if zero is None else zero
    if M == 1:
        _matvec_kernel[(-(-N // outputs),)](
            x,
            packed,
            scale,
            zeros,
            y,
            N,
            words,
            groups,
            QUADS=group // 32,
            OUTPUTS=outputs,
            LANES=across,
            ZERO=zero is not None,
            num_warps=warps,
            num_stages=stages,
        )
    elif M:
        _matmul_kernel[(-(-M // across) * -(-N // outputs),)](
            x,
            packed,
            scale,
            zeros,
            y,
            M,
            N,
            words,
            groups,
            x.stride(0),
            GROUP_WORDS=group // 8,
            ROWS=across,
            OUTPUTS=outputs,
            ZERO=zero is not None,
            num_warps=warps,
            num_stages=stages,
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
