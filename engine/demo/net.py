"""The model as it is trained: Qwen3-VL-MoE for batches of images of one grid, and a head that reads characters.

Parameters bear the names of the checkpoint; the ``reading`` parameters are dropped at export.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zellige.data.samples.ink import MARK_KINDS
from zellige.engine.demo.architecture import VOCABULARY, Architecture
from zellige.engine.demo.decoder import Decoder
from zellige.engine.demo.geometry import Geometry
from zellige.engine.demo.vision import VisionTower

#: Characters that the reading head names in each patch, left to right.
CHARACTERS_A_PATCH = 4
#: Prefix of the parameters that training alone needs.
TRAINING_ONLY = "reading"


class _Inner(nn.Module):
    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.visual = VisionTower(a)
        self.language_model = Decoder(a, VOCABULARY)


class ReadingHead(nn.Module):
    """What characters are centred in a patch: logits (..., 4, 96), kind 0 for none."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(a.vision_hidden, eps=1e-6)
        self.head = nn.Linear(a.vision_hidden, CHARACTERS_A_PATCH * MARK_KINDS)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(x)).unflatten(-1, (CHARACTERS_A_PATCH, MARK_KINDS))
        return logits


class DemoNet(nn.Module):
    def __init__(self, architecture: Architecture | None = None, seed: int = 1) -> None:
        super().__init__()
        self.architecture = architecture or Architecture()
        self.model = _Inner(self.architecture)
        self.lm_head = nn.Linear(self.architecture.hidden, VOCABULARY, bias=False)
        self.reading = ReadingHead(self.architecture)
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            _initialise(name, parameter, generator)

    def see(self, patches: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor, list[Tensor]]:
        """(B, N, 768) -> last vision states, image embeddings, deepstack embeddings."""
        hidden, image, deep = self.model.visual(patches, geometry)
        return hidden, image, deep

    def say(
        self, image: Tensor, deep: list[Tensor], prefix: Tensor, ids: Tensor, geometry: Geometry
    ) -> tuple[Tensor, Tensor]:
        """Logits (B, S, vocabulary) at every slot position, and the balance loss of the routers."""
        hidden, balance = self.model.language_model(image, deep, prefix, ids, geometry)
        return self.lm_head(hidden), balance


@torch.no_grad()
def _initialise(name: str, parameter: nn.Parameter, generator: torch.Generator) -> None:
    """Fan-in scaled normals, halved where a branch joins the residual stream."""
    if name.endswith("bias"):
        parameter.zero_()
    elif "norm" in name:
        parameter.fill_(1.0)
    elif "embed_tokens" in name:
        parameter.normal_(std=0.5, generator=generator)
    elif "pos_embed" in name:
        parameter.normal_(std=0.1, generator=generator)
    elif "patch_embed" in name:
        parameter.normal_(std=(1 / (2 * 768)) ** 0.5, generator=generator)
    elif "lm_head" in name or "reading" in name or "gate.weight" in name:
        parameter.normal_(std=0.02, generator=generator)
    else:
        joins = name.endswith(("o_proj.weight", "attn.proj.weight", "linear_fc2.weight", "down_proj"))
        parameter.normal_(std=parameter.shape[-1] ** -0.5 * (0.5 if joins else 1.0), generator=generator)
