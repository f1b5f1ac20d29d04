"""4-bit weights on their way into a matrix product: what ``quant_matmul`` and ``experts_int4`` share.

``packed`` (…, N, K/8) int32: q of input 8w + j stands in bits 4j to 4j + 3 of word w; W = scale · (q − zero). Integers
become floats without a conversion: four bits put into the mantissa of a power of two P give the number P + q exactly,
and P + zero is taken off exactly as well; then the scale is multiplied in, two weights at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zellige.kernels.dot import INTERPRETED, dot, rounded
from zellige.kernels.tritonic import jit, tl

GROUPS = (32, 64, 128)


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


def _eight(kind: str, power: int, one: int) -> str:
    """PTX: words $8 and $9 to eight registers of two weights each, (P + q_j + $10) · $11."""
    each = f"lop3.b32 t, half, 0x000F000F, {power:#x}, 0xEA; fma.rn.{kind}x2 t, t, one, $10;"
    # A product of two bfloat16 is an instruction of newer cards alone; with −0 added it is one of all.
    each += f" fma.rn.{kind}x2 ${{}}, t, $11, nought;"
    lines = [f".reg .b32 half, t, one, nought; mov.b32 one, {one:#x}; mov.b32 nought, 0x80008000;"]
    for first, halves in ((0, "0x5410"), (4, "0x7632")):
        lines.append(f"prmt.b32 half, $8, $9, {halves};")
        lines.append(" shr.u32 half, half, 4; ".join(each.format(first + j) for j in range(4)))
    return "{ " + "\n".join(lines) + " }"


_EIGHT_BFLOAT16 = tl and tl.constexpr(_eight("bf16", 0x43004300, 0x3F803F80))
_EIGHT_FLOAT16 = tl and tl.constexpr(_eight("f16", 0x64006400, 0x3C003C00))
_EIGHT_PLACES = tl and tl.constexpr(",".join(["=r"] * 8 + ["r"] * 4))


@jit
def split_eight(t):  # type: ignore[no-untyped-def]
    """(…, 2, 2, 2) values, a word's eight in their order, to eight of (…); one thread holds them, so nothing moves."""
    even, odd = tl.split(t)
    even_0, even_1 = tl.split(even)
    odd_0, odd_1 = tl.split(odd)
    t0, t4 = tl.split(even_0)
    t2, t6 = tl.split(even_1)
    t1, t5 = tl.split(odd_0)
    t3, t7 = tl.split(odd_1)
    return t0, t1, t2, t3, t4, t5, t6, t7


@jit
def _weight(p, J: tl.constexpr, z, s, kind: tl.constexpr):  # type: ignore[no-untyped-def]
    return rounded((((p >> (4 * J)) & 0xF).to(tl.float32) - z) * s, kind)


@jit
def eight_weights(p, z, s, kind: tl.constexpr):  # type: ignore[no-untyped-def]
    """(q_j − z) · s in ``kind`` for j = 0 … 7, of words ``p`` and float32 ``z`` and ``s`` of the same shape."""
    if INTERPRETED or kind == tl.float32:
        w0 = _weight(p, 0, z, s, kind)
        w1 = _weight(p, 1, z, s, kind)
        w2 = _weight(p, 2, z, s, kind)
        w3 = _weight(p, 3, z, s, kind)
        w4 = _weight(p, 4, z, s, kind)
        w5 = _weight(p, 5, z, s, kind)
        w6 = _weight(p, 6, z, s, kind)
        w7 = _weight(p, 7, z, s, kind)
    elif kind == tl.bfloat16:
        given = [p, (-128.0 - z).to(kind), s.to(kind)]
        w0, w1, w2, w3, w4, w5, w6, w7 = tl.inline_asm_elementwise(
            _EIGHT_BFLOAT16, _EIGHT_PLACES, given, dtype=(tl.bfloat16,) * 8, is_pure=True, pack=2
        )
    else:
        given = [p, (-1024.0 - z).to(kind), s.to(kind)]
        w0, w1, w2, w3, w4, w5, w6, w7 = tl.inline_asm_elementwise(
            _EIGHT_FLOAT16, _EIGHT_PLACES, given, dtype=(tl.float16,) * 8, is_pure=True, pack=2
        )
    return w0, w1, w2, w3, w4, w5, w6, w7


