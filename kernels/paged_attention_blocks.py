"""The Triton form of attention over the paged cache: it reads the blocks in place, whatever their order.

Single-token sequences: the heads that share a key head stand as the rows of one small product. A sequence's blocks are
cut into a fixed number of splits, each with its own running softmax; a second launch joins them. Lengths and tables are
read on the device and the grid depends on the number of sequences alone, so a captured graph serves every length.

Several tokens of a sequence: tiles of query rows of one head run over the blocks up to their own place. The launch has
room for as many tiles as there can be; a program finds its sequence from ``starts`` on the device.

Both keep a running maximum m, sum l and weighted sum of values o, in float32 and base 2 (scores times log2 e / √D):

    m' = max(m, max_s z[s]);  l' = l·2^(m−m') + Σ_s 2^(z[s]−m');  o' = o·2^(m−m') + Σ_s 2^(z[s]−m')·V[s]
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from zellige.kernels.contract import Empty, Operator, noise, seeded, tolerances
from zellige.kernels.dot import dot
from zellige.kernels.target import roomy
from zellige.kernels.tritonic import jit, tl

#: Programs that a decoding step aims at: enough to keep every multiprocessor of a large card reading.
PROGRAMS = 2048
MOST_SPLITS = 64
#: Query rows a piece in the reference.
PIECE_ROWS = 256
#: Places taken at a time; larger blocks are read in pieces.
TILE_PLACES = 64


@jit
def _store_kernel(  # type: ignore[no-untyped-def]
    k, v, cache, slots, k_stride, v_stride, half, head_stride, G: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr
):
    """One new token's keys and values to its slot in every head."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    dim = tl.arange(0, WIDE)
    for g in tl.static_range(G):
        at = cache + g * head_stride + slot * D + dim
        tl.store(at, tl.load(k + token * k_stride + g * D + dim, mask=dim < D), mask=dim < D)
        tl.store(at + half, tl.load(v + token * v_stride + g * D + dim, mask=dim < D), mask=dim < D)


