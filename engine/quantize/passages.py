"""A model fed with whole conversations, question and answer, so that what passes through its layers can be seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from zellige.engine.api import ask
from zellige.engine.checkpoint import Checkpoint, Weights
from zellige.engine.config import EngineConfig
from zellige.engine.demo.suites import Case
from zellige.engine.layers.vision import cell_order
from zellige.engine.models.batch import ForwardBatch
from zellige.engine.models.qwen3_vl import load_model
from zellige.engine.processor import Processor, Prompt, PromptImage
from zellige.kernels.paged_attention import PagedLayout

_BLOCK = 16


@dataclass(frozen=True, eq=False)
class Passage:
    """One case as tokens: the prompt's, then the right answer's and the token that ends it."""

    prompt: Prompt
    tokens: list[int]

    @property
    def answer(self) -> Tensor:
        """The tokens that a model has to say, (n,)."""
        return torch.tensor(self.tokens[len(self.prompt.tokens) :])


@dataclass(frozen=True, eq=False)
class Step:
    """A passage as a model takes it in one step, and memory for the keys and values of one layer."""

    batch: ForwardBatch
    cache: Tensor


class Opened:
    """A checkpoint with its model on a device, for computing whole passages; it answers nobody."""

    def __init__(self, folder: Path, device: str | None, dtype: str | None) -> None:
        self.checkpoint = Checkpoint(folder)
        self.processor = Processor(self.checkpoint)
        self.config = EngineConfig.load(device, dtype)
        self.device = self.config.torch_device
        with Weights(self.checkpoint, self.device, self.config.torch_dtype) as weights:
            self.model = load_model(weights, self.checkpoint.config)

    def passages(self, cases: Sequence[Case]) -> list[Passage]:
        end = _end_token(self.checkpoint)
        found = []
        for case in cases:
            prompt = self.processor.prepare(ask(case.question, case.pixels))
            answer = self.processor.tokenizer.encode(case.answer, add_special_tokens=False).ids
            found.append(Passage(prompt, [*prompt.tokens, *answer, end]))
        return found

    @torch.inference_mode()
    def logits(self, step: Step) -> Tensor:
        """Logits (n, V) float32 of the places after which the answer's tokens have to be said."""
        return self.model.forward(step.batch, [step.cache] * len(self.model.layers)).float()

    @torch.inference_mode()
    def step(self, passage: Passage) -> Step:
        prompt, T, asked = passage.prompt, len(passage.tokens), len(passage.prompt.tokens)
        text = self.model.text
        answered = (torch.arange(T - asked) + prompt.next).unsqueeze(1).expand(-1, 3)
        blocks = -(-T // _BLOCK)
        layers = [self.model.see(self._patches(i), [i.grid]) for i in prompt.images]
        rows = [torch.arange(i.start, i.start + i.tokens) for i in prompt.images]
        batch = ForwardBatch(
            tokens=torch.tensor(passage.tokens, device=self.device),
            positions=torch.cat([torch.from_numpy(prompt.positions), answered]).to(self.device),
            layout=PagedLayout(
                starts=(0, T),
                lengths=(T,),
                tables=torch.arange(blocks, device=self.device).unsqueeze(0),
                slots=torch.arange(T, device=self.device),
                single=0,
                single_mask=None,
            ),
            logit_rows=torch.arange(asked - 1, T - 1, device=self.device),
            image_rows=torch.cat(rows).to(self.device) if rows else None,
            image_layers=[torch.cat(parts) for parts in zip(*layers, strict=True)],
        )
        dtype = self.config.torch_dtype
        cache = torch.zeros(2, text.kv_heads, blocks, _BLOCK, text.head_dim, dtype=dtype, device=self.device)
        return Step(batch, cache)

    def _patches(self, image: PromptImage) -> Tensor:
        """Normalised patches (N, 3·patch²) in cell order."""
        rules, (rows, columns) = self.processor.rules, image.grid
        patch = rules.budget.patch
        x = torch.from_numpy(image.pixels.copy()).float() * rules.rescale
        x = (x - torch.tensor(rules.mean)) / torch.tensor(rules.std)
        r, c = cell_order(rows, columns, rules.budget.merge)
        by_patch = x.view(rows, patch, columns, patch, 3).permute(0, 2, 4, 1, 3).reshape(rows * columns, -1)
        return by_patch.index_select(0, r * columns + c).to(self.device)


def _end_token(checkpoint: Checkpoint) -> int:
    """The token that ends an answer."""
    own = checkpoint.json("generation_config.json", required=False).get("eos_token_id")
    own = own if own is not None else checkpoint.config.get("text_config", {}).get("eos_token_id", 0)
    return int(own[0] if isinstance(own, list) else own)
