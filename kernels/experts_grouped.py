"""The experts' Triton form: pairs (token, choice) sorted by expert, then two grouped products and a sum.

A pair is number ``t·k + j``. ``order`` (T·k) holds the pairs sorted by expert, ``ends`` (E) where each expert's pairs
end. An expert's pairs are cut into tiles of ROWS; the launch has room for as many tiles as there can be, and a program
finds its own from ``ends`` on the device. So nothing waits for the host and the launches may be captured in a graph.

    hidden[i] = silu_mul(x[token of order[i]] · gate_up[e])      in sorted order, i.e. one expert's rows together
    parts[order[i]] = hidden[i] · down[e]                        back in pair order
    y[t] = Σ_j weights[t, j] · parts[t·k + j]                    always in the order of j: the same bits every time
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from zellige.kernels.contract import Empty
from zellige.kernels.dot import dot
from zellige.kernels.target import roomy
from zellige.kernels.tiles import rows_of
from zellige.kernels.tritonic import jit, tl

#: Up to this many pairs the sort counts, for each pair, the pairs before it (one launch); above, PyTorch sorts.
COUNTED_PAIRS = 8192
#: Up to this many pairs the parts are kept in float32 until they are summed: they are few then.
EXACT_PAIRS = 4096


@jit
def _sort_kernel(chosen, order, ends, pairs, E, BLOCK: tl.constexpr, SPAN: tl.constexpr):  # type: ignore[no-untyped-def]
    """A pair's place is how many pairs stand before it; an expert's end how many go to it and to those before it."""
    pair_blocks = tl.cdiv(pairs, BLOCK)
    pid = tl.program_id(0)
    of_pairs = pid < pair_blocks
    lane = tl.arange(0, BLOCK)
    mine = tl.where(of_pairs, pid * BLOCK + lane, pairs)
    number = (pid - pair_blocks) * BLOCK + lane
    expert = tl.where(of_pairs, tl.load(chosen + mine, mask=mine < pairs, other=E).to(tl.int32), number)
    place = tl.zeros([BLOCK], dtype=tl.int32)
    for at in range(0, pairs, SPAN):
        other = at + tl.arange(0, SPAN)
        theirs = tl.load(chosen + other, mask=other < pairs, other=E).to(tl.int32)
        tie = (theirs[None, :] == expert[:, None]) & (other[None, :] < mine[:, None])
        place += tl.sum(((theirs[None, :] < expert[:, None]) | tie).to(tl.int32), axis=1)
    tl.store(order + place, mine, mask=mine < pairs)
    tl.store(ends + number, place, mask=(number >= 0) & (number < E))


@jit
def _tile_of(ends, tile, E, ROWS: tl.constexpr, EXPERTS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The expert of a tile, the tile's first place, where the expert's places end; first = end past the last tile."""
    number = tl.arange(0, EXPERTS)
    end = tl.load(ends + number, mask=number < E, other=0)
    begin = tl.load(ends + number - 1, mask=(number > 0) & (number < E), other=0)
    tiles = (end - begin + ROWS - 1) // ROWS
    tiles = tl.where(number < E, tiles, 0)
    until = tl.cumsum(tiles, 0)
    expert = tl.sum((until <= tile).to(tl.int32), 0)
    own = number == expert
    first = tl.sum(tl.where(own, begin + (tile - until + tiles) * ROWS, 0), 0)
    return expert, first, tl.sum(tl.where(own, end, 0), 0)


