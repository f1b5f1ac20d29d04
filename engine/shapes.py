"""Models of a published size without their weights, by name: what ``bench engine --shape`` builds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from zellige.engine.connect import DEMO_MODEL

#: Qwen3-VL-30B-A3B as its config.json has it.
_QWEN3_VL_30B_A3B: dict[str, Any] = {
    "architectures": ["Qwen3VLMoeForConditionalGeneration"],
    "model_type": "qwen3_vl_moe",
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_vl_moe_text",
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_position_embeddings": 262144,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [24, 20, 20],
            "rope_theta": 5000000.0,
            "rope_type": "default",
        },
        "vocab_size": 151936,
    },
    "vision_config": {
        "model_type": "qwen3_vl_moe",
        "deepstack_visual_indexes": [8, 16, 24],
        "depth": 27,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 1152,
        "in_channels": 3,
        "intermediate_size": 4304,
        "num_heads": 16,
        "num_position_embeddings": 2304,
        "out_hidden_size": 2048,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}

SHAPES = {"qwen3-vl-30b-a3b": _QWEN3_VL_30B_A3B}
_TOKEN_IDS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")


def write_shape(name: str, folder: Path) -> Path:
    """A checkpoint folder of that shape with no tensor in it; tokenizer and template are those of the shipped one.

    Raises ValueError that names the shapes there are.
    """
    if name not in SHAPES:
        raise ValueError(f"shape {name!r} is not one of {', '.join(SHAPES)}")
    folder.mkdir(parents=True)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(DEMO_MODEL / file, folder / file)
    shipped = json.loads((DEMO_MODEL / "config.json").read_text())
    config = SHAPES[name] | {key: shipped[key] for key in _TOKEN_IDS}
    rules = json.loads((DEMO_MODEL / "preprocessor_config.json").read_text())
    rules["size"] = {"shortest_edge": 65536, "longest_edge": 16777216}
    for file, value in (("config.json", config), ("preprocessor_config.json", rules)):
        (folder / file).write_text(json.dumps(value, indent=2))
    save_file({"none": torch.zeros(1)}, folder / "model.safetensors")
    return folder
