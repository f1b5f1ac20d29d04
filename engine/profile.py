"""How much memory a step can take: the costliest one of each kind is run once and watched, before the cache exists."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from zellige.engine.api import Sampling, VisionBudget
from zellige.engine.batching import batch_of
from zellige.engine.config import EngineConfig
from zellige.engine.images import ImageEncoder
from zellige.engine.memory import MemoryPlan
from zellige.engine.models.qwen3_vl import Qwen3VL
from zellige.engine.processor import ImageRules, Prompt, PromptImage
from zellige.engine.sampler import RowControls, StepControls
from zellige.engine.scheduler import Chunk, Sequence
from zellige.kernels.sampling import pick_tokens

#: Pieces of freed memory that fit nothing again, as a share of what a step takes; and libraries' own workspaces.
SCATTERED, WORKSPACES = 0.1, 256 << 20


@torch.inference_mode()
def plan_memory(model: Qwen3VL, encoder: ImageEncoder, rules: ImageRules, config: EngineConfig) -> MemoryPlan:
    """Run the costliest steps on random inputs and plan ``config.torch_device``'s memory by what they took."""
    if config.gpu_memory_fraction is None:
        raise ValueError("gpu_memory_fraction is not set")
    device = config.torch_device
    largest = largest_image(rules.budget, config.vision_patches)
    tokens = min(config.step_tokens, model.text.context)
    at_once = config.max_sequences
    seen = _peak(device, lambda: encoder.see([largest]))
    read = _peak(device, lambda: _forward(model, config, [tokens]))
    chosen = _peak(device, lambda: _choose(model, config))
    decoding = _peak(device, lambda: _forward(model, config, [1] * at_once))
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    row_bytes = model.text.hidden * (1 + len(model.tower.deepstack)) * config.torch_dtype.itemsize
    cell = rules.budget.cell
    one_image = max(rules.budget.max_pixels // cell**2, 1)
    return MemoryPlan(
        total=total,
        fraction=config.gpu_memory_fraction,
        in_use=total - free,
        work=int(max(seen, read, chosen) * (1 + SCATTERED)) + WORKSPACES,
        # A step's chunks hold step_tokens tokens; two more images may be cut by it at its ends.
        encoded=(tokens + 2 * one_image) * row_bytes,
        remembered_images=config.vision_cache_bytes,
        # Graphs keep their activations; each smaller one finds room in what larger ones freed.
        graphs=2 * decoding + at_once * model.text.vocab * config.torch_dtype.itemsize,
    )


def largest_image(budget: VisionBudget, most_patches: int) -> PromptImage:
    """A square image of as many patches as the tower may have to take at once."""
    cells = max(budget.max_pixels // budget.cell**2, most_patches // budget.merge**2, 1)
    side = math.isqrt(cells - 1) + 1 if cells > 1 else 1
    edge = side * budget.cell
    pixels = np.random.default_rng(0).integers(0, 256, (edge, edge, 3), dtype=np.uint8)
    patches = edge // budget.patch
    return PromptImage("largest", pixels, 0, side * side, (patches, patches))


def _forward(model: Qwen3VL, config: EngineConfig, lengths: list[int]) -> None:
    """One pass over new sequences of these lengths, each in blocks of its own; their cache is not counted."""
    P = config.block_tokens
    device, dtype = config.torch_device, config.torch_dtype
    chunks, used = [], 0
    for i, length in enumerate(lengths):
        tokens = np.random.default_rng(i).integers(0, model.text.vocab, length).tolist()
        prompt = Prompt(tokens, np.repeat(np.arange(length)[:, None], 3, axis=1), length, ())
        blocks = list(range(used, used + -(-length // P)))
        used += len(blocks)
        chunks.append(Chunk(Sequence(str(i), prompt, tokens, length, blocks=blocks), 0, length))
    caches = [torch.zeros(2, k.kv_heads, used + 1, P, k.head_dim, dtype=dtype, device=device) for k in model.keeps()]
    torch.cuda.reset_peak_memory_stats(device)
    model.forward(batch_of(chunks, block_tokens=P, spare_block=used, device=device, dtype=dtype), caches)


def _choose(model: Qwen3VL, config: EngineConfig) -> None:
    """The costliest choice of tokens: every row drawn, cut and told with its likeliest tokens."""
    device = config.torch_device
    logits = torch.randn(config.max_sequences, model.text.vocab, device=device).to(config.torch_dtype)
    row = RowControls(Sampling(temperature=1.0, top_p=0.9, logprobs=20), 0.5, {0: 1.0})
    pick_tokens(logits, StepControls([row] * config.max_sequences).on(device))


def _peak(device: torch.device, work: Callable[[], object]) -> int:
    """The most bytes that ``work`` held at once beyond what is held now; ``work`` may begin to count later."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
