"""The feed-forward half of a decoder layer: one gated block, or a router and its experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from zellige.engine.checkpoint import Weights
from zellige.engine.layers.projection import Projection
from zellige.kernels.experts import experts
from zellige.kernels.route_topk import route_topk
from zellige.kernels.silu_mul import silu_mul


class FeedForward(Protocol):
    def __call__(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class GatedMLP:
    """down · (silu(gate · x) · (up · x)); gate and up lie in one matrix."""

    gate_up: Projection
    down: Projection

    @classmethod
    def load(cls, w: Weights, name: str, hidden: int, inner: int) -> GatedMLP:
        gate, up = (w.take(f"{name}.{p}_proj.weight", inner, hidden) for p in ("gate", "up"))
        return cls(Projection.of(gate, up), Projection.of(w.take(f"{name}.down_proj.weight", hidden, inner)))

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(silu_mul(self.gate_up(x)))


@dataclass(frozen=True, eq=False)
class ExpertStore:
    """Where a layer's experts are: all of them on the device. ``gate_up`` (E, H, 2I), ``down`` (E, I, H)."""

    gate_up: Tensor
    down: Tensor

    @classmethod
    def load(cls, w: Weights, name: str, count: int, hidden: int, inner: int) -> ExpertStore:
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
            return cls(first.transpose(1, 2).contiguous(), second.transpose(1, 2).contiguous())
        if have != released and None not in have:
            w.refuse(
                f"{gate_up} {list(have[0] or ())} and {down} {list(have[1] or ())}: neither the released layout "
                f"{list(released[0])}, {list(released[1])} nor the newer {list(newer[0])}, {list(newer[1])}"
            )
            w.ignore(gate_up)
            w.ignore(down)
            empty = torch.empty(0, device=w.device, dtype=w.dtype)
            return cls(empty, empty)
        return cls(w.take(gate_up, *released[0]), w.take(down, *released[1]))


@dataclass(frozen=True, eq=False)
class MixtureOfExperts:
    """Each token passes the ``top_k`` experts its router prefers.

    The router works in float32 whatever the dtype: rounded logits would send a token elsewhere for want of a last bit.
    """

    router: Projection
    store: ExpertStore
    top_k: int

    @classmethod
    def load(cls, w: Weights, name: str, *, count: int, top_k: int, hidden: int, inner: int) -> MixtureOfExperts:
        router = Projection.of(w.take(f"{name}.gate.weight", count, hidden).float())
        return cls(router, ExpertStore.load(w, f"{name}.experts", count, hidden, inner), top_k)

    def __call__(self, x: Tensor) -> Tensor:
        weights, chosen = route_topk(self.router(x.float()), self.top_k)
        return experts(x, self.store.gate_up, self.store.down, weights, chosen)
