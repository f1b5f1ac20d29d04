"""The exported folder is the trained network: an independent implementation loads it and gives the same logits."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import Qwen3VLMoeForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from zellige.engine.connect import DEMO_MODEL
from zellige.engine.demo.architecture import IMAGE_PAD, Architecture
from zellige.engine.demo.export import export
from zellige.engine.demo.geometry import make_geometry
from zellige.engine.demo.grids import grid_of
from zellige.engine.demo.net import DemoNet
from zellige.engine.demo.packing import PREFIX, prefix_tokens, question_tokens
from zellige.engine.demo.vision import to_patches

TOKENIZER = DEMO_MODEL / "tokenizer.json"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[DemoNet, Path]:
    folder = tmp_path_factory.mktemp("checkpoint")
    architecture = Architecture(layers=2, vision_layers=4, expert_width=64, vision_width=256)
    net = DemoNet(architecture, seed=3)
    # The folder holds bfloat16; the network must hold the same values to be compared.
    state = {name: value.to(torch.bfloat16) for name, value in net.state_dict().items()}
    net.load_state_dict({name: value.float() for name, value in state.items()})
    export(state, architecture, TOKENIZER, folder)
    return net.eval(), folder


@pytest.mark.parametrize(("width", "height"), [(96, 128), (200, 150), (640, 480)])
def test_logits_equal_those_of_transformers(exported: tuple[DemoNet, Path], width: int, height: int) -> None:
    net, folder = exported
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8)
    asked = question_tokens(tokenizer, "What is the total?")
    grid = grid_of(width, height)

    theirs = Qwen3VLMoeForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    image = Qwen2VLImageProcessorPil.from_pretrained(folder)(images=[Image.fromarray(pixels)], return_tensors="pt")
    assert image["image_grid_thw"].tolist() == [[1, grid.rows * 2, grid.columns * 2]]
    ids = torch.tensor([prefix_tokens(tokenizer) + [IMAGE_PAD] * grid.cells + asked])
    with torch.no_grad():
        wanted = theirs(input_ids=ids, mm_token_type_ids=(ids == IMAGE_PAD).long(), **image).logits[0, -len(asked) :]

    seen = np.array(Image.fromarray(pixels).resize((grid.width, grid.height), Image.Resampling.BICUBIC))
    patches = to_patches(torch.from_numpy(seen)[None].permute(0, 3, 1, 2).float() / 255, torch.float32)
    geometry = make_geometry(net.architecture, grid, (len(asked),), torch.device("cpu"), torch.float32)
    with torch.no_grad():
        _, embeddings, deep = net.see(patches, geometry)
        prefix = torch.tensor(prefix_tokens(tokenizer))
        given, _ = net.say(embeddings, deep, prefix, torch.tensor([asked]), geometry)

    assert float((given[0] - wanted).norm() / wanted.norm()) < 1e-4


def test_experts_are_stored_in_the_released_layout(exported: tuple[DemoNet, Path]) -> None:
    net, folder = exported
    a = net.architecture
    with safe_open(folder / "model.safetensors", "pt") as weights:
        names = set(weights.keys())
        experts = "model.language_model.layers.0.mlp.experts"
        gate_up = weights.get_slice(f"{experts}.gate_up_proj").get_shape()
        down = weights.get_slice(f"{experts}.down_proj").get_shape()
    assert gate_up == [a.experts, a.hidden, 2 * a.expert_width]
    assert down == [a.experts, a.expert_width, a.hidden]
    assert not any("reading" in name for name in names)
    config = json.loads((folder / "config.json").read_text())["text_config"]
    assert config["num_experts"] == config["num_local_experts"] == a.experts


def test_every_parameter_finds_its_place_in_transformers(exported: tuple[DemoNet, Path]) -> None:
    _, folder = exported
    _, report = Qwen3VLMoeForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))


def test_the_manifest_holds_the_sums_of_the_files(exported: tuple[DemoNet, Path]) -> None:
    _, folder = exported
    listed = json.loads((folder / "manifest.json").read_text())["files"]
    assert {"model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"} <= set(listed)
    for name, digest in listed.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest


def test_the_template_writes_what_training_packs(exported: tuple[DemoNet, Path]) -> None:
    from transformers import AutoTokenizer

    _, folder = exported
    tokenizer = AutoTokenizer.from_pretrained(folder)
    content = [{"type": "image"}, {"type": "text", "text": "Read the text."}]
    written = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    plain = Tokenizer.from_file(str(TOKENIZER))
    ids = plain.encode(written, add_special_tokens=False).ids
    assert ids == [*prefix_tokens(plain), IMAGE_PAD, *question_tokens(plain, "Read the text.")]
    assert written.startswith(PREFIX)
