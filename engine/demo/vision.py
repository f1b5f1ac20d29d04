"""The vision tower of the training model: ViT with 2-D rotary positions, mergers, and one deepstack tap.

Shapes: B images, N patches (in merge order: the four of a cell in a row), C vision width, H text width.
Parameter names are those of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zellige.engine.demo.architecture import MERGE, PATCH, Architecture
from zellige.engine.demo.geometry import Geometry

#: Values of one patch: 3 colours of 16 x 16 pixels (both frames of the temporal patch are the same image).
PATCH_VALUES = 3 * PATCH * PATCH


def rotate_half(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


class VisionAttention(nn.Module):
    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.heads = a.vision_heads
        self.qkv = nn.Linear(a.vision_hidden, 3 * a.vision_hidden)
        self.proj = nn.Linear(a.vision_hidden, a.vision_hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).unbind(2)
        wide_q, wide_k = q.float(), k.float()
        q = (wide_q * cos + rotate_half(wide_q) * sin).to(x.dtype).transpose(1, 2)
        k = (wide_k * cos + rotate_half(wide_k) * sin).to(x.dtype).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v.transpose(1, 2))
        joined: Tensor = self.proj(out.transpose(1, 2).reshape(b, n, c))
        return joined


class VisionMlp(nn.Module):
    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(a.vision_hidden, a.vision_width)
        self.linear_fc2 = nn.Linear(a.vision_width, a.vision_hidden)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear_fc2(F.gelu(self.linear_fc1(x), approximate="tanh"))
        return out


class VisionBlock(nn.Module):
    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(a.vision_hidden, eps=1e-6)
        self.norm2 = nn.LayerNorm(a.vision_hidden, eps=1e-6)
        self.attn = VisionAttention(a)
        self.mlp = VisionMlp(a)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x), cos, sin)
        mixed: Tensor = x + self.mlp(self.norm2(x))
        return mixed


class PatchMerger(nn.Module):
    """Four patches of a cell become one text-wide vector; deepstack mergers normalise after joining them."""

    def __init__(self, a: Architecture, after_join: bool) -> None:
        super().__init__()
        self.joined = MERGE * MERGE * a.vision_hidden
        self.after_join = after_join
        self.norm = nn.LayerNorm(self.joined if after_join else a.vision_hidden, eps=1e-6)
        self.linear_fc1 = nn.Linear(self.joined, self.joined)
        self.linear_fc2 = nn.Linear(self.joined, a.hidden)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        cells = (b, n // (MERGE * MERGE), self.joined)
        x = self.norm(x.reshape(cells)) if self.after_join else self.norm(x).reshape(cells)
        out: Tensor = self.linear_fc2(F.gelu(self.linear_fc1(x)))
        return out


class PatchEmbedding(nn.Module):
    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.proj = nn.Conv3d(3, a.vision_hidden, (2, PATCH, PATCH), (2, PATCH, PATCH))

    def forward(self, patches: Tensor) -> Tensor:
        # Both frames are equal, so their weights add up and the convolution is one matrix product.
        return F.linear(patches, self.proj.weight.sum(2).flatten(1), self.proj.bias)


class VisionTower(nn.Module):
    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.taps = a.deepstack
        #: How a block is run; training puts a compiled form here.
        self.run_block = VisionBlock.forward
        self.patch_embed = PatchEmbedding(a)
        self.pos_embed = nn.Embedding(a.position_side**2, a.vision_hidden)
        self.blocks = nn.ModuleList([VisionBlock(a) for _ in range(a.vision_layers)])
        self.merger = PatchMerger(a, after_join=False)
        self.deepstack_merger_list = nn.ModuleList([PatchMerger(a, after_join=True) for _ in a.deepstack])

    def forward(self, patches: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor, list[Tensor]]:
        """(B, N, 768) -> last hidden (B, N, C), image embeddings (B, N/4, H), deepstack embeddings of that shape."""
        x = self.patch_embed(patches)
        x = x + geometry.position_taps.to(x.dtype) @ self.pos_embed.weight
        deep: list[Tensor] = []
        for index, block in enumerate(cast("Iterable[VisionBlock]", self.blocks)):
            x = self.run_block(block, x, geometry.vision_cos, geometry.vision_sin)
            if index in self.taps:
                deep.append(self.deepstack_merger_list[len(deep)](x))
        return x, self.merger(x), deep


def to_patches(images: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, 3, height, width) in 0..1 -> (B, N, 768) in merge order, scaled to -1..1."""
    b, c, height, width = images.shape
    rows, columns = height // PATCH, width // PATCH
    x = (images * 2 - 1).to(dtype)
    x = x.view(b, c, rows // MERGE, MERGE, PATCH, columns // MERGE, MERGE, PATCH)
    return x.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(b, rows * columns, PATCH_VALUES)
