"""The vision tower that the Qwen3-VL families share: patches in, one embedding a merged cell out, with deepstack.

N patches of one or more images, in cell order (the merge × merge patches of a cell stand together); C channels of the
tower; M = merge²; H hidden size of the decoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from zellige.engine.checkpoint import Weights
from zellige.engine.layers.norms import LayerNorm, Linear
from zellige.engine.layers.rotary import AxialRope
from zellige.engine.layers.watch import Watch, unwatched
from zellige.kernels.gelu_tanh import gelu_tanh
from zellige.kernels.vision_attention import vision_attention
from zellige.kernels.vision_qkv_rope import vision_qkv_rope

#: Rows that pass a block's feed-forward half at once on a CPU.
CPU_ROWS = 256


@dataclass(frozen=True)
class VisionConfig:
    """Sizes of a tower, as config.json names them."""

    depth: int
    hidden: int
    inner: int
    heads: int
    patch: int
    temporal_patch: int
    merge: int
    out_hidden: int
    positions: int
    deepstack: tuple[int, ...]
    theta: float


@dataclass(frozen=True, eq=False)
class Block:
    """x + attention(norm(x)), then x + mlp(norm(x)); the activation is tanh-approximated GELU."""

    norm1: LayerNorm
    norm2: LayerNorm
    qkv: Linear
    proj: Linear
    fc1: Linear
    fc2: Linear
    heads: int

    @classmethod
    def load(cls, w: Weights, name: str, c: VisionConfig) -> Block:
        return cls(
            norm1=LayerNorm.load(w, f"{name}.norm1", c.hidden),
            norm2=LayerNorm.load(w, f"{name}.norm2", c.hidden),
            qkv=Linear.load(w, f"{name}.attn.qkv", 3 * c.hidden, c.hidden, bias=True),
            proj=Linear.load(w, f"{name}.attn.proj", c.hidden, c.hidden, bias=True),
            fc1=Linear.load(w, f"{name}.mlp.linear_fc1", c.inner, c.hidden, bias=True),
            fc2=Linear.load(w, f"{name}.mlp.linear_fc2", c.hidden, c.inner, bias=True),
            heads=c.heads,
        )

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, bounds: Sequence[int]) -> Tensor:
        q, k, v = vision_qkv_rope(self.qkv(self.norm1(x)), cos, sin, self.heads)
        x = x + self.proj(vision_attention(q, k, v, bounds, 2 * cos.shape[1]))
        # On a CPU in pieces: the wide middle (rows, inner) stays in the cache between its two products.
        pieces = x.split(len(x) if x.is_cuda else CPU_ROWS)
        return x + torch.cat([self.fc2(gelu_tanh(self.fc1(self.norm2(piece)))) for piece in pieces])


@dataclass(frozen=True, eq=False)
class Merger:
    """Joins the M patches of a cell (N, C) to one row of the decoder (N/M, H); deepstack's norm comes after joining."""

    norm: LayerNorm
    fc1: Linear
    fc2: Linear
    norm_after: bool

    @classmethod
    def load(cls, w: Weights, name: str, c: VisionConfig, *, norm_after: bool) -> Merger:
        joined = c.hidden * c.merge**2
        return cls(
            norm=LayerNorm.load(w, f"{name}.norm", joined if norm_after else c.hidden),
            fc1=Linear.load(w, f"{name}.linear_fc1", joined, joined, bias=True),
            fc2=Linear.load(w, f"{name}.linear_fc2", c.out_hidden, joined, bias=True),
            norm_after=norm_after,
        )

    def __call__(self, x: Tensor) -> Tensor:
        joined = self.fc1.weight.shape[1]
        x = self.norm(x.view(-1, joined)) if self.norm_after else self.norm(x).view(-1, joined)
        return self.fc2(F.gelu(self.fc1(x)))


@dataclass(frozen=True, eq=False)
class Grid:
    """What depends on an image's size alone: (rows, columns) of patches, angles, and how positions are interpolated."""

    cos: Tensor
    sin: Tensor
    taps: Tensor
    shares: Tensor


