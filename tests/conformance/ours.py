"""Our side of the comparison: the same conversation through our processor, model and engine."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zellige.engine.api import ImagePart, Message, Request, Sampling, TextPart
from zellige.engine.batching import with_images
from zellige.engine.checkpoint import Checkpoint, Weights
from zellige.engine.config import EngineConfig
from zellige.engine.models.qwen3_vl import load_model
from zellige.engine.processor import Processor
from zellige.engine.runner import Runner, _images_in
from zellige.engine.scheduler import Chunk, Sequence

Turn = tuple[str, list[Any]]


def request(turns: list[Turn], **sampling: Any) -> Request:
    def part(p: Any) -> TextPart | ImagePart:
        return TextPart(p) if isinstance(p, str) else ImagePart(np.asarray(p))

    messages = tuple(Message(role, tuple(map(part, parts))) for role, parts in turns)
    return Request(messages, Sampling(**sampling))


class Ours:
    """A loaded checkpoint whose logits can be seen at every position."""

    def __init__(self, folder: Path, device: str = "cpu", dtype: str = "float32") -> None:
        checkpoint = Checkpoint(folder)
        self.processor = Processor(checkpoint)
        config = EngineConfig.load(device, dtype)
        with Weights(checkpoint, config.torch_device, config.torch_dtype) as weights:
            model = load_model(weights, checkpoint.config)
        self.runner = Runner(
            model,
            self.processor.rules,
            replace(config, cache_bytes=32 << 20, gpu_memory_fraction=None, block_tokens=16),
        )

    @torch.inference_mode()
    def logits(self, turns: list[Turn], cuts: tuple[int, ...] = ()) -> torch.Tensor:
        """(tokens, vocabulary) float32 at every position of the prompt, computed in chunks that end at ``cuts``."""
        prompt = self.processor.prepare(request(turns))
        blocks = list(range(-(-len(prompt.tokens) // self.runner.config.block_tokens)))
        # Any order of blocks must do; reversed shows a kernel that reads them as one piece.
        sequence = Sequence("x", prompt, list(prompt.tokens), len(prompt.tokens), blocks=blocks[::-1])
        rows = []
        edges = [0, *cuts, len(prompt.tokens)]
        for begin, end in pairwise(edges):
            chunk = Chunk(sequence, begin, end - begin)
            images = self.runner.images.encode(_images_in([chunk]))
            batch = with_images(self.runner.batch([chunk]), [chunk], images)
            every = replace(batch, logit_rows=torch.arange(end - begin, device=self.runner.device))
            rows.append(self.runner.model.forward(every, self.runner._caches).float().cpu())
            sequence.computed = end
        return torch.cat(rows)


def relative_l2(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """‖ours − theirs‖ / ‖theirs‖ over everything; NaN where either holds one."""
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())
