"""A decoder computed layer by layer over a calibration set, and the energy of what each of its matrices is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from zellige.engine.layers.experts import FeedForward, GatedMLP, MixtureOfExperts
from zellige.engine.layers.projection import Product
from zellige.engine.models.qwen3_vl import DecoderLayer
from zellige.engine.quantize.passages import Opened, Passage, Step
from zellige.engine.quantize.rounding import Energies
from zellige.engine.quantize.units import dense_experts
from zellige.kernels.route_topk import route_topk
from zellige.kernels.silu_mul import silu_mul

#: One passage in so many judges.
_JUDGES = 4


@dataclass
class Energy:
    """Σ x·xᵀ of the inputs of matrices, float32: (1, K, K), or (E, K, K) for those of experts, by what is read."""

    sums: dict[str, Tensor] = field(default_factory=dict)

    def add(self, what: str, x: Tensor, expert: int = 0, experts: int = 1) -> None:
        K = x.shape[-1]
        if what not in self.sums:
            self.sums[what] = torch.zeros(experts, K, K, device=x.device)
        rows = x.float()
        self.sums[what][expert].addmm_(rows.T, rows)


@dataclass(eq=False)
class _State:
    x: Tensor
    cos: Tensor
    sin: Tensor
    step: Step


class Flow:
    """What stands before a layer for every passage of the set."""

    def __init__(self, opened: Opened, passages: Sequence[Passage]) -> None:
        self._opened = opened
        self._states = [self._state(p) for p in passages]

    @torch.inference_mode()
    def observe(self, layer: DecoderLayer) -> Energies:
        """The energy of the inputs of ``layer``'s matrices: every fourth passage judges, the others decide."""
        judges = self._states[::_JUDGES] if len(self._states) >= _JUDGES else self._states
        deciding = [s for s in self._states if s not in judges] or judges
        return Energies(self._energy(layer, deciding), self._energy(layer, judges))

    def _energy(self, layer: DecoderLayer, states: Sequence[_State]) -> dict[str, Tensor]:
        energy = Energy()
        seen = replace(
            layer,
            attention=replace(
                layer.attention,
                qkv=_Seen(layer.attention.qkv, "qkv", energy),
                out=_Seen(layer.attention.out, "out", energy),
            ),
            feed_forward=_seen_feed_forward(layer, energy),
        )
        for state in states:
            _apply(seen, state)
        return energy.sums

    @torch.inference_mode()
    def advance(self, layer: DecoderLayer, index: int) -> None:
        """Pass everything through ``layer``, the ``index``-th."""
        for state in self._states:
            state.x = _apply(layer, state)
            batch = state.step.batch
            if batch.image_rows is not None and index + 1 < len(batch.image_layers):
                state.x.index_add_(0, batch.image_rows, batch.image_layers[index + 1])

    @torch.inference_mode()
    def _state(self, passage: Passage) -> _State:
        model, step = self._opened.model, self._opened.step(passage)
        x = F.embedding(step.batch.tokens, model.embed)
        if step.batch.image_rows is not None:
            x.index_copy_(0, step.batch.image_rows, step.batch.image_layers[0])
        cos, sin = model.rope(step.batch.positions)
        return _State(x, cos, sin, step)


def _apply(layer: DecoderLayer, s: _State) -> Tensor:
    x = s.x + layer.attention(layer.norm1(s.x), s.cos, s.sin, s.step.cache, s.step.batch.layout)
    return x + layer.feed_forward(layer.norm2(x))


@dataclass(frozen=True, eq=False)
class _Seen:
    """A matrix product whose inputs are counted."""

    inner: Product
    what: str
    energy: Energy

    def __call__(self, x: Tensor) -> Tensor:
        self.energy.add(self.what, x)
        return self.inner(x)


@dataclass(frozen=True, eq=False)
class _SeenExperts:
    """A mixture computed expert by expert, their inputs counted."""

    inner: MixtureOfExperts
    energy: Energy
    capturable = False

    def __call__(self, x: Tensor) -> Tensor:
        weights, chosen = route_topk(self.inner.router(x), self.inner.top_k)
        store = dense_experts(self.inner)
        out = torch.zeros_like(x)
        E = len(store.gate_up)
        for e in range(E):
            token, j = (chosen == e).nonzero(as_tuple=True)
            rows = x[token]
            self.energy.add("gate_up", rows, e, E)
            hidden = silu_mul(rows @ store.gate_up[e])
            self.energy.add("down", hidden, e, E)
            out.index_add_(0, token, (hidden @ store.down[e]) * weights[token, j].to(x.dtype).unsqueeze(-1))
        return out


def _seen_feed_forward(layer: DecoderLayer, energy: Energy) -> FeedForward:
    inner = layer.feed_forward
    if isinstance(inner, MixtureOfExperts):
        return _SeenExperts(inner, energy)
    assert isinstance(inner, GatedMLP)
    return replace(inner, gate_up=_Seen(inner.gate_up, "gate_up", energy), down=_Seen(inner.down, "down", energy))
