"""The judge: what transformers makes of the same folder, messages and pixels. Nothing in this file is ours."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoTokenizer, Qwen3VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

Turn = tuple[str, list[Any]]


class Reference:
    """A transformers model with its own tokenizer, chat template and image processor."""

    def __init__(self, folder: Path, model: Any) -> None:
        self.model = model
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.images = Qwen2VLImageProcessorPil.from_pretrained(folder)
        self.image_id = model.config.image_token_id

    def inputs(self, turns: list[Turn]) -> dict[str, torch.Tensor]:
        """Model inputs of a conversation; a turn is a role and a list of texts and pixel arrays."""
        messages = []
        for role, parts in turns:
            if all(isinstance(p, str) for p in parts):
                content: Any = "".join(parts)
            else:
                content = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image"} for p in parts]
            messages.append({"role": role, "content": content})
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        arrays = [p for _, parts in turns for p in parts if not isinstance(p, str)]
        vision: dict[str, torch.Tensor] = {}
        if arrays:
            vision = dict(self.images(images=[Image.fromarray(np.asarray(a)) for a in arrays], return_tensors="pt"))
            # The class itself needs a video processor, which needs torchvision; its image rule does not.
            rule = SimpleNamespace(image_processor=self.images, image_token="<|image_pad|>")
            pieces = text.split("<|image_pad|>")
            text = pieces[0]
            for i, piece in enumerate(pieces[1:]):
                text += Qwen3VLProcessor.replace_image_token(rule, vision, i) + piece
        ids = self.tokenizer([text], return_tensors="pt")["input_ids"]
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "mm_token_type_ids": (ids == self.image_id).int(),
            **vision,
        }

    @torch.inference_mode()
    def logits(self, turns: list[Turn]) -> torch.Tensor:
        """(tokens, vocabulary) float32, at every position of the prompt."""
        inputs = {
            k: v.to(self.model.device, self.model.dtype if v.is_floating_point() else None)
            for k, v in self.inputs(turns).items()
        }
        return self.model(**inputs).logits[0].float()

    @torch.inference_mode()
    def greedy(self, turns: list[Turn], tokens: int) -> list[int]:
        """Exactly ``tokens`` greedy tokens: no token ends the answer."""
        inputs = self.inputs(turns)
        out = self.model.generate(**inputs, max_new_tokens=tokens, do_sample=False, eos_token_id=[10**6])
        return out[0, inputs["input_ids"].shape[1] :].tolist()
