"""The experts of a mixture layer: each token passes its k experts and gets their weighted sum.

    y[t] = Σ_j  w[t, j] · silu_mul(x[t] · gate_up[e]) · down[e]         with e = chosen[t, j]

T tokens, H hidden, E experts, I intermediate, k experts a token.
``gate_up`` (E, H, 2I), gate columns first; ``down`` (E, I, H); ``weights`` (T, k) float32; ``chosen`` (T, k) int64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zellige.kernels.contract import Operator, noise, seeded, tolerances
from zellige.kernels.experts_grouped import experts_grouped
from zellige.kernels.meter import METER
from zellige.kernels.silu_mul import silu_mul

#: Up to this many (token, expert) products every expert sees every token, on a CPU: sorting would cost more than the
#: arithmetic thrown away. A single token reads its own experts only.
DENSE_PRODUCTS = 64
#: On a CPU the experts' rows are padded to those of the busiest and go through one batched product, unless that is more
#: than this many times the rows there are: many small products cost more in launches than padding does in arithmetic.
PADDING = 2.0


def experts_reference(x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """The formula expert by expert, in float32, rounded once."""
    out = torch.zeros_like(x, dtype=torch.float32)
    for e in chosen.unique().tolist():
        token, j = (chosen == e).nonzero(as_tuple=True)
        gate, up = (x[token].float() @ gate_up[e].float()).chunk(2, dim=-1)
        part = (gate * torch.sigmoid(gate) * up) @ down[e].float()
        out.index_add_(0, token, part * weights[token, j].unsqueeze(-1))
    return out.to(x.dtype)


def _inputs(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    """``shape``: tokens, hidden, intermediate, experts, experts a token."""
    T, H, inner, E, k = shape
    x = noise((T, H), dtype, device)
    # Too many numbers to draw on the CPU.
    drawn = seeded(shape, device)
    gate_up = torch.randn(E, H, 2 * inner, dtype=dtype, device=device, generator=drawn) * H**-0.5
    down = torch.randn(E, inner, H, dtype=dtype, device=device, generator=drawn) * inner**-0.5
    scores = noise((T, E), torch.float32, device)
    weights, chosen = torch.softmax(scores, -1).topk(k, dim=-1)
    return x, gate_up, down, weights / weights.sum(-1, keepdim=True), chosen


OPERATOR = Operator(
    name="experts",
    run=experts_grouped,
    reference=experts_reference,
    inputs=_inputs,
    edges=(
        (0, 32, 16, 4, 2),
        (1, 32, 16, 4, 2),
        (2, 40, 24, 3, 3),
        (3, 64, 33, 5, 1),
        (17, 32, 16, 2, 1),
        (33, 48, 16, 2, 2),
    ),
    large=tuple((T, 2048, 768, 128, 8) for T in (1, 8, 64, 200, 300, 800, 4096)),
    # The hidden values between the two products are rounded as well.
    tolerance=tolerances(float32=1e-5, bfloat16=1.2e-2, float16=2e-3),
)


def experts(x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """``x`` (T, H) to (T, H). An expert that no token chose costs nothing, except on a CPU in very small batches."""
    E, H, two_i = gate_up.shape
    if x.shape[1] != H or down.shape != (E, two_i // 2, H) or weights.shape != chosen.shape:
        raise ValueError(
            f"experts: x {tuple(x.shape)}, gate_up {tuple(gate_up.shape)}, down {tuple(down.shape)}, "
            f"weights {tuple(weights.shape)}, chosen {tuple(chosen.shape)} do not fit together"
        )
    if x.is_cuda:
        return _launch(x, gate_up, down, weights, chosen)
    METER.count(OPERATOR)
    if 1 < x.shape[0] <= DENSE_PRODUCTS // E:
        return _all_experts(x, gate_up, down, weights, chosen)
    busiest = int(torch.bincount(chosen.flatten(), minlength=E).max()) if chosen.numel() else 0
    if E * busiest <= PADDING * chosen.numel():
        return _padded(x, gate_up, down, weights, chosen, busiest)
    return _grouped(x, gate_up, down, weights, chosen)


def _launch(x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    if not all(t.is_contiguous() for t in (gate_up, down, weights, chosen)):
        raise ValueError("experts: gate_up, down, weights and chosen must be contiguous")
    # Which experts are touched is known on the device alone; this counts as many as there can be.
    touched = min(chosen.numel(), gate_up.shape[0])
    moved = touched * (gate_up[0].nbytes + down[0].nbytes) + 2 * x.nbytes
    out: Tensor = METER.launch(
        OPERATOR, (*x.shape, *down.shape[:2], chosen.shape[1]), moved, x, gate_up, down, weights, chosen
    )
    return out


def _all_experts(x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    E = gate_up.shape[0]
    share = torch.zeros(E, x.shape[0], dtype=torch.float32, device=x.device).scatter_(0, chosen.T, weights.T)
    hidden = silu_mul(torch.bmm(x.expand(E, *x.shape), gate_up))
    hidden *= share.to(x.dtype).unsqueeze(-1)
    return torch.bmm(hidden, down).sum(0)


def _padded(x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, chosen: Tensor, busiest: int) -> Tensor:
    """All experts at once, each with room for ``busiest`` rows; the rows that nobody asked for are never read."""
    T, H = x.shape
    E, k = gate_up.shape[0], chosen.shape[1]
    flat = chosen.flatten()
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=E)
    pairs = torch.arange(T * k, device=x.device)
    expert = flat.index_select(0, order)
    place = expert * busiest + pairs - (counts.cumsum(0) - counts).index_select(0, expert)
    token = torch.zeros(E * busiest, dtype=torch.int64, device=x.device).index_copy_(0, place, order // k)
    rows = x.index_select(0, token).view(E, busiest, H)
    out = torch.bmm(silu_mul(torch.bmm(rows, gate_up)), down).view(E * busiest, H)
    parts = out.index_select(0, torch.empty_like(place).index_copy_(0, order, place)).view(T, k, H)
    return (parts * weights.to(x.dtype).unsqueeze(-1)).sum(1)


def _grouped(x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Expert by expert, with one pass over what stands between the two products of all of them."""
    T, H = x.shape
    k = chosen.shape[1]
    flat = chosen.flatten()
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=len(gate_up)).tolist()
    wide = _each(x.index_select(0, order // k), gate_up, counts)
    out = _each(silu_mul(wide), down, counts)
    # Back to token order before the sum: each token's k parts are added in one fixed order, whatever the batch.
    parts = torch.empty_like(out).index_copy_(0, order, out).view(T, k, H)
    return (parts * weights.to(x.dtype).unsqueeze(-1)).sum(1)


def _each(rows: Tensor, matrices: Tensor, counts: list[int]) -> Tensor:
    """The first ``counts[0]`` rows times the first matrix, those behind them times the second, and so on."""
    out = rows.new_empty(len(rows), matrices.shape[2])
    for mine, matrix, into in zip(rows.split(counts), matrices, out.split(counts), strict=True):
        if len(mine):
            torch.mm(mine, matrix, out=into)
    return out
