"""Attention among the patches of each image; an image never sees another.

    o[i] = Σ_j softmax_j(q[i]·k[j] / √D) · v[j]        over the patches j of i's own image

N patches of all images one after the other, A heads, D head size. ``bounds`` holds the images' first rows and N:
image m is rows bounds[m] to bounds[m + 1]. No form needs an N × N buffer: the kernel keeps, for a tile of query rows, a
running maximum m, sum l and weighted sum of values o in float32 and base 2 (scores z are scaled by log2 e / √D):

    m' = max(m, max_j z[j]);  l' = l·2^(m−m') + Σ_j 2^(z[j]−m');  o' = o·2^(m−m') + Σ_j 2^(z[j]−m')·v[j]

Head sizes 72 and 80 are taken as 64 + 16 columns: a tile of 128 would cost half as much again. On a GPU q, k and v have
that width W, with zeros behind D (``vision_qkv_rope`` makes them so): every load is of a whole tile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from zellige.kernels.contract import Empty, Operator, noise, tolerances
from zellige.kernels.dot import dot
from zellige.kernels.meter import METER
from zellige.kernels.target import roomy
from zellige.kernels.tritonic import jit, tl
from zellige.kernels.vision_qkv_rope import widened

#: Query rows a piece in the reference; a score buffer holds one piece and is addressed within the piece.
PIECE_ROWS = 1024


def vision_attention_reference(q: Tensor, k: Tensor, v: Tensor, bounds: Sequence[int], size: int) -> Tensor:
    """The formula in pieces of query rows, in float32, over the first ``size`` columns."""
    q, k, v = (x[..., :size] for x in (q, k, v))
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    for begin, end in pairwise(bounds):
        kh, vh = k[begin:end].float().transpose(0, 1), v[begin:end].float().transpose(0, 1)
        for at in range(begin, end, PIECE_ROWS):
            rows = slice(at, min(at + PIECE_ROWS, end))
            scores = q[rows].float().transpose(0, 1) @ kh.transpose(1, 2) * q.shape[-1] ** -0.5
            out[rows] = (torch.softmax(scores, dim=-1) @ vh).transpose(0, 1).to(q.dtype)
    return out.flatten(1)


@jit
def _keys(  # type: ignore[no-untyped-def]
    q,
    q_rest,
    k,
    v,
    k_row,
    v_row,
    row,
    left,
    m,
    total,
    o,
    o_rest,
    scale,
    MAIN: tl.constexpr,
    REST: tl.constexpr,
    MASK: tl.constexpr,
):
    """One tile of keys more; where MASK, only the first ``left`` of its rows are of this image."""
    dim = tl.arange(0, MAIN)
    k_at = k + row[None, :] * k_row
    v_at = v + row[:, None] * v_row
    here = row < left
    if MASK:
        kt = tl.load(k_at + dim[:, None], mask=here[None, :], other=0.0)
        vt = tl.load(v_at + dim[None, :], mask=here[:, None], other=0.0)
    else:
        kt = tl.load(k_at + dim[:, None])
        vt = tl.load(v_at + dim[None, :])
    z = dot(q, kt, tl.zeros([q.shape[0], row.shape[0]], dtype=tl.float32))
    if REST:
        rest = MAIN + tl.arange(0, REST)
        if MASK:
            kr = tl.load(k_at + rest[:, None], mask=here[None, :], other=0.0)
            vr = tl.load(v_at + rest[None, :], mask=here[:, None], other=0.0)
        else:
            kr = tl.load(k_at + rest[:, None])
            vr = tl.load(v_at + rest[None, :])
        z = dot(q_rest, kr, z)
    if MASK:
        z = tl.where(here[None, :], z, float("-inf"))
    # The scale is positive, so the largest score is so before and after it, and scaling folds into one multiply-add.
    peak = tl.maximum(m, tl.max(z, axis=1) * scale)
    p = tl.exp2(z * scale - peak[:, None])
    fade = tl.exp2(m - peak)
    total = total * fade + tl.sum(p, axis=1)
    p = p.to(vt.dtype)
    o = dot(p, vt, o * fade[:, None])
    if REST:
        o_rest = dot(p, vr, o_rest * fade[:, None])
    return peak, total, o, o_rest


@jit
def _attention_kernel(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    tiles,
    out,
    scale,
    q_row,
    k_row,
    v_row,
    tile_count,
    A,
    D: tl.constexpr,
    MAIN: tl.constexpr,
    REST: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    pid = tl.program_id(0)
    head = pid // tile_count
    entry = tiles + (pid % tile_count) * 3
    first, begin, end = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    row = first.to(tl.int64) + tl.arange(0, ROWS)
    live = row < end
    dim = tl.arange(0, MAIN)
    at = q + row[:, None] * q_row + head * (MAIN + REST)
    q_main = tl.load(at + dim[None, :], mask=live[:, None], other=0.0)
    o = tl.zeros([ROWS, MAIN], dtype=tl.float32)
    q_rest, o_rest = q_main, o
    if REST:
        rest = MAIN + tl.arange(0, REST)
        q_rest = tl.load(at + rest[None, :], mask=live[:, None], other=0.0)
        o_rest = tl.zeros([ROWS, REST], dtype=tl.float32)
    m = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    key = tl.arange(0, KEYS)
    keys = k + begin.to(tl.int64) * k_row + head * (MAIN + REST)
    values = v + begin.to(tl.int64) * v_row + head * (MAIN + REST)
    whole = (end - begin) // KEYS * KEYS
    for _ in range(0, whole, KEYS):
        m, total, o, o_rest = _keys(
            q_main, q_rest, keys, values, k_row, v_row, key, KEYS, m, total, o, o_rest, scale, MAIN, REST, False
        )
        keys += KEYS * k_row
        values += KEYS * v_row
    left = end - begin - whole
    if left > 0:
        m, total, o, o_rest = _keys(
            q_main, q_rest, keys, values, k_row, v_row, key, left, m, total, o, o_rest, scale, MAIN, REST, True
        )
    at = out + row[:, None] * (A * D) + head * D
    share = (1.0 / total)[:, None]
    tl.store(at + dim[None, :], (o * share).to(out.dtype.element_ty), mask=live[:, None] & (dim < D)[None, :])
    if REST:
        tl.store(
            at + rest[None, :], (o_rest * share).to(out.dtype.element_ty), mask=live[:, None] & (rest < D)[None, :]
        )


class Cut(NamedTuple):
    """Query rows and keys a tile, warps a program, depth of its pipeline."""

    rows: int
    keys: int
    warps: int
    stages: int


def cut(D: int, itemsize: int, large: bool) -> Cut:
    """Sizes of a tile, by what a program may keep in shared memory."""
    if itemsize > 2:
        return Cut(32, 32, 4, 2)
    if D > 128 or (D > 80 and not large):
        return Cut(64, 32, 4, 2)
    return Cut(128, 64, 8, 3) if large else Cut(64, 64, 4, 2)


@lru_cache(maxsize=64)
def _tile_table(bounds: tuple[int, ...], rows: int, device: torch.device) -> Tensor:
    """(tiles, 3) int32: first row of each tile of queries, and its image's first row and end."""
    table = [(at, begin, end) for begin, end in pairwise(bounds) for at in range(begin, end, rows)]
    return torch.tensor(table, dtype=torch.int32).view(-1, 3).to(device)


