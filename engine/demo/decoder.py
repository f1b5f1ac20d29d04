"""The language model of the training model: GQA with QK-norm and interleaved M-RoPE, experts in every layer.

Shapes: B images, L sequence (prefix, image, slots, padding), H width, D head size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zellige.engine.demo.architecture import Architecture
from zellige.engine.demo.experts import Experts
from zellige.engine.demo.geometry import Geometry
from zellige.engine.demo.packing import PREFIX_TOKENS
from zellige.engine.demo.vision import rotate_half


class RmsNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-6)


class Attention(nn.Module):
    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = a.heads, a.kv_heads, a.head_size
        self.q_proj = nn.Linear(a.hidden, a.heads * a.head_size, bias=False)
        self.k_proj = nn.Linear(a.hidden, a.kv_heads * a.head_size, bias=False)
        self.v_proj = nn.Linear(a.hidden, a.kv_heads * a.head_size, bias=False)
        self.o_proj = nn.Linear(a.heads * a.head_size, a.hidden, bias=False)
        self.q_norm, self.k_norm = RmsNorm(a.head_size), RmsNorm(a.head_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        b, length, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(b, length, self.heads, self.size))
        k = self.k_norm(self.k_proj(x).view(b, length, self.kv_heads, self.size))
        v = self.v_proj(x).view(b, length, self.kv_heads, self.size)
        q = (q * cos + rotate_half(q) * sin).transpose(1, 2)
        k = self._spread(k * cos + rotate_half(k) * sin)
        out = F.scaled_dot_product_attention(q, k, self._spread(v), attn_mask=mask)
        joined: Tensor = self.o_proj(out.transpose(1, 2).reshape(b, length, self.heads * self.size))
        return joined

    def _spread(self, x: Tensor) -> Tensor:
        """(B, L, KV heads, D) -> (B, heads, L, D): every head its group's keys or values."""
        b, length = x.shape[:2]
        x = x.transpose(1, 2)[:, :, None].expand(b, self.kv_heads, self.heads // self.kv_heads, length, self.size)
        return x.reshape(b, self.heads, length, self.size)


class DecoderLayer(nn.Module):
    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(a), Experts(a)
        self.input_layernorm, self.post_attention_layernorm = RmsNorm(a.hidden), RmsNorm(a.hidden)

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The residual after attention, and the normalised input of the experts."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x, self.post_attention_layernorm(x)


def look_up(weight: Tensor, ids: Tensor) -> Tensor:
    """Embedding as a one-hot product on a GPU: its gradient is a plain matrix product, without atomics."""
    if not weight.is_cuda:
        return F.embedding(ids, weight)
    return (ids[..., None] == torch.arange(weight.shape[0], device=weight.device)).to(weight.dtype) @ weight


class Decoder(nn.Module):
    def __init__(self, a: Architecture, vocabulary: int) -> None:
        super().__init__()
        self.heads = a.heads
        self.embed_tokens = nn.Embedding(vocabulary, a.hidden)
        self.layers = nn.ModuleList([DecoderLayer(a) for _ in range(a.layers)])
        self.norm = RmsNorm(a.hidden)
        #: How the attention half of a layer is run; training puts a compiled form here.
        self.run_attention = DecoderLayer.attend

    def forward(
        self, image: Tensor, deep: list[Tensor], prefix: Tensor, ids: Tensor, geometry: Geometry
    ) -> tuple[Tensor, Tensor]:
        """Image embeddings (B, n, H) and slot ids (B, S) -> hidden states of the slots (B, S, H), balance loss."""
        b, s = ids.shape
        end = PREFIX_TOKENS + image.shape[1]
        length = geometry.mask.shape[-1]
        weight = self.embed_tokens.weight
        head = look_up(weight, prefix)[None].expand(b, -1, -1)
        x = torch.cat([head, image, look_up(weight, ids)], 1)
        x = F.pad(x, (0, 0, 0, length - end - s))
        mask = geometry.mask.expand(b, self.heads, length, length)
        balance = torch.zeros((), device=x.device)
        for index, layer in enumerate(cast("Iterable[DecoderLayer]", self.layers)):
            x, y = self.run_attention(layer, x, geometry.text_cos, geometry.text_sin, mask)
            out, loss = layer.mlp(y.reshape(-1, y.shape[-1]))
            x = x + out.view_as(x)
            balance = balance + loss / len(self.layers)
            if index < len(deep):
                x = torch.cat([x[:, :PREFIX_TOKENS], x[:, PREFIX_TOKENS:end] + deep[index], x[:, end:]], 1)
        return self.norm(x[:, end : end + s]), balance
