"""Small random checkpoints, made and saved by transformers: the independent implementation that judges ours."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import (
    GenerationConfig,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
VOCABULARY = 256 + 3 + len(SPECIAL)

TEMPLATE = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{- message.content }}
{%- else %}
{%- for part in message.content %}
{%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- else %}{{- part.text }}{%- endif %}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


@dataclass(frozen=True)
class Shape:
    """What differs between the checkpoints; the defaults are an ordinary small one."""

    name: str
    family: str = "qwen3_vl_moe"
    seed: int = 0
    text: dict[str, Any] = field(default_factory=dict)
    vision: dict[str, Any] = field(default_factory=dict)
    tied: bool = False
    min_pixels: int = 4 * 32 * 32
    max_pixels: int = 64 * 32 * 32


SHAPES = (
    Shape("moe"),
    Shape("moe-wide-experts", seed=1, text={"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 24}),
    Shape("moe-some-dense", seed=2, text={"num_hidden_layers": 4, "mlp_only_layers": [1], "decoder_sparse_step": 2}),
    Shape(
        "moe-three-deepstack-head-72",
        seed=3,
        vision={"hidden_size": 144, "num_heads": 2, "depth": 5, "deepstack_visual_indexes": [0, 2, 3]},
        text={"num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 3},
    ),
    Shape("dense", family="qwen3_vl", seed=4),
    Shape("dense-tied-no-grouping", family="qwen3_vl", seed=5, tied=True, text={"num_key_value_heads": 4}),
    Shape(
        "dense-patch-14-bias",
        family="qwen3_vl",
        seed=6,
        vision={"patch_size": 14, "num_position_embeddings": 49},
        text={"attention_bias": True, "rope_parameters": {"rope_theta": 5e6, "mrope_section": [8, 4, 4]}},
        min_pixels=4 * 28 * 28,
        max_pixels=64 * 28 * 28,
    ),
)


def tokenizer() -> Tokenizer:
    """Bytes, three merges (so that merging happens at all), and the special tokens of the Qwen-VL family."""
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {c: i for i, c in enumerate(characters)}
    for merge in ("th", "the", "in"):
        vocabulary[merge] = len(vocabulary)
    t = Tokenizer(models.BPE(vocab=vocabulary, merges=[("t", "h"), ("th", "e"), ("i", "n")]))
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    return t


def make(folder: Path, shape: Shape) -> Any:
    """Save a checkpoint of ``shape`` into ``folder``; returns the transformers model, float32, in evaluation mode."""
    t = tokenizer()
    ids = {s: t.token_to_id(s) for s in SPECIAL}
    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 2048,
        "rope_parameters": {"rope_theta": 1e4, "mrope_section": [6, 5, 5], "mrope_interleaved": True},
        "pad_token_id": None,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
    }
    if shape.family == "qwen3_vl_moe":
        text |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "decoder_sparse_step": 1}
    text |= shape.text
    vision = {
        "depth": 3,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "patch_size": 16,
        "num_position_embeddings": 64,
        "out_hidden_size": text["hidden_size"],
        "deepstack_visual_indexes": [1],
        **shape.vision,
    }
    moe = shape.family == "qwen3_vl_moe"
    config = (Qwen3VLMoeConfig if moe else Qwen3VLConfig)(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=shape.tied,
    )
    torch.manual_seed(shape.seed)
    model = (Qwen3VLMoeForConditionalGeneration if moe else Qwen3VLForConditionalGeneration)(config)
    with torch.no_grad():
        # The library's own start (0.02) gives logits so flat that a wrong layer hardly shows.
        for name, p in model.named_parameters():
            if p.ndim > 1:
                # A large tied embedding would make every token its own successor.
                wide = 0.05 if shape.tied else 0.7
                p.normal_(std=wide if "embed" in name else 0.7 * p.shape[-1] ** -0.5)
            elif "norm" in name and name.endswith("weight"):
                p.uniform_(0.5, 1.5)
            else:
                p.normal_(std=0.1)
    model.tie_weights()
    model.eval()
    model.generation_config = GenerationConfig(eos_token_id=[ids["<|im_end|>"], ids["<|endoftext|>"]], do_sample=False)
    model.save_pretrained(folder)
    t.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>"})
    _write(
        folder / "preprocessor_config.json",
        {
            "image_processor_type": "Qwen2VLImageProcessorPil",
            "size": {"shortest_edge": shape.min_pixels, "longest_edge": shape.max_pixels},
            "patch_size": vision["patch_size"],
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": [0.5, 0.45, 0.4],
            "image_std": [0.25, 0.5, 0.3],
        },
    )
    return model


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value))
