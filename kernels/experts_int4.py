"""The experts of a mixture layer with 4-bit weights: each token passes its k experts and gets their weighted sum.

    y[t] = Σ_j  w[t, j] · silu_mul(gate_up[e] · x[t]) · down[e]         with e = chosen[t, j]

T tokens, H hidden, E experts, I intermediate, k experts a token. The weights are those of ``quant_matmul``, all experts
in one: ``gate_up`` (E, 2I, H/8) int32, gate rows first, its scales (E, 2I, ⌈H/group⌉); ``down`` (E, H, I/8), its scales
(E, H, ⌈I/group⌉); zero points likewise uint8, or None where they are 8 throughout.

As in ``experts_grouped`` the pairs (token, choice) are sorted by expert and cut into tiles of one expert; a tile's
product is that of ``int4_tiles``. Nothing waits for the host.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from zellige.kernels.contract import Empty, Operator, noise, seeded, tolerances
from zellige.kernels.experts import experts_reference
from zellige.kernels.experts_grouped import EXACT_PAIRS, _sum_kernel, _tile_of, experts_grouped, sorted_pairs
from zellige.kernels.int4_tiles import GROUPS, dequantize_reference, tile_product
from zellige.kernels.meter import METER
from zellige.kernels.tiles import rows_of
from zellige.kernels.tritonic import jit, tl


class Experts4(NamedTuple):
    """One of the two matrices of all experts, (E, N, K): ``packed``, ``scale``, ``zero`` and the size of a group."""

    packed: Tensor
    scale: Tensor
    zero: Tensor | None
    group: int

    @property
    def moved(self) -> int:
        """Bytes of one expert."""
        return sum(t[0].nbytes for t in (self.packed, self.scale, self.zero) if t is not None)

    def dense(self) -> Tensor:
        """The weights (E, K, N) in float32, as ``experts`` has them."""
        E, N, _ = self.packed.shape
        zero = None if self.zero is None else self.zero.flatten(0, 1)
        flat = dequantize_reference(self.packed.flatten(0, 1), self.scale.flatten(0, 1), zero, self.group)
        return flat.view(E, N, -1).transpose(1, 2)


def experts_int4_reference(x: Tensor, gate_up: Experts4, down: Experts4, weights: Tensor, chosen: Tensor) -> Tensor:
    """The formula with the weights written out, in float32, rounded once."""
    return experts_reference(x, gate_up.dense(), down.dense(), weights, chosen)


@jit
def _gate_up_kernel(  # type: ignore[no-untyped-def]
    x,
    packed,
    scale,
    zero,
    order,
    ends,
    hidden,
    x_row,
    words,
    groups,
    INNER,
    E,
    K: tl.constexpr,
    GROUP_WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SLICES: tl.constexpr,
    EXPERTS: tl.constexpr,
    ZERO: tl.constexpr,
):
    tiles = tl.cdiv(INNER, OUTPUTS // 2)
    pid = tl.program_id(0)
    expert, first, end = _tile_of(ends, pid // tiles, E, ROWS, EXPERTS)
    if first >= end:
        return
    place = first + tl.arange(0, ROWS)
    token = tl.load(order + place, mask=place < end, other=0) // K
    # Gate and up of an output stand beside each other, so that one product makes both.
    both = tl.arange(0, OUTPUTS)
    col = (pid % tiles) * (OUTPUTS // 2) + both // 2
    row = expert.to(tl.int64) * 2 * INNER + (both % 2) * INNER + col
    product = tile_product(
        packed + row * words,
        x + token.to(tl.int64) * x_row,
        scale + row * groups,
        zero + row * groups,
        col < INNER,
        place < end,
        words,
        groups,
        x.dtype.element_ty,
        GROUP_WORDS,
        SLICES,
        ZERO,
    )
    gate, up = tl.split(tl.permute(tl.reshape(product, [OUTPUTS // 2, 2, ROWS]), 0, 2, 1))
    n = (pid % tiles) * (OUTPUTS // 2) + tl.arange(0, OUTPUTS // 2)
    out = gate / (1 + tl.exp(-gate)) * up
    at = hidden + place.to(tl.int64)[None, :] * INNER + n[:, None]
    tl.store(at, out.to(hidden.dtype.element_ty), mask=(place < end)[None, :] & (n < INNER)[:, None])


@jit
def _down_kernel(  # type: ignore[no-untyped-def]
    hidden,
    packed,
    scale,
    zero,
    order,
    ends,
    parts,
    words,
    groups,
    H,
    E,
    GROUP_WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SLICES: tl.constexpr,
    EXPERTS: tl.constexpr,
    ZERO: tl.constexpr,
):
    tiles = tl.cdiv(H, OUTPUTS)
    pid = tl.program_id(0)
    expert, first, end = _tile_of(ends, pid // tiles, E, ROWS, EXPERTS)
    if first >= end:
        return
    place = first + tl.arange(0, ROWS)
    n = (pid % tiles) * OUTPUTS + tl.arange(0, OUTPUTS)
    row = expert.to(tl.int64) * H + n
    out = tile_product(
        packed + row * words,
        hidden + place.to(tl.int64) * (words * 8),
        scale + row * groups,
        zero + row * groups,
        n < H,
        place < end,
        words,
        groups,
        hidden.dtype.element_ty,
        GROUP_WORDS,
        SLICES,
        ZERO,
    )
    pair = tl.load(order + place, mask=place < end, other=0).to(tl.int64)
    at = parts + pair[None, :] * H + n[:, None]
    tl.store(at, out.to(parts.dtype.element_ty), mask=(place < end)[None, :] & (n < H)[:, None])


class Tile(NamedTuple):
    """``rows`` of one expert by ``outputs`` of its matrix; slices of the inputs, a warp each; depth of the pipeline."""

    rows: int
    outputs: int
    slices: int
    stages: int


def tile(pairs: int, experts: int) -> Tile:
    """With few rows an expert little more than its weights is moved; with many they are unpacked for more rows."""
    each = pairs / experts
    if each <= 8:
        return Tile(8, 32, 4, 4)
    return Tile(16, 32, 4, 3) if each <= 16 else Tile(32, 32, 2, 4)


def _run(
    empty: Empty, x: Tensor, gate_up: Experts4, down: Experts4, weights: Tensor, chosen: Tensor, cut: Tile | None = None
) -> Tensor:
    (T, H), (E, two_inner, _) = x.shape, gate_up.packed.shape
    inner, k, pairs, device = two_inner // 2, chosen.shape[1], chosen.numel(), x.device
    if x.dtype == torch.float32:
        # For exact comparisons only: unpacking beside products in full float32 takes more registers than there are.
        return experts_grouped(empty, x, gate_up.dense().contiguous(), down.dense().contiguous(), weights, chosen)
    x = rows_of(x)
    y = empty((T, H), dtype=x.dtype, device=device)
    if not T:
        return y
    rows, outputs, slices, stages = cut or tile(pairs, E)
    order, ends = sorted_pairs(empty, chosen, E)
    hidden = empty((pairs, inner), dtype=x.dtype, device=device)
    parts = empty((pairs, H), dtype=torch.float32 if pairs <= EXACT_PAIRS else x.dtype, device=device)
    numbers = max(16, 1 << (E - 1).bit_length())
    most = min(E, pairs) + pairs // rows
    common = {"ROWS": rows, "OUTPUTS": outputs, "SLICES": slices, "EXPERTS": numbers}
    common |= {"num_warps": slices, "num_stages": stages}
    _gate_up_kernel[(most * -(-inner // (outputs // 2)),)](
        x,
        gate_up.packed,
        gate_up.scale,
        gate_up.scale if gate_up.zero is None else gate_up.zero,
        order,
        ends,
        hidden,
        x.stride(0),
        gate_up.packed.shape[2],
        gate_up.scale.shape[2],
        inner,
        E,
        K=k,
        GROUP_WORDS=gate_up.group // 8,
        ZERO=gate_up.zero is not None,
        **common,
    )
    _down_kernel[(most * -(-H // outputs),)](
        hidden,
        down.packed,
        down.scale,
        down.scale if down.zero is None else down.zero,
        order,
        ends,
        parts,
        down.packed.shape[2],
        down.scale.shape[2],
        H,
        E,
        GROUP_WORDS=down.group // 8,
        ZERO=down.zero is not None,
        **common,
    )
    cols = 512
    _sum_kernel[(T * -(-H // cols),)](parts, weights, y, H, K=k, COLS=cols, num_warps=2)
    return y


def _matrices(E: int, N: int, K: int, group: int, zeros: int, dtype: torch.dtype, device: torch.device) -> Experts4:
    groups = -(-K // group)
    drawn, size = seeded((E, N, K), device), (E, N, groups)
    packed = torch.randint(-(2**31), 2**31 - 1, (E, N, K // 8), dtype=torch.int32, device=device, generator=drawn)
    zero = torch.randint(6, 10, size, dtype=torch.uint8, device=device, generator=drawn) if zeros else None
    return Experts4(packed, noise(size, dtype, device, 0.2 * K**-0.5).abs(), zero, group)


def _inputs(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[object, ...]:
    """``shape``: tokens, hidden, intermediate, experts, experts a token, group, and 1 where there are zero points."""
    T, H, inner, E, k, group, zeros = shape
    gate_up = _matrices(E, 2 * inner, H, group, zeros, dtype, device)
    down = _matrices(E, H, inner, group, zeros, dtype, device)
    weights, chosen = torch.softmax(noise((T, E), torch.float32, device), -1).topk(k, dim=-1)
    return noise((T, H), dtype, device), gate_up, down, weights / weights.sum(-1, keepdim=True), chosen


OPERATOR = Operator(
    name="experts_int4",
    run=_run,
    reference=experts_int4_reference,
    inputs=_inputs,
    edges=(
        (0, 32, 16, 4, 2, 32, 0),
        (1, 32, 16, 4, 2, 32, 1),
        (2, 40, 24, 3, 3, 64, 0),
        (3, 136, 72, 5, 1, 128, 1),
        (17, 32, 16, 2, 1, 32, 1),
        (33, 48, 16, 2, 2, 32, 0),
    ),
    large=tuple((T, 2048, 768, 128, 8, group, 0) for T in (1, 8, 64, 300) for group in (128, 32)),
    # The hidden values between the two products are rounded as well.
    tolerance=tolerances(float32=2e-4, bfloat16=1.2e-2, float16=2e-3),
)


def experts_int4(x: Tensor, gate_up: Experts4, down: Experts4, weights: Tensor, chosen: Tensor) -> Tensor:
    """``x`` (T, H) to (T, H). An expert that no token chose costs nothing on a GPU."""
    (T, H), (E, two_inner, words) = x.shape, gate_up.packed.shape
    sizes = (E, H, two_inner // 16)
    if words * 8 != H or down.packed.shape != sizes or weights.shape != chosen.shape:
        raise ValueError(
            f"experts_int4: x {tuple(x.shape)}, gate_up {tuple(gate_up.packed.shape)}, down "
            f"{tuple(down.packed.shape)}, weights {tuple(weights.shape)}, chosen {tuple(chosen.shape)} do not fit"
        )
    for m in (gate_up, down):
        groups = (*m.packed.shape[:2], -(-m.packed.shape[2] * 8 // m.group))
        if m.group not in GROUPS or m.scale.shape != groups or (m.zero is not None and m.zero.shape != groups):
            raise ValueError(f"experts_int4: scales {tuple(m.scale.shape)} in groups of {m.group}, want {groups}")
    if not x.is_cuda:
        METER.count(OPERATOR)
        return experts_int4_reference(x, gate_up, down, weights, chosen)
    # Which experts are touched is known on the device alone; this counts as many as there can be.
    moved = min(chosen.numel(), E) * (gate_up.moved + down.moved) + 2 * x.nbytes
    shape = (T, H, two_inner // 2, E, chosen.shape[1], gate_up.group)
    y: Tensor = METER.launch(OPERATOR, shape, moved, x, gate_up, down, weights, chosen)
    return y