@jit
def _of_words(t, GROUP_WORDS: tl.constexpr):  # type: ignore[no-untyped-def]
    """(slices, outputs, groups) values to one a word, float32."""
    each = t.to(tl.float32)[:, :, :, None].broadcast_to(t.shape[0], t.shape[1], t.shape[2], GROUP_WORDS)
    return tl.reshape(each, [t.shape[0], t.shape[1], t.shape[2] * GROUP_WORDS])


@jit
def _turned(x):  # type: ignore[no-untyped-def]
    """Rows and inputs of each slice exchanged."""
    return tl.permute(x, 0, 2, 1)


@jit
def tile_product(  # type: ignore[no-untyped-def]
    packed,
    inputs,
    scale,
    zero,
    live_outputs,
    live_rows,
    words,
    groups,
    kind: tl.constexpr,
    GROUP_WORDS: tl.constexpr,
    SLICES: tl.constexpr,
    ZERO: tl.constexpr,
):
    """(OUTPUTS, ROWS) float32: where the rows of ``packed``, ``scale`` and ``zero`` (OUTPUTS) and of x (ROWS) begin.

    Each of ``SLICES`` warps takes every so manieth run of 16 words of all outputs, and their sums are added at the end:
    so a step reads long pieces of each output, and no warp waits for another's product. Weights are rounded to
    ``kind`` and are the left side of the product, straight from registers. Scales are read a step ahead.
    """
    OUTPUTS: tl.constexpr = packed.shape[0]
    ROWS: tl.constexpr = inputs.shape[0]
    PARTS: tl.constexpr = 16 // GROUP_WORDS
    slice_ = tl.arange(0, SLICES)[:, None, None]
    word = slice_ * 16 + tl.arange(0, 16)[None, None, :]
    input_ = slice_ * 128 + tl.arange(0, 128)[None, None, :]
    group = slice_ * PARTS + tl.arange(0, PARTS)[None, None, :]
    live = live_outputs[None, :, None]
    words_at = packed[None, :, None] + word
    inputs_at = inputs[None, :, None] + input_
    scales_at = scale[None, :, None] + group
    zeros_at = zero[None, :, None] + group
    total = tl.zeros([SLICES, OUTPUTS, ROWS], dtype=tl.float32)
    next_s = tl.load(scales_at, mask=live & (group < groups), other=0.0)
    next_z = next_s
    if ZERO:
        next_z = tl.load(zeros_at, mask=live & (group < groups), other=8)
    for at in range(0, words, 16 * SLICES):
        p = tl.load(words_at + at, mask=live & (word < words - at), other=0)
        xs = tl.load(inputs_at + at * 8, mask=live_rows[None, :, None] & (input_ < (words - at) * 8), other=0.0)
        s = _of_words(next_s, GROUP_WORDS)
        z = tl.full([SLICES, OUTPUTS, 16], 8.0, dtype=tl.float32)
        if ZERO:
            z = _of_words(next_z, GROUP_WORDS)
        ahead = at // GROUP_WORDS + SLICES * PARTS
        next_s = tl.load(scales_at + ahead, mask=live & (group < groups - ahead), other=0.0)
        if ZERO:
            next_z = tl.load(zeros_at + ahead, mask=live & (group < groups - ahead), other=8)
        w0, w1, w2, w3, w4, w5, w6, w7 = eight_weights(p, z, s, kind)
        x0, x1, x2, x3, x4, x5, x6, x7 = split_eight(tl.reshape(xs, [SLICES, ROWS, 16, 2, 2, 2]))
        total = dot(w0, _turned(x0), total)
        total = dot(w1, _turned(x1), total)
        total = dot(w2, _turned(x2), total)
        total = dot(w3, _turned(x3), total)
        total = dot(w4, _turned(x4), total)
        total = dot(w5, _turned(x5), total)
        total = dot(w6, _turned(x6), total)
        total = dot(w7, _turned(x7), total)
    return tl.sum(total, 0)