class VisionTower:
    """patches → embeddings (N/M, H) and one such tensor for each deepstack layer."""

    def __init__(self, w: Weights, name: str, config: VisionConfig) -> None:
        c = self.config = config
        # An image is a frame seen twice, so the temporal slices of the kernel are added once and for all.
        kernel = w.take(f"{name}.patch_embed.proj.weight", c.hidden, 3, c.temporal_patch, c.patch, c.patch)
        self.patch_weight = kernel.float().sum(2).to(kernel.dtype).flatten(1)
        self.patch_bias = w.take(f"{name}.patch_embed.proj.bias", c.hidden)
        self.positions = w.take(f"{name}.pos_embed.weight", c.positions, c.hidden)
        self.blocks = [Block.load(w, f"{name}.blocks.{i}", c) for i in range(c.depth)]
        self.merger = Merger.load(w, f"{name}.merger", c, norm_after=False)
        self.deepstack = {
            layer: Merger.load(w, f"{name}.deepstack_merger_list.{i}", c, norm_after=True)
            for i, layer in enumerate(c.deepstack)
        }
        self._rope = AxialRope(c.hidden // c.heads, c.theta, w.device)
        self._grid = lru_cache(maxsize=256)(self._make_grid)

    def __call__(
        self, patches: Tensor, sizes: Sequence[tuple[int, int]], watch: Watch = unwatched
    ) -> tuple[Tensor, list[Tensor]]:
        """``patches`` (N, 3·patch²) normalised, of images whose (rows, columns) of patches are ``sizes``."""
        x, cos, sin, bounds = self.placed(patches, sizes)
        x = watch("patch embedding", x)
        seen = []
        for i, block in enumerate(self.blocks):
            x = watch(f"vision block {i}", block(x, cos, sin, bounds))
            if i in self.deepstack:
                seen.append(watch(f"deepstack of block {i}", self.deepstack[i](x)))
        return watch("vision merger", self.merger(x)), seen

    def placed(
        self, patches: Tensor, sizes: Sequence[tuple[int, int]]
    ) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...]]:
        """What the first block gets: (N, C) with positions added, cosines, sines, and where each image begins."""
        grids = [self._grid(rows, columns) for rows, columns in sizes]
        bounds = (0, *accumulate(rows * columns for rows, columns in sizes))
        cos, sin = torch.cat([g.cos for g in grids]), torch.cat([g.sin for g in grids])
        taps, shares = torch.cat([g.taps for g in grids]), torch.cat([g.shares for g in grids])
        x = F.linear(patches.to(self.patch_weight.dtype), self.patch_weight, self.patch_bias)
        return x + (self.positions[taps] * shares.unsqueeze(-1)).sum(1).to(x.dtype), cos, sin, bounds

    def _make_grid(self, rows: int, columns: int) -> Grid:
        device = self.positions.device
        r, c = cell_order(rows, columns, self.config.merge)
        side = int(self.config.positions**0.5)
        (r_taps, r_shares), (c_taps, c_shares) = _between(r, rows, side), _between(c, columns, side)
        taps = (r_taps[:, :, None] * side + c_taps[:, None, :]).flatten(1)
        shares = (r_shares[:, :, None] * c_shares[:, None, :]).flatten(1)
        cos, sin = self._rope(r.to(device), c.to(device))
        return Grid(cos, sin, taps.to(device), shares.to(device))


def cell_order(rows: int, columns: int, merge: int) -> tuple[Tensor, Tensor]:
    """Row and column of each patch, (rows·columns,) each, in the order in which the tower takes them."""
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")

    def by_cell(x: Tensor) -> Tensor:
        return x.view(rows // merge, merge, columns // merge, merge).transpose(1, 2).flatten()

    return by_cell(row), by_cell(column)


def _between(place: Tensor, count: int, side: int) -> tuple[Tensor, Tensor]:
    """The two learned places that ``place`` of ``count`` falls between when both ends are aligned, and their shares."""
    at = place.float() * (side - 1) / max(count - 1, 1)
    low = at.floor()
    taps = torch.stack((low, low + 1), dim=1).long().clamp(0, side - 1)
    return taps, torch.stack((1 - (at - low), at - low), dim=1)