def _run(
    empty: Empty, q: Tensor, k: Tensor, v: Tensor, bounds: Sequence[int], D: int, sizes: Cut | None = None
) -> Tensor:
    N, A, width = q.shape
    out = empty((N, A * D), dtype=q.dtype, device=q.device)
    if not N:
        return out
    q, k, v = (x if x.stride()[1:] == (width, 1) else x.contiguous() for x in (q, k, v))
    sizes = sizes or cut(D, q.element_size(), roomy(q.device))
    table = _tile_table(tuple(bounds), sizes.rows, q.device)
    main, rest = widened(D)
    _attention_kernel[(table.shape[0] * A,)](
        q,
        k,
        v,
        table,
        out,
        math.log2(math.e) / math.sqrt(D),
        q.stride(0),
        k.stride(0),
        v.stride(0),
        table.shape[0],
        A,
        D=D,
        MAIN=main,
        REST=rest,
        ROWS=sizes.rows,
        KEYS=sizes.keys,
        num_warps=sizes.warps,
        num_stages=sizes.stages,
    )
    return out


def _inputs(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...], int]:
    """``shape``: patches of the first image, heads, head size, then the patches of further images."""
    first, A, D, *more = shape
    bounds = [0]
    for n in (first, *more):
        bounds.append(bounds[-1] + n)
    wide = noise((bounds[-1], 3, A, sum(widened(D))), dtype, device)
    wide[..., D:] = 0
    q, k, v = wide.unbind(1)
    return q, k, v, tuple(bounds), D


OPERATOR = Operator(
    name="vision_attention",
    run=_run,
    reference=vision_attention_reference,
    inputs=_inputs,
    edges=(
        (1, 2, 16),
        (2, 1, 64),
        (3, 2, 72),
        (31, 1, 80),
        (32, 1, 64),
        (33, 1, 72),
        (5, 2, 24, 1, 64, 3),
        (129, 1, 72),
        (130, 1, 64, 127),
    ),
    large=(
        (1, 16, 64),
        (2, 16, 72),
        (3, 16, 80),
        (1499, 16, 72),
        (3535, 16, 64),
        (3536, 16, 64),
        (8547, 16, 64),
        (8547, 16, 72),
        (8547, 16, 80),
        (16384, 16, 72),
        (1499, 16, 64, 1, 3536, 2, 8547, 3, 3535),
    ),
    tolerance=tolerances(float32=1e-5, bfloat16=8e-3, float16=2e-3),
)


def vision_attention(q: Tensor, k: Tensor, v: Tensor, bounds: Sequence[int], size: int) -> Tensor:
    """``q``, ``k``, ``v`` (N, A, W) to (N, A·D) for heads of ``size`` D; on a GPU W is as ``widened`` says."""
    N, A, width = q.shape
    fits = width == sum(widened(size)) if q.is_cuda else width >= size
    if not (q.shape == k.shape == v.shape) or bounds[0] != 0 or bounds[-1] != N or not fits:
        raise ValueError(f"vision_attention: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}, {bounds}")
    if q.is_cuda:
        out: Tensor = METER.launch(OPERATOR, (N, A, size), 4 * q.nbytes, q, k, v, tuple(bounds), size)
        return out
    METER.count(OPERATOR)
    parts = []
    for begin, end in pairwise(bounds):
        qh, kh, vh = (x[begin:end, :, :size].transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        parts.append(F.scaled_dot_product_attention(qh, kh, vh)[0].transpose(0, 1))
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).reshape(N, -1)
