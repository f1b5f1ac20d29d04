"""``transformers`` generate with the same random weights: what the engine's speed and logits are held against."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zellige.engine.api import Request
from zellige.engine.checkpoint import Checkpoint
from zellige.engine.layers.vision import cell_order
from zellige.engine.processor import Processor, Prompt
from zellige.engine.random_weights import fill

#: Requests at once.
BATCHES = (1, 16, 64)


class Peer:
    """The model in bfloat16 with SDPA. Tokenizing and preparing images is not counted for it."""

    def __init__(self, folder: Path, device: str) -> None:
        from transformers import AutoConfig, AutoModelForImageTextToText

        self.processor = Processor(Checkpoint(folder))
        self.device = torch.device(device)
        with self.device:
            config = AutoConfig.from_pretrained(folder)
            model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
        self.model = model.eval()
        for name, parameter in self.model.named_parameters():
            data = parameter.data
            if ".experts." in name:  # kept (E, out, in) here, (E, in, out) in released checkpoints
                data.copy_(fill(name, torch.empty_like(data.transpose(1, 2).contiguous())).transpose(1, 2))
            else:
                fill(name, data)

    @torch.inference_mode()
    def first_logits(self, request: Request) -> Tensor:
        """Logits behind the prompt, float32 on the host."""
        inputs = self._inputs([self.processor.prepare(request)])
        logits: Tensor = self.model(**inputs, logits_to_keep=1).logits
        return logits[:, -1].float().cpu()

    @torch.inference_mode()
    def measure(self, requests: Sequence[Request], new_tokens: int, rounds: int) -> list[tuple[Any, ...]]:
        """Fields of ``Row`` for each batch size: whole requests a second, tokens a second."""
        rows = []
        for batch in BATCHES:
            inputs = self._inputs([self.processor.prepare(r) for r in requests[:batch]])
            times: dict[int, list[float]] = {1: [], new_tokens: []}
            for _ in range(rounds + 1):
                for tokens, seen in times.items():
                    torch.cuda.synchronize()
                    begin = time.perf_counter()
                    self.model.generate(
                        **inputs, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, eos_token_id=[10**6]
                    )
                    torch.cuda.synchronize()
                    seen.append(time.perf_counter() - begin)
            first, whole = (statistics.median(seen[1:]) for seen in times.values())  # the first round warms up
            more = {
                "first_token_ms": round(first * 1e3, 1),
                "tokens_per_s": round(batch * new_tokens / whole, 1),
                "decode_tokens_per_s": round(batch * (new_tokens - 1) / (whole - first), 1),
            }
            rows.append((f"{batch} with images", "transformers", round(batch / whole, 2), "images/s", whole, more))
        return rows

    def _inputs(self, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
        """Prompts, cut to one length, with their pixels normalised and cut into patches."""
        shortest = min(len(p.tokens) for p in prompts)
        # What is cut is text behind the image, so that every image keeps its places.
        ids = torch.tensor([p.tokens[:shortest] for p in prompts], device=self.device)
        pixels, grids = [], []
        for prompt in prompts:
            for image in prompt.images:
                pixels.append(self._patches(image.pixels))
                grids.append((1, *image.grid))
        kinds = (ids == self.processor.image_token).int()
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "mm_token_type_ids": kinds,
            "pixel_values": torch.cat(pixels).to(torch.bfloat16),
            "image_grid_thw": torch.tensor(grids, device=self.device),
        }

    def _patches(self, pixels: Any) -> Tensor:
        """(N, 3 · 2 · patch²): every patch twice, as its processor gives a picture's one frame."""
        rules = self.processor.rules
        p, merge = rules.budget.patch, rules.budget.merge
        x = torch.tensor(pixels, device=self.device).float() * rules.rescale
        x = (x - torch.tensor(rules.mean, device=self.device)) / torch.tensor(rules.std, device=self.device)
        rows, columns = x.shape[0] // p, x.shape[1] // p
        cut = x.view(rows, p, columns, p, 3).permute(0, 2, 4, 1, 3).reshape(rows * columns, 3, 1, p, p)
        r, c = cell_order(rows, columns, merge)
        return cut[(r * columns + c).to(self.device)].expand(-1, -1, 2, -1, -1).reshape(rows * columns, -1)
