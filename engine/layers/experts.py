"""The feed-forward half of a decoder layer: one gated block, or a router and its experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from zellige.engine.checkpoint import Weights
from zellige.engine.layers.projection import Product, Projection, product
from zellige.engine.quantize.packed import Packed
from zellige.kernels.experts import experts
from zellige.kernels.experts_int4 import Experts4, experts_int4
from zellige.kernels.route_topk import route_topk
from zellige.kernels.silu_mul import silu_mul


class FeedForward(Protocol):
    @property
    def capturable(self) -> bool:
        """Whether a call waits for nothing on the host."""

    def __call__(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class GatedMLP:
    """down · (silu(gate · x) · (up · x)); gate and up lie in one matrix."""

    gate_up: Product
    down: Product

    @property
    def capturable(self) -> bool:
        return True

    @classmethod
    def load(cls, w: Weights, name: str, hidden: int, inner: int) -> GatedMLP:
        gate, up = (w.matrix(f"{name}.{p}_proj", inner, hidden) for p in ("gate", "up"))
        return cls(product(gate, up), product(w.matrix(f"{name}.down_proj", hidden, inner)))

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(silu_mul(self.gate_up(x)))


class ExpertStore(Protocol):
    """Where a layer's experts are, all of them on the device; a call gives each token its experts' weighted sum."""

    #: Whether a call waits for nothing on the host, so that a graph may capture it.
    capturable: bool

    def __call__(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class DenseExperts:
    """``gate_up`` (E, H, 2I), ``down`` (E, I, H)."""

    gate_up: Tensor
    down: Tensor
    capturable = True

    def __call__(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        return experts(x, self.gate_up, self.down, weights, chosen)


@dataclass(frozen=True, eq=False)
class Int4Experts:
    """All experts in 4 bits and groups of one size."""

    gate_up: Experts4
    down: Experts4
    capturable = True

    def __call__(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        return experts_int4(x, self.gate_up, self.down, weights, chosen)


@dataclass(frozen=True, eq=False)
class QuantizedExperts:
    """Experts that differ in how they are stored, one by one: ``gate_up`` (2I, H) and ``down`` (H, I) of each."""

    gate_up: tuple[Product, ...]
    down: tuple[Product, ...]
    capturable = False

    def __call__(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        T, k = chosen.shape
        flat = chosen.flatten()
        order = torch.argsort(flat, stable=True)
        rows = x.index_select(0, order // k)
        counts = torch.bincount(flat, minlength=len(self.gate_up)).tolist()
        parts = [
            down(silu_mul(gate_up(mine)))
            for gate_up, down, mine in zip(self.gate_up, self.down, rows.split(counts), strict=True)
            if len(mine)
        ]
        # Back to token order before the sum, so that each token's parts are added in one fixed order.
        out = torch.empty_like(rows).index_copy_(0, order, torch.cat(parts)) if parts else rows
        return (out.view(T, k, -1) * weights.to(x.dtype).unsqueeze(-1)).sum(1)


def load_experts(w: Weights, name: str, count: int, hidden: int, inner: int) -> ExpertStore:
    """Experts in one tensor of all, or expert by expert as quantisers write them."""
    if f"{name}.gate_up_proj" in w or f"{name}.down_proj" in w:
        return _together(w, name, count, hidden, inner)
    return _one_by_one(w, name, count, hidden, inner)


def _together(w: Weights, name: str, count: int, hidden: int, inner: int) -> DenseExperts:
    """Reads both layouts that writers use, told apart by shape.

    Released checkpoints hold gate_up_proj (E, H, 2I) and down_proj (E, I, H); newer savers write (E, 2I, H) and
    (E, H, I). One of the two tensors always tells, because 2I = H and I = H cannot both be; where they contradict
    each other the checkpoint is refused.
    """
    gate_up, down = f"{name}.gate_up_proj", f"{name}.down_proj"
    released = (count, hidden, 2 * inner), (count, inner, hidden)
    newer = (count, 2 * inner, hidden), (count, hidden, inner)
    have = w.shape(gate_up), w.shape(down)
    if have == newer:
        first, second = w.take(gate_up, *newer[0]), w.take(down, *newer[1])
        return DenseExperts(first.transpose(1, 2).contiguous(), second.transpose(1, 2).contiguous())
    if have != released and None not in have:
        w.refuse(
            f"{gate_up} {list(have[0] or ())} and {down} {list(have[1] or ())}: neither the released layout "
            f"{list(released[0])}, {list(released[1])} nor the newer {list(newer[0])}, {list(newer[1])}"
        )
        w.ignore(gate_up)
        w.ignore(down)
        empty = torch.empty(0, device=w.device, dtype=w.dtype)
        return DenseExperts(empty, empty)
    return DenseExperts(w.take(gate_up, *released[0]), w.take(down, *released[1]))


def _one_by_one(w: Weights, name: str, count: int, hidden: int, inner: int) -> ExpertStore:
    sizes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    found: list[tuple[Tensor | Packed, ...]] = []
    gate_up = torch.empty(0)
    down = torch.empty(0)
    for e in range(count):
        gate, up, back = (w.matrix(f"{name}.{e}.{p}_proj", *sizes[p]) for p in ("gate", "up", "down"))
        if found or isinstance(gate, Packed) or isinstance(up, Packed) or isinstance(back, Packed):
            found.append((gate, up, back))
            continue
        if not e:
            gate_up = torch.empty(count, hidden, 2 * inner, dtype=w.dtype, device=w.device)
            down = torch.empty(count, inner, hidden, dtype=w.dtype, device=w.device)
        gate_up[e, :, :inner], gate_up[e, :, inner:], down[e] = gate.T, up.T, back.T
    if not found:
        return DenseExperts(gate_up, down)
    if (stacked := _stacked(found, count)) is not None:
        return stacked
    before = count - len(found)
    dense = tuple((Projection(gate_up[e]), Projection(down[e])) for e in range(before))
    rest = tuple((product(gate, up), product(back)) for gate, up, back in found)
    return QuantizedExperts(*zip(*dense, *rest, strict=True))


def _stacked(found: Sequence[tuple[Tensor | Packed, ...]], count: int) -> Int4Experts | None:
    """Experts that are all packed, with no input kept in 8 bits and groups of one size, as one; else None."""
    packed = [m for expert in found for m in expert if isinstance(m, Packed)]
    if len(packed) != 3 * count or any(m.kept_index is not None or m.group != packed[0].group for m in packed):
        return None
    zeros = any(m.zero is not None for m in packed)

    def all_of(matrices: Sequence[Packed]) -> Experts4:
        zero = torch.stack([m.zero_points() for m in matrices]) if zeros else None
        scale = torch.stack([m.scale for m in matrices])
        return Experts4(torch.stack([m.packed for m in matrices]), scale, zero, matrices[0].group)

    gate_up = [Packed.stacked(packed[i : i + 2]) for i in range(0, len(packed), 3)]
    return Int4Experts(all_of([m for m in gate_up if m is not None]), all_of(packed[2::3]))


@dataclass(frozen=True, eq=False)
class Router:
    """Logits (T, E) in float32 whatever the dtype: rounded ones would send a token elsewhere for want of a last bit.

    On a GPU 16-bit factors stay so: their products are exact in float32, and summed there.
    """

    weight: Tensor

    @classmethod
    def of(cls, weight: Tensor) -> Router:
        """From ``weight`` (E, H)."""
        return cls((weight if weight.is_cuda else weight.float()).T.contiguous())

    def __call__(self, x: Tensor) -> Tensor:
        if self.weight.dtype == torch.float32:
            return x.float() @ self.weight
        return torch.mm(x, self.weight, out_dtype=torch.float32)


@dataclass(frozen=True, eq=False)
class MixtureOfExperts:
    """Each token passes the ``top_k`` experts its router prefers."""

    router: Router
    store: ExpertStore
    top_k: int

    @property
    def capturable(self) -> bool:
        return self.store.capturable

    @classmethod
    def load(cls, w: Weights, name: str, *, count: int, top_k: int, hidden: int, inner: int) -> MixtureOfExperts:
        router = Router.of(w.dense(f"{name}.gate", count, hidden))
        return cls(router, load_experts(w, f"{name}.experts", count, hidden, inner), top_k)

    def __call__(self, x: Tensor) -> Tensor:
        weights, chosen = route_topk(self.router(x), self.top_k)
        return self.store(x, weights, chosen)
