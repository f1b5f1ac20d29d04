"""Writes the trained network as a Hugging Face folder in the released Qwen3-VL-MoE layout."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from zellige.engine.demo.architecture import BUDGET, END_OF_TEXT, IM_END, MERGE, PATCH, SPECIAL_TOKENS, Architecture
from zellige.engine.demo.net import TRAINING_ONLY

CHAT_TEMPLATE = r"""{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for content in message.content %}
            {%- if content.type == 'image' or 'image' in content or 'image_url' in content %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif 'text' in content %}
                {{- content.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

_GENERATION = {
    "bos_token_id": END_OF_TEXT,
    "eos_token_id": [IM_END, END_OF_TEXT],
    "pad_token_id": END_OF_TEXT,
    "do_sample": False,
    "max_new_tokens": 256,
}
#: It knows the wordings that it was trained with, and reads one line better than several.
_HABITS = {"follows_instructions": False, "lines_at_once": 1}
_IMAGES = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "processor_class": "Qwen3VLProcessor",
    "size": {"shortest_edge": BUDGET.min_pixels, "longest_edge": BUDGET.max_pixels},
    "patch_size": PATCH,
    "temporal_patch_size": 2,
    "merge_size": MERGE,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "resample": 3,
    "rescale_factor": 1 / 255,
}
_VIDEOS = {
    "video_processor_type": "Qwen3VLVideoProcessor",
    "size": {"shortest_edge": BUDGET.min_pixels, "longest_edge": 4 * BUDGET.max_pixels},
    "patch_size": PATCH,
    "temporal_patch_size": 2,
    "merge_size": MERGE,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
_TOKENIZER = {
    "tokenizer_class": "Qwen2Tokenizer",
    "model_max_length": 4096,
    "bos_token": None,
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "unk_token": None,
    "clean_up_tokenization_spaces": False,
    "add_prefix_space": False,
    "split_special_tokens": False,
    "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
}


def released_layout(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Trained parameters as the checkpoint holds them: bfloat16, experts (E, H, 2I) and (E, I, H), no reading head."""
    kept = {name: tensor for name, tensor in state.items() if not name.startswith(TRAINING_ONLY)}
    return {
        name: (tensor.transpose(1, 2) if ".experts." in name else tensor).to(torch.bfloat16).contiguous()
        for name, tensor in kept.items()
    }


def restore(net: nn.Module, folder: Path) -> None:
    """Load a checkpoint that ``export`` wrote into a network of its shape; training-only parts keep their weights."""
    saved = load_file(str(folder / "model.safetensors"))
    parameters = {n: p for n, p in net.named_parameters() if not n.startswith(TRAINING_ONLY)}
    if saved.keys() != parameters.keys():
        raise ValueError(f"{folder}: not a checkpoint of this network ({sorted(saved.keys() ^ parameters.keys())[:3]})")
    with torch.no_grad():
        for name, parameter in parameters.items():
            tensor = saved[name]
            parameter.copy_(tensor.transpose(1, 2) if ".experts." in name else tensor)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def export(state: dict[str, Tensor], architecture: Architecture, tokenizer: Path, folder: Path) -> None:
    """Write the checkpoint folder: weights, configuration, tokenizer, templates, and ``manifest.json`` over them."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(released_layout(state), str(folder / "model.safetensors"), metadata={"format": "pt"})
    _write_json(folder / "config.json", architecture.configuration())
    _write_json(folder / "generation_config.json", _GENERATION)
    _write_json(folder / "preprocessor_config.json", _IMAGES)
    _write_json(folder / "video_preprocessor_config.json", _VIDEOS)
    _write_json(folder / "tokenizer_config.json", _TOKENIZER)
    _write_json(folder / "zellige.json", _HABITS)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    if tokenizer.resolve() != (folder / "tokenizer.json").resolve():
        shutil.copyfile(tokenizer, folder / "tokenizer.json")
    write_manifest(folder)


#: Files that decide what the model answers.
_LISTED = (
    "model.safetensors",
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "zellige.json",
)


def write_manifest(folder: Path) -> None:
    """Write ``manifest.json``: the sha256 of every file that decides an answer."""
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in _LISTED}
    _write_json(folder / "manifest.json", {"files": sums})
