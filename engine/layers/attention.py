"""Grouped-query attention of a decoder layer with normed query and key heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zellige.engine.checkpoint import Weights
from zellige.engine.layers.projection import Product, product
from zellige.kernels.paged_attention import PagedLayout, paged_attention
from zellige.kernels.text_qkv_rope import text_qkv_rope


@dataclass(frozen=True, eq=False)
class GroupedQueryAttention:
    """A query heads share G key heads. The three projections lie in one; ``qk_norm`` (A + G, D) is a row a head."""

    qkv: Product
    out: Product
    qk_norm: Tensor
    heads: int
    eps: float

    @classmethod
    def load(
        cls, w: Weights, name: str, *, hidden: int, heads: int, kv_heads: int, head_dim: int, eps: float, bias: bool
    ) -> GroupedQueryAttention:
        sizes = {"q": heads * head_dim, "k": kv_heads * head_dim, "v": kv_heads * head_dim}
        biases = tuple(w.take(f"{name}.{p}_proj.bias", n) for p, n in sizes.items()) if bias else ()
        out_bias = (w.take(f"{name}.o_proj.bias", hidden),) if bias else ()
        q_norm, k_norm = w.take(f"{name}.q_norm.weight", head_dim), w.take(f"{name}.k_norm.weight", head_dim)
        return cls(
            qkv=product(*(w.matrix(f"{name}.{p}_proj", n, hidden) for p, n in sizes.items()), biases=biases),
            out=product(w.matrix(f"{name}.o_proj", hidden, heads * head_dim), biases=out_bias),
            qk_norm=torch.cat((q_norm.expand(heads, -1), k_norm.expand(kv_heads, -1))),
            heads=heads,
            eps=eps,
        )

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, layout: PagedLayout) -> Tensor:
        """``x`` (T, H) to (T, H); the new keys and values are stored in ``cache``."""
        q, k, v = text_qkv_rope(self.qkv(x), self.qk_norm, self.eps, cos, sin, self.heads)
        return self.out(paged_attention(q, k, v, cache, layout))
