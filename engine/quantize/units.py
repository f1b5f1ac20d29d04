"""A decoder layer's matrices as things to round: those that read the same input and have the same grid are one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from zellige.engine.layers.experts import DenseExperts, GatedMLP, MixtureOfExperts, Router
from zellige.engine.layers.projection import Product, Projection
from zellige.engine.models.qwen3_vl import DecoderLayer
from zellige.engine.quantize.grid import Codes, Grid
from zellige.engine.quantize.plan import Plan


@dataclass(eq=False)
class Part:
    """One matrix (N, K) float32 by its name; ``grid`` None: it stays. ``what`` it reads, and of which expert."""

    name: str
    w: Tensor
    grid: Grid | None
    what: str
    expert: int = 0
    codes: Codes | None = None

    @property
    def result(self) -> Tensor:
        return self.w if self.codes is None else self.codes.dense()


@dataclass(eq=False)
class LayerParts:
    """A layer taken apart: its matrices, and what makes their inputs (norms, router), which scaling may change."""

    parts: list[Part]
    norm1: Tensor
    norm2: Tensor
    router: Tensor | None

    @classmethod
    def of(cls, layer: DecoderLayer, name: str, plan: Plan) -> LayerParts:
        attention, feed_forward = layer.attention, layer.feed_forward
        q, k, v = _rows(attention.qkv).split(_qkv_sizes(layer))
        found = [(f"self_attn.{p}_proj", w, "qkv", 0) for p, w in (("q", q), ("k", k), ("v", v))]
        found.append(("self_attn.o_proj", _rows(attention.out), "out", 0))
        router = None
        if isinstance(feed_forward, MixtureOfExperts):
            store, router = dense_experts(feed_forward), feed_forward.router.weight.T.float()
            for e, (gate_up, down) in enumerate(zip(store.gate_up, store.down, strict=True)):
                gate, up = gate_up.T.chunk(2)
                found += [(f"mlp.experts.{e}.{p}_proj", w, "gate_up", e) for p, w in (("gate", gate), ("up", up))]
                found.append((f"mlp.experts.{e}.down_proj", down.T, "down", e))
        else:
            assert isinstance(feed_forward, GatedMLP)
            gate, up = _rows(feed_forward.gate_up).chunk(2)
            found += [("mlp.gate_proj", gate, "gate_up", 0), ("mlp.up_proj", up, "gate_up", 0)]
            found.append(("mlp.down_proj", _rows(feed_forward.down), "down", 0))
        parts = [
            Part(f"{name}.{p}", w.float().contiguous(), plan.grid(f"{name}.{p}", w.shape[1]), what, e)
            for p, w, what, e in found
        ]
        return cls(parts, layer.norm1.weight.float(), layer.norm2.weight.float(), router)

    def reading(self, what: str) -> list[Part]:
        return [p for p in self.parts if p.what == what]

    def rebuilt(self, layer: DecoderLayer) -> DecoderLayer:
        """``layer`` with the weights that the parts stand for now."""
        dtype = layer.norm1.weight.dtype

        def product(what: str) -> Projection:
            old = {"qkv": layer.attention.qkv, "out": layer.attention.out}.get(what)
            bias = None if old is None else _projection(old).bias
            w = torch.cat([p.result for p in self.reading(what)]).to(dtype)
            return Projection(w.T.contiguous(), bias)

        old = layer.feed_forward
        if isinstance(old, MixtureOfExperts):
            assert self.router is not None
            E = len(dense_experts(old).down)
            gate_up = torch.stack([p.result for p in self.reading("gate_up")])
            gate_up = gate_up.view(E, -1, gate_up.shape[-1]).transpose(1, 2).to(dtype).contiguous()
            down = torch.stack([p.result for p in self.reading("down")]).transpose(1, 2).to(dtype).contiguous()
            router = Router(self.router.T.contiguous())
            feed_forward: MixtureOfExperts | GatedMLP = replace(old, router=router, store=DenseExperts(gate_up, down))
        else:
            feed_forward = GatedMLP(product("gate_up"), product("down"))
        return replace(
            layer,
            norm1=replace(layer.norm1, weight=self.norm1.to(dtype)),
            norm2=replace(layer.norm2, weight=self.norm2.to(dtype)),
            attention=replace(layer.attention, qkv=product("qkv"), out=product("out")),
            feed_forward=feed_forward,
        )


@dataclass(eq=False)
class Unit:
    """Parts of one input and one grid, row under row: ``w`` (N, K)."""

    parts: list[Part]

    @property
    def w(self) -> Tensor:
        return torch.cat([p.w for p in self.parts])

    @property
    def key(self) -> tuple[object, ...]:
        """Units of equal keys can be rounded together."""
        return self.parts[0].what, self.parts[0].grid, sum(len(p.w) for p in self.parts)

    def take(self, codes: Codes) -> None:
        """Hand each part its rows."""
        begin = 0
        for part in self.parts:
            part.codes = codes.rows(begin, begin + len(part.w))
            begin += len(part.w)


def units(parts: Sequence[Part]) -> list[Unit]:
    """The quantised ones of ``parts``, those of one expert, input and grid as one."""
    found: dict[tuple[object, ...], Unit] = {}
    for part in parts:
        if part.grid is not None:
            found.setdefault((part.what, part.expert, part.grid), Unit([])).parts.append(part)
    return list(found.values())


def dense_experts(mixture: MixtureOfExperts) -> DenseExperts:
    assert isinstance(mixture.store, DenseExperts)
    return mixture.store


def _projection(product: Product) -> Projection:
    assert isinstance(product, Projection)
    return product


def _rows(product: Product) -> Tensor:
    """The weight (out, in)."""
    return _projection(product).weight.T


def _qkv_sizes(layer: DecoderLayer) -> list[int]:
    """Rows of q, k and v, from the norms of the heads and the width that the output takes."""
    D = layer.attention.qk_norm.shape[1]
    q, kv = layer.attention.heads * D, (len(layer.attention.qk_norm) - layer.attention.heads) * D
    return [q, kv, kv]
