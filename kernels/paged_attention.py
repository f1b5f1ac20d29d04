"""Causal attention of new tokens over each sequence's cached keys and values, which lie in blocks.

    o[t] = Σ_s softmax_s(q[t]·K[s] / √D) · V[s]        over s ≤ position of t in its own sequence

T new tokens of all sequences one after the other, A query heads, G key heads (A a multiple of G), D head size,
B blocks of P places. ``cache`` (2, G, B, P, D) holds keys, then values; place ``p`` of block ``b`` is slot ``b·P + p``.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from zellige.kernels.meter import METER
from zellige.kernels.paged_attention_blocks import OPERATOR


@dataclass(frozen=True)
class Run:
    """Rows ``begin`` to ``end``, each a sequence of one block, these blocks behind one another from ``block`` on: read
    in place. ``block`` None: any sequences, whose blocks are gathered."""

    begin: int
    end: int
    block: int | None


@dataclass(frozen=True)
class PagedLayout:
    """Where the new tokens of a step stand. Sequences with one new token come first, ``single`` of them.

    ``starts``: first row of each sequence and T. ``lengths``: tokens of each sequence, the new ones included.
    ``tables`` (S, most blocks) int64: the blocks of each sequence, in order (rows padded with any block).
    ``slots`` (T,) int64: where each new token's key and value are written.
    """

    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    tables: Tensor
    slots: Tensor
    single: int
    #: (single, 1, 1, longest) additive mask of the keys past the end of each single-token sequence.
    single_mask: Tensor | None
    #: The single-token sequences, cut where they are no neighbours in the cache.
    runs: tuple["Run", ...] = ()
    #: ``starts`` (S + 1,) and ``lengths`` (S,) int32 on the device, where a GPU's kernels read them: a captured graph
    #: is replayed for other lengths by writing into these, ``tables`` and ``slots``.
    starts_device: Tensor | None = None
    lengths_device: Tensor | None = None


def write_cache(k: Tensor, v: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Store the new tokens' keys and values (T, G, D) at their slots."""
    flat = cache.view(2, cache.shape[1], -1, cache.shape[-1])
    flat[0].index_copy_(1, slots, k.transpose(0, 1))
    flat[1].index_copy_(1, slots, v.transpose(0, 1))


def _gathered(cache: Tensor, table: Tensor, length: int) -> Tensor:
    """Keys and values of one sequence as (2, G, length, D)."""
    G, P, D = cache.shape[1], cache.shape[3], cache.shape[4]
    return cache.index_select(2, table[: -(-length // P)]).view(2, G, -1, D)[:, :, :length]


def paged_attention_reference(q: Tensor, cache: Tensor, layout: PagedLayout) -> Tensor:
    """The formula sequence by sequence, head by head, in float32, from the cache alone."""
    out = torch.empty_like(q)
    group = q.shape[1] // cache.shape[1]
    for s, length in enumerate(layout.lengths):
        begin, end = layout.starts[s], layout.starts[s + 1]
        keys, values = _gathered(cache, layout.tables[s], length).float()
        place = torch.arange(length - (end - begin), length, device=q.device)
        visible = torch.arange(length, device=q.device)[None] <= place[:, None]
        for head in range(q.shape[1]):
            scores = q[begin:end, head].float() @ keys[head // group].T * q.shape[-1] ** -0.5
            p = torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)
            out[begin:end, head] = (p @ values[head // group]).to(q.dtype)
    return out.flatten(1)


def paged_attention(q: Tensor, k: Tensor, v: Tensor, cache: Tensor, layout: PagedLayout) -> Tensor:
    """Write ``k``, ``v`` (T, G, D) into ``cache``, then attend: ``q`` (T, A, D) to (T, A·D)."""
    T, A, D = q.shape
    G = cache.shape[1]
    if k.shape != (T, G, D) or v.shape != k.shape or A % G or layout.starts[-1] != T or cache.shape[4] != D:
        raise ValueError(f"paged_attention: q {tuple(q.shape)}, k {tuple(k.shape)}, cache {tuple(cache.shape)}")
    if q.is_cuda:
        return _launch(q, k, v, cache, layout)
    METER.count(OPERATOR)
    write_cache(k, v, cache, layout.slots)
    parts = [_decode(q, cache, layout, run) for run in layout.runs]
    for s in range(layout.single, len(layout.lengths)):
        rows = slice(layout.starts[s], layout.starts[s + 1])
        parts.append(_chunk(q[rows], k[rows], v[rows], cache, layout.tables[s], layout.lengths[s]))
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).reshape(T, A * D)


def _launch(q: Tensor, k: Tensor, v: Tensor, cache: Tensor, layout: PagedLayout) -> Tensor:
    P = cache.shape[3]
    if P < 16 or P & (P - 1) or not cache.is_contiguous():
        raise ValueError(f"paged_attention: blocks of {P} tokens; on a GPU block_tokens is a power of two from 16 on")
    starts, lengths = layout.starts_device, layout.lengths_device
    if starts is None or lengths is None:
        starts, lengths = (torch.tensor(n, dtype=torch.int32).to(q.device) for n in (layout.starts, layout.lengths))
    read = 2 * sum(layout.lengths) * k.shape[1] * k.shape[2] * k.element_size()
    out: Tensor = METER.launch(
        OPERATOR,
        (q.shape[0], *q.shape[1:], k.shape[1]),
        read + 2 * q.nbytes,
        q,
        k,
        v,
        cache,
        layout.tables,
        layout.slots,
        starts,
        lengths,
        layout.single,
    )
    return out


def _decode(q: Tensor, cache: Tensor, layout: PagedLayout, run: Run) -> Tensor:
    """One query a sequence, those of a run in one call; the heads that share a key head stand as its queries."""
    S, A, D = run.end - run.begin, q.shape[1], q.shape[2]
    G, P = cache.shape[1], cache.shape[3]
    longest = max(layout.lengths[run.begin : run.end])
    if run.block is not None:
        kv = cache[:, :, run.block : run.block + S, :longest]
    else:
        blocks = -(-longest // P)
        table = layout.tables[run.begin : run.end, :blocks].flatten()
        kv = cache.index_select(2, table).view(2, G, S, blocks * P, D)[:, :, :, :longest]
    kv = kv.transpose(1, 2)
    qg = q[run.begin : run.end].reshape(S, G, A // G, D)
    mask = None if layout.single_mask is None else layout.single_mask[run.begin : run.end, ..., :longest]
    return F.scaled_dot_product_attention(qg, kv[0], kv[1], attn_mask=mask).reshape(S, A, D)


def _chunk(q: Tensor, k: Tensor, v: Tensor, cache: Tensor, table: Tensor, length: int) -> Tensor:
    """Several queries of one sequence: its whole prompt, or a piece that stands on what is cached."""
    new = q.shape[0]
    qh = q.transpose(0, 1).unsqueeze(0)
    if new == length:
        kh, vh = k.transpose(0, 1).unsqueeze(0), v.transpose(0, 1).unsqueeze(0)
        out = F.scaled_dot_product_attention(qh, kh, vh, is_causal=True, enable_gqa=True)
    else:
        kv = _gathered(cache, table, length).unsqueeze(1)
        visible = torch.ones(new, length, dtype=torch.bool, device=q.device).tril(length - new)
        out = F.scaled_dot_product_attention(qh, kv[0], kv[1], attn_mask=visible, enable_gqa=True)
    return out[0].transpose(0, 1)
