"""Which experts a token goes to, and with what weight.

    p = softmax(logits);  the k largest are kept;  w = p_kept / sum(p_kept)

T tokens, E experts, k experts a token. The softmax is taken in float32: in bfloat16 near-equal experts change places.
Of equal logits the expert with the lower number goes first. What lies outside the kept cancels out of ``w``, so that
``w = e^(x - max) / Σ_kept e^(x - max)``. The expert numbers are in range whatever the logits hold.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zellige.kernels.contract import Empty, Operator, noise, tolerances
from zellige.kernels.meter import METER
from zellige.kernels.tiles import power_of_two, rows_of, tile, warps
from zellige.kernels.tritonic import jit, tl

#: What one tile of the kernel holds.
MOST_EXPERTS, MOST_KEPT = 256, 16


def route_topk_reference(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The formula by sorting, in float32."""
    p = torch.softmax(logits.float(), dim=-1)
    order = torch.argsort(logits.float(), dim=-1, descending=True, stable=True)[:, :k]
    kept = p.gather(1, order)
    return kept / kept.sum(-1, keepdim=True), order


@jit
def _route_topk_kernel(  # type: ignore[no-untyped-def]
    logits,
    weights,
    chosen,
    stride,
    T,
    E,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    EXPERTS: tl.constexpr,
    KEPT: tl.constexpr,
):
    """K times the largest that is left; a NaN counts as the largest, so that there always is one."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    number = tl.arange(0, EXPERTS)[None, :]
    place = tl.arange(0, KEPT)[None, :]
    left = (row < T) & (number < E)
    x = tl.load(logits + row * stride + number, mask=left, other=float("-inf")).to(tl.float32)
    order = tl.where(x != x, float("inf"), x)
    kept = tl.full([ROWS, KEPT], float("-inf"), tl.float32)
    which = tl.zeros([ROWS, KEPT], tl.int32)
    for j in tl.static_range(K):
        largest = tl.max(tl.where(left, order, float("-inf")), axis=1, keep_dims=True)
        first = tl.min(tl.where(left & (order == largest), number, EXPERTS), axis=1, keep_dims=True)
        taken = number == first
        value = tl.sum(tl.where(taken, x, 0.0), axis=1, keep_dims=True)
        kept = tl.where(place == j, value, kept)
        which = tl.where(place == j, first, which)
        left = left & (number != first)
    e = tl.exp(kept - tl.max(kept, axis=1, keep_dims=True))
    e = tl.where(place < K, e, 0.0)
    w = e / tl.sum(e, axis=1, keep_dims=True)
    inside = (row < T) & (place < K)
    tl.store(weights + row * K + place, w, mask=inside)
    tl.store(chosen + row * K + place, which.to(tl.int64), mask=inside)


def _run(empty: Empty, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    flat = rows_of(logits)
    T, E = flat.shape
    weights = empty((T, k), dtype=torch.float32, device=logits.device)
    chosen = empty((T, k), dtype=torch.int64, device=logits.device)
    rows, experts = tile(E)
    rows = min(rows, 16)
    if T:
        _route_topk_kernel[(-(-T // rows),)](
            flat,
            weights,
            chosen,
            flat.stride(0),
            T,
            E,
            K=k,
            ROWS=rows,
            EXPERTS=experts,
            KEPT=power_of_two(k),
            num_warps=warps(rows * experts),
        )
    return weights, chosen


def _inputs(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Any, ...]:
    tokens, experts, k = shape
    return noise((tokens, experts), dtype, device, 3.0), k


OPERATOR = Operator(
    name="route_topk",
    run=_run,
    reference=route_topk_reference,
    inputs=_inputs,
    edges=((1, 1, 1), (3, 8, 2), (33, 128, 8), (5, 5, 5), (2, 256, 16), (9, 60, 4), (0, 8, 2)),
    large=((1, 128, 8), (3, 128, 8), (64, 256, 8), (65537, 128, 8), (4096, 60, 4)),
    # The weights are float32 whatever the logits are.
    tolerance=tolerances(float32=1e-5, bfloat16=1e-5, float16=1e-5),
)


def route_topk(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """``logits`` (T, E) to weights (T, k) float32, largest first, and expert numbers (T, k) int64."""
    if logits.ndim != 2 or not 1 <= k <= logits.shape[1]:
        raise ValueError(f"route_topk: top {k} of logits {tuple(logits.shape)}")
    if logits.is_cuda:
        T, E = logits.shape
        if E > MOST_EXPERTS or k > MOST_KEPT:
            raise ValueError(f"route_topk: top {k} of {E} experts; a GPU takes up to {MOST_KEPT} of {MOST_EXPERTS}")
        routed: tuple[Tensor, Tensor] = METER.launch(OPERATOR, (T, E, k), logits.nbytes + 12 * T * k, logits, k)
        return routed
    METER.count(OPERATOR)
    p = torch.softmax(logits, dim=-1, dtype=torch.float32)
    weights, chosen = torch.topk(p, k, dim=-1)
    return weights / weights.sum(-1, keepdim=True), chosen