@jit
def _gate_up_kernel(  # type: ignore[no-untyped-def]
    x,
    gate_up,
    order,
    ends,
    hidden,
    x_stride,
    H,
    INNER,
    E,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    EXPERTS: tl.constexpr,
    EVEN: tl.constexpr,
    ALONE: tl.constexpr,
):
    col_tiles = tl.cdiv(INNER, COLS)
    pid = tl.program_id(0)
    if ALONE:
        first = pid // col_tiles
        end = first + 1
        expert = tl.load(order + first)
    else:
        expert, first, end = _tile_of(ends, pid // col_tiles, E, ROWS, EXPERTS)
    if first >= end:
        return
    place = first + tl.arange(0, ROWS)
    live = place < end
    token = place * 0
    if not ALONE:
        token = tl.load(order + place, mask=live, other=0) // K
    col = (pid % col_tiles) * COLS + tl.arange(0, COLS)
    depth = tl.arange(0, DEPTH)
    x_at = x + token.to(tl.int64)[:, None] * x_stride + depth[None, :]
    gate_at = gate_up + expert.to(tl.int64) * H * 2 * INNER + depth[:, None] * (2 * INNER) + col[None, :]
    up_at = gate_at + INNER
    gate = tl.zeros([ROWS, COLS], dtype=tl.float32)
    up = tl.zeros([ROWS, COLS], dtype=tl.float32)
    for at in range(0, H, DEPTH):
        if EVEN:
            a = tl.load(x_at, mask=live[:, None], other=0.0)
            g = tl.load(gate_at)
            u = tl.load(up_at)
        else:
            inside = depth < H - at
            a = tl.load(x_at, mask=live[:, None] & inside[None, :], other=0.0)
            g = tl.load(gate_at, mask=inside[:, None] & (col < INNER)[None, :], other=0.0)
            u = tl.load(up_at, mask=inside[:, None] & (col < INNER)[None, :], other=0.0)
        gate = dot(a, g, gate)
        up = dot(a, u, up)
        x_at += DEPTH
        gate_at += DEPTH * 2 * INNER
        up_at += DEPTH * 2 * INNER
    out = gate / (1 + tl.exp(-gate)) * up
    at = hidden + place.to(tl.int64)[:, None] * INNER + col[None, :]
    tl.store(at, out.to(hidden.dtype.element_ty), mask=live[:, None] & (col < INNER)[None, :])


@jit
def _down_kernel(  # type: ignore[no-untyped-def]
    hidden,
    down,
    order,
    ends,
    parts,
    H,
    INNER,
    E,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    EXPERTS: tl.constexpr,
    EVEN: tl.constexpr,
    ALONE: tl.constexpr,
):
    col_tiles = tl.cdiv(H, COLS)
    pid = tl.program_id(0)
    if ALONE:
        first = pid // col_tiles
        end = first + 1
        expert = tl.load(order + first)
    else:
        expert, first, end = _tile_of(ends, pid // col_tiles, E, ROWS, EXPERTS)
    if first >= end:
        return
    place = first + tl.arange(0, ROWS)
    live = place < end
    col = (pid % col_tiles) * COLS + tl.arange(0, COLS)
    depth = tl.arange(0, DEPTH)
    hidden_at = hidden + place.to(tl.int64)[:, None] * INNER + depth[None, :]
    down_at = down + expert.to(tl.int64) * INNER * H + depth[:, None] * H + col[None, :]
    out = tl.zeros([ROWS, COLS], dtype=tl.float32)
    for at in range(0, INNER, DEPTH):
        if EVEN:
            a = tl.load(hidden_at, mask=live[:, None], other=0.0)
            d = tl.load(down_at)
        else:
            inside = depth < INNER - at
            a = tl.load(hidden_at, mask=live[:, None] & inside[None, :], other=0.0)
            d = tl.load(down_at, mask=inside[:, None] & (col < H)[None, :], other=0.0)
        out = dot(a, d, out)
        hidden_at += DEPTH
        down_at += DEPTH * H
    pair = place.to(tl.int64)
    if not ALONE:
        pair = tl.load(order + place, mask=live, other=0).to(tl.int64)
    at = parts + pair[:, None] * H + col[None, :]
    tl.store(at, out.to(parts.dtype.element_ty), mask=live[:, None] & (col < H)[None, :])


@jit
def _sum_kernel(parts, weights, y, H, K: tl.constexpr, COLS: tl.constexpr):  # type: ignore[no-untyped-def]
    col_tiles = tl.cdiv(H, COLS)
    pid = tl.program_id(0)
    token = (pid // col_tiles).to(tl.int64)
    col = (pid % col_tiles) * COLS + tl.arange(0, COLS)
    total = tl.zeros([COLS], dtype=tl.float32)
    for j in tl.static_range(K):
        part = tl.load(parts + (token * K + j) * H + col, mask=col < H, other=0.0)
        total += tl.load(weights + token * K + j) * part.to(tl.float32)
    tl.store(y + token * H + col, total.to(y.dtype.element_ty), mask=col < H)


class Tile(NamedTuple):
    """How a product is cut: ``rows`` of one expert by ``cols`` of its matrix (of each half), ``depth`` a step."""

    rows: int
    cols: int
    depth: int
    warps: int
    stages: int


def tiles(pairs: int, experts: int, itemsize: int, large: bool) -> tuple[Tile, Tile]:
    """The tiles of both products. With few rows an expert, bytes in flight count; with many, arithmetic does."""
    each = pairs / experts
    if itemsize > 2:
        return Tile(16, 32, 32, 4, 2), Tile(16, 32, 32, 4, 2)
    if pairs <= 16:
        return Tile(16, 32, 64, 2, 6), Tile(16, 64, 64, 2, 6)
    if each <= 12:
        return Tile(16, 64, 64, 4, 4), Tile(16, 64, 128, 4, 4)
    if each <= 24:
        return Tile(32, 64, 64, 4, 4), Tile(32, 128, 64, 4, 4)
    if not large:
        return Tile(64, 64, 32, 4, 4), Tile(64, 128, 32, 4, 4)
    if each <= 64:
        return Tile(64, 64, 64, 4, 4), Tile(64, 128, 64, 4, 4)
    return Tile(128, 128, 32, 8, 5), Tile(128, 256, 32, 8, 5)


def sorted_pairs(empty: Empty, chosen: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """``order`` and ``ends`` of ``chosen`` (T, k), int32; no value of it is read on the host."""
    pairs, device = chosen.numel(), chosen.device
    if pairs <= COUNTED_PAIRS:
        order = empty((pairs,), dtype=torch.int32, device=device)
        ends = empty((experts,), dtype=torch.int32, device=device)
        block = 32
        _sort_kernel[(-(-pairs // block) + -(-experts // block),)](
            chosen, order, ends, pairs, experts, BLOCK=block, SPAN=256, num_warps=4
        )
        return order, ends
    by_expert, order = torch.sort(chosen.flatten().to(torch.int32), stable=True)
    numbers = torch.arange(experts, dtype=torch.int32, device=device)
    return order.to(torch.int32), torch.searchsorted(by_expert, numbers, right=True).to(torch.int32)


def experts_grouped(
    empty: Empty,
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    weights: Tensor,
    chosen: Tensor,
    cut: tuple[Tile, Tile] | None = None,
) -> Tensor:
    """The experts by the kernels above; ``cut`` overrides the tiles (for measurements)."""
    T, H = x.shape
    E, inner = down.shape[0], down.shape[1]
    k, pairs, device = chosen.shape[1], chosen.numel(), x.device
    x = rows_of(x)
    y = empty((T, H), dtype=x.dtype, device=device)
    if not T:
        return y
    first, second = cut or tiles(pairs, E, x.element_size(), roomy(device))
    # A token alone needs no sorting: each of its pairs is a tile, and ``chosen`` tells its expert.
    order, ends = (chosen, chosen) if T == 1 else sorted_pairs(empty, chosen, E)
    hidden = empty((pairs, inner), dtype=x.dtype, device=device)
    parts = empty((pairs, H), dtype=torch.float32 if pairs <= EXACT_PAIRS else x.dtype, device=device)
    numbers = max(16, 1 << (E - 1).bit_length())

    def room(tile: Tile, width: int) -> tuple[int]:
        most = pairs if T == 1 else min(E, pairs) + pairs // tile.rows
        return (most * -(-width // tile.cols),)

    _gate_up_kernel[room(first, inner)](
        x,
        gate_up,
        order,
        ends,
        hidden,
        x.stride(0),
        H,
        inner,
        E,
        K=k,
        ROWS=first.rows,
        COLS=first.cols,
        DEPTH=first.depth,
        EXPERTS=numbers,
        EVEN=H % first.depth == 0 and inner % first.cols == 0,
        ALONE=T == 1,
        num_warps=first.warps,
        num_stages=first.stages,
    )
    _down_kernel[room(second, H)](
        hidden,
        down,
        order,
        ends,
        parts,
        H,
        inner,
        E,
        ROWS=second.rows,
        COLS=second.cols,
        DEPTH=second.depth,
        EXPERTS=numbers,
        EVEN=inner % second.depth == 0 and H % second.cols == 0,
        ALONE=T == 1,
        num_warps=second.warps,
        num_stages=second.stages,
    )
    cols = 512
    _sum_kernel[(T * -(-H // cols),)](parts, weights, y, H, K=k, COLS=cols, num_warps=2)
    return y