@jit
def _piece(table, b, PIECES: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where piece b of a sequence lies: a block is cut into PIECES, each of SIZE values."""
    return (tl.load(table + b // PIECES).to(tl.int64) * PIECES + b % PIECES) * SIZE


@jit
def _block(  # type: ignore[no-untyped-def]
    q,
    keys,
    values,
    seen,
    dim,
    m,
    total,
    out,
    scale,
    P: tl.constexpr,
    D: tl.constexpr,
    WIDE: tl.constexpr,
    MASK: tl.constexpr,
):
    """P places more: ``seen`` (rows, P) or (1, P) says which of its places a row may see; only read where MASK."""
    place = tl.arange(0, P)
    if WIDE == D:
        kt = tl.load(keys + place[None, :] * D + dim[:, None])
    else:
        kt = tl.load(keys + place[None, :] * D + dim[:, None], mask=(dim < D)[:, None], other=0.0)
    z = dot(q, kt, tl.zeros([q.shape[0], P], dtype=tl.float32)) * scale
    if MASK:
        z = tl.where(seen, z, float("-inf"))
        # A place that no row sees may hold anything, and 0 · NaN is NaN.
        filled = tl.max(seen.to(tl.int32), axis=0) > 0
        vt = tl.load(values + place[:, None] * D + dim[None, :], mask=filled[:, None] & (dim < D)[None, :], other=0.0)
    elif WIDE == D:
        vt = tl.load(values + place[:, None] * D + dim[None, :])
    else:
        vt = tl.load(values + place[:, None] * D + dim[None, :], mask=(dim < D)[None, :], other=0.0)
    peak = tl.maximum(m, tl.max(z, axis=1))
    p = tl.exp2(z - peak[:, None])
    fade = tl.exp2(m - peak)
    total = total * fade + tl.sum(p, axis=1)
    out = dot(p.to(vt.dtype), vt, out * fade[:, None])
    return peak, total, out


@jit
def _decode_kernel(  # type: ignore[no-untyped-def]
    q,
    cache,
    tables,
    lengths,
    parts,
    weights,
    scale,
    q_row,
    table_stride,
    half,
    head_stride,
    G,
    SPLITS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    PIECES: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    WIDE: tl.constexpr,
):
    pid = tl.program_id(0)
    split = pid % SPLITS
    g = (pid // SPLITS) % G
    s = (pid // (SPLITS * G)).to(tl.int64)
    length = tl.load(lengths + s).to(tl.int32)
    blocks = tl.cdiv(length, P)
    first = split * blocks // SPLITS
    last = (split + 1) * blocks // SPLITS
    row = tl.arange(0, ROWS)
    dim = tl.arange(0, WIDE)
    at = q + s * q_row + (g * GROUP + row)[:, None] * D + dim[None, :]
    rows = tl.load(at, mask=(row < GROUP)[:, None] & (dim < D)[None, :], other=0.0)
    m = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    out = tl.zeros([ROWS, WIDE], dtype=tl.float32)
    place = tl.arange(0, P)
    table = tables + s * table_stride
    base = cache + g.to(tl.int64) * head_stride
    for b in range(first, last):
        keys = base + _piece(table, b, PIECES, P * D)
        seen = (b * P + place < length)[None, :]
        m, total, out = _block(rows, keys, keys + half, seen, dim, m, total, out, scale, P, D, WIDE, True)
    safe = tl.where(total > 0, total, 1.0)
    out = out / safe[:, None]
    head = s * (G * GROUP) + g * GROUP + row
    at = parts + (head * SPLITS + split)[:, None] * D + dim[None, :]
    tl.store(at, out.to(parts.dtype.element_ty), mask=(row < GROUP)[:, None] & (dim < D)[None, :])
    if SPLITS > 1:
        weight = tl.where(total > 0, m + tl.log2(safe), float("-inf"))
        tl.store(weights + head * SPLITS + split, weight, mask=row < GROUP)


@jit
def _join_kernel(parts, weights, out, SPLITS: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """One head of one sequence: its splits, each weighted by its share of the softmax."""
    head = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    dim = tl.arange(0, WIDE)
    weight = tl.load(weights + head * SPLITS + split)
    peak = tl.max(weight, axis=0)
    share = tl.exp2(weight - tl.where(peak == float("-inf"), 0.0, peak))
    at = parts + (head * SPLITS + split)[:, None] * D + dim[None, :]
    part = tl.load(at, mask=(dim < D)[None, :], other=0.0)
    whole = tl.sum(share, axis=0)
    joined = tl.sum(part * share[:, None], axis=0) / tl.where(whole > 0, whole, 1.0)
    tl.store(out + head * D + dim, joined.to(out.dtype.element_ty), mask=dim < D)


@jit
def _chunk_kernel(  # type: ignore[no-untyped-def]
    q,
    cache,
    tables,
    starts,
    lengths,
    out,
    scale,
    q_row,
    table_stride,
    half,
    head_stride,
    A,
    G,
    single,
    sequences,
    ROWS: tl.constexpr,
    PIECES: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    WIDE: tl.constexpr,
    SEQUENCES: tl.constexpr,
):
    pid = tl.program_id(0)
    head = pid % A
    tile = pid // A
    number = tl.arange(0, SEQUENCES)
    chunked = (number >= single) & (number < sequences)
    begin = tl.load(starts + number, mask=chunked, other=0)
    end = tl.load(starts + number + 1, mask=chunked, other=0)
    tiles = (end - begin + ROWS - 1) // ROWS
    until = tl.cumsum(tiles, 0)
    own = chunked & (until > tile) & (until - tiles <= tile)
    if tl.sum(own.to(tl.int32), 0) == 0:
        return
    s = tl.sum(tl.where(own, number, 0), 0).to(tl.int64)
    first = tl.sum(tl.where(own, begin + (tile - until + tiles) * ROWS, 0), 0)
    end_row = tl.sum(tl.where(own, end, 0), 0)
    length = tl.load(lengths + s).to(tl.int32)
    row = first + tl.arange(0, ROWS)
    dim = tl.arange(0, WIDE)
    live = (row < end_row)[:, None] & (dim < D)[None, :]
    rows = tl.load(q + row.to(tl.int64)[:, None] * q_row + head * D + dim[None, :], mask=live, other=0.0)
    # A row's own place in its sequence; rows past the end of the chunk see what its last row sees.
    own_place = tl.minimum(row, end_row - 1) - end_row + length
    m = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    o = tl.zeros([ROWS, WIDE], dtype=tl.float32)
    place = tl.arange(0, P)
    table = tables + s * table_stride
    base = cache + (head // (A // G)).to(tl.int64) * head_stride
    earliest = first - end_row + length
    whole = (earliest + 1) // P
    latest = tl.minimum(first + ROWS, end_row) - end_row + length
    for b in range(whole):
        keys = base + _piece(table, b, PIECES, P * D)
        m, total, o = _block(rows, keys, keys + half, place, dim, m, total, o, scale, P, D, WIDE, False)
    for b in range(whole, tl.cdiv(latest, P)):
        keys = base + _piece(table, b, PIECES, P * D)
        seen = (b * P + place)[None, :] <= own_place[:, None]
        m, total, o = _block(rows, keys, keys + half, seen, dim, m, total, o, scale, P, D, WIDE, True)
    at = out + row.to(tl.int64)[:, None] * (A * D) + head * D + dim[None, :]
    tl.store(at, (o / total[:, None]).to(out.dtype.element_ty), mask=live)


def splits(sequences: int, kv_heads: int) -> int:
    """Into how many parts a decoding step cuts each sequence: a power of two that follows from the batch alone."""
    wanted = -(-PROGRAMS // (sequences * kv_heads))
    return min(MOST_SPLITS, 1 << (wanted - 1).bit_length())


def _run(
    empty: Empty,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: Tensor,
    tables: Tensor,
    slots: Tensor,
    starts: Tensor,
    lengths: Tensor,
    single: int,
    stages: int | None = None,
) -> Tensor:
    T, A, D = q.shape
    G, P, S = cache.shape[1], cache.shape[3], lengths.shape[0]
    out = empty((T, A * D), dtype=q.dtype, device=q.device)
    if not T:
        return out
    q, k, v = (x if x.stride()[1:] == (D, 1) else x.contiguous() for x in (q, k, v))
    wide, large = max(16, 1 << (D - 1).bit_length()), roomy(q.device)
    _store_kernel[(T,)](
        k,
        v,
        cache,
        slots,
        k.stride(0),
        v.stride(0),
        cache.stride(0),
        cache.stride(1),
        G=G,
        D=D,
        WIDE=wide,
        num_warps=1,
    )
    places = min(P, TILE_PLACES)
    where = q.stride(0), tables.stride(0), cache.stride(0), cache.stride(1)
    scale = math.log2(math.e) / math.sqrt(D)
    stages = stages or (3 if large else 2)
    if single:
        n = splits(single, G)
        # With one split the parts are the result.
        parts = empty((single, A, n, D), dtype=torch.float32, device=q.device) if n > 1 else out
        weights = empty((single, A, n), dtype=torch.float32, device=q.device) if n > 1 else out
        _decode_kernel[(single * G * n,)](
            q,
            cache,
            tables,
            lengths,
            parts,
            weights,
            scale,
            *where,
            G,
            SPLITS=n,
            GROUP=A // G,
            ROWS=max(16, 1 << (A // G - 1).bit_length()),
            PIECES=P // places,
            P=places,
            D=D,
            WIDE=wide,
            num_warps=4,
            num_stages=stages,
        )
        if n > 1:
            _join_kernel[(single * A,)](parts, weights, out, SPLITS=n, D=D, WIDE=wide, num_warps=2)
    if single < T:
        rows = 128 if large and T - single > 64 * (S - single) else 64
        _chunk_kernel[(((T - single) // rows + S - single) * A,)](
            q,
            cache,
            tables,
            starts,
            lengths,
            out,
            scale,
            *where,
            A,
            G,
            single,
            S,
            ROWS=rows,
            PIECES=P // places,
            P=places,
            D=D,
            WIDE=wide,
            SEQUENCES=max(16, 1 << (S - 1).bit_length()),
            num_warps=8 if rows == 128 else 4,
            num_stages=stages,
        )
    return out


def _reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: Tensor,
    tables: Tensor,
    slots: Tensor,
    starts: Tensor,
    lengths: Tensor,
    single: int,
) -> tuple[Tensor, Tensor]:
    """The formula sequence by sequence, in float32, the new keys and values put behind the cached ones; and those."""
    (T, A, D), G, P = q.shape, cache.shape[1], cache.shape[3]
    out = torch.empty((T, A, D), dtype=q.dtype, device=q.device)
    bounds = starts.tolist()
    for s, length in enumerate(lengths.tolist()):
        begin, end = bounds[s], bounds[s + 1]
        old = length - (end - begin)
        kv = cache.index_select(2, tables[s, : -(-length // P)]).view(2, G, -1, D)[:, :, :old].float()
        new = torch.stack((k[begin:end], v[begin:end])).transpose(1, 2).float()
        keys, values = torch.cat((kv, new), dim=2).repeat_interleave(A // G, dim=1)
        for at in range(begin, end, PIECE_ROWS):
            rows = slice(at, min(at + PIECE_ROWS, end))
            place = torch.arange(rows.start, rows.stop, device=q.device) - begin + old
            scores = q[rows].float().transpose(0, 1) @ keys.transpose(1, 2) * D**-0.5
            hidden = torch.arange(length, device=q.device)[None] > place[:, None]
            p = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
            out[rows] = (p @ values).transpose(0, 1).to(q.dtype)
    return out.flatten(1), torch.stack((k, v)).to(cache.dtype)


def _written(
    q: Tensor, k: Tensor, v: Tensor, cache: Tensor, tables: Tensor, slots: Tensor, *_: object
) -> tuple[Tensor]:
    """The new keys and values as they lie in the cache, (2, T, G, D)."""
    flat = cache.view(2, cache.shape[1], -1, cache.shape[-1])
    return (flat.index_select(2, slots).transpose(1, 2),)


def _inputs(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Any, ...]:
    """``shape``: single-token sequences, most tokens of one, A, G, D, P; then cached and new tokens of each other."""
    single, most, A, G, D, P, *pairs = shape
    lengths = [most - i * (most - 1) // max(single - 1, 1) for i in range(single)]
    news = [1] * single
    for cached, new in zip(pairs[::2], pairs[1::2], strict=True):
        lengths.append(cached + new)
        news.append(new)
    needed = [-(-n // P) for n in lengths]
    # Every sequence's blocks lie apart from one another and in falling order; one block belongs to nobody.
    B, S, wide = sum(needed) + 1, len(lengths), max(needed)
    tables = [[0] * wide for _ in range(S)]
    at = B
    for b in range(wide):
        for s in range(S):
            if b < needed[s]:
                at -= 1
                tables[s][b] = at
    starts = [0, *accumulate(news)]
    slots = [tables[s][p // P] * P + p % P for s in range(S) for p in range(lengths[s] - news[s], lengths[s])]
    T = starts[-1]
    q, kv = noise((T, A + G, D), dtype, device)[:, :A], noise((T, 2, G, D), dtype, device)
    return (
        q,
        kv[:, 0],
        kv[:, 1],
        torch.randn(2, G, B, P, D, dtype=dtype, device=device, generator=seeded(shape, device)),
        torch.tensor(tables, dtype=torch.int64, device=device),
        torch.tensor(slots, dtype=torch.int64, device=device),
        torch.tensor(starts, dtype=torch.int32, device=device),
        torch.tensor(lengths, dtype=torch.int32, device=device),
        single,
    )


OPERATOR = Operator(
    name="paged_attention",
    run=_run,
    reference=_reference,
    inputs=_inputs,
    edges=(
        (1, 1, 2, 1, 16, 16),
        (3, 40, 4, 2, 16, 16),
        (2, 70, 8, 1, 24, 16, 0, 5, 16, 16),
        (1, 17, 4, 4, 32, 128, 127, 3),
        (0, 0, 2, 2, 16, 16, 0, 1, 15, 70),
    ),
    large=(
        (1, 4097, 32, 4, 128, 64),
        (64, 8192, 32, 4, 128, 64),
        (600, 65, 32, 4, 128, 64),
        (7, 1000, 32, 4, 128, 64, 0, 1064, 500, 129, 64, 2),
        (0, 0, 32, 8, 128, 64, 1000, 1),
    ),
    tolerance=tolerances(float32=1e-5, bfloat16=1e-2, float16=2e-3),
    writes=(3,),
    written=_written,
)
