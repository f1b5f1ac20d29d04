"""Whole checkpoints that others quantised, and ours that others read, against transformers with the same weights."""

from __future__ import annotations

import copy
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForImageTextToText, CompressedTensorsConfig

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "conformance"))

from checkpoints import Shape, make
from others import Made, awq, compressed, gptq
from ours import Ours, relative_l2
from reference import Reference

from zellige.engine.quantize.plan import make_plan
from zellige.engine.quantize.run import quantize

TURNS: list[tuple[str, list[Any]]] = [
    ("user", [np.random.default_rng(3).integers(0, 255, (96, 128, 3), dtype=np.uint8), "the thing in it"]),
    ("assistant", ["tin"]),
    ("user", ["and?"]),
]
INTS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}


def compressed_config(**weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    ignore = ["lm_head", "re:.*visual.*", r"re:.*mlp\.gate$"]
    how = {"format": "pack-quantized", "quantization_status": "compressed", "config_groups": groups}
    return {"quant_method": "compressed-tensors", "ignore": ignore, **how}


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": False}
WRITERS: dict[str, tuple[dict[str, Any], Callable[[Tensor], Made]]] = {
    "compressed-tensors": (compressed_config(**INTS, symmetric=True), lambda w: compressed(w, **INTS, symmetric=True)),
    "with zero points": (compressed_config(**INTS, symmetric=False), lambda w: compressed(w, **INTS, symmetric=False)),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
        lambda w: awq(w, 32),
    ),
    "gptq": (GPTQ, lambda w: gptq(w, 32)),
    "gptq in order of activity": (GPTQ | {"desc_act": True}, lambda w: gptq(w, 32, act_order=True)),
}


@pytest.fixture(scope="module", params=["dense", "mixture"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp(request.param)
    small: dict[str, Any] = {"num_hidden_layers": 2}
    if request.param == "mixture":
        return folder, make(folder, Shape("m", text=small | {"moe_intermediate_size": 32, "num_experts": 4}))
    return folder, make(folder, Shape("d", family="qwen3_vl", seed=4, text=small))


def matrices(tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor, Callable[[Tensor], None]]]:
    """Name, weight (N, K), and how to put another in its place, of what quantisers of this family quantise."""
    for name, tensor in list(tensors.items()):
        if ".layers." not in name:
            continue
        if name.endswith("_proj.weight"):
            yield name.removesuffix(".weight"), tensor, tensor.copy_
        elif name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            base = name.rpartition(".")[0]
            for e, whole in enumerate(tensor):
                # Newer savers write (outputs, inputs); gate rows come first.
                parts = {"down": whole} if "down" in name else dict(zip(("gate", "up"), whole.chunk(2), strict=True))
                for part, w in parts.items():
                    yield f"{base}.{e}.{part}_proj", w, w.copy_


@pytest.mark.parametrize("writer", WRITERS)
def test_a_checkpoint_of_another_program_gives_the_logits_of_its_weights(
    source: tuple[Path, Any], tmp_path: Path, writer: str
) -> None:
    folder, model = source
    quantization, make_one = WRITERS[writer]
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    assert tensors.get(f"{LAYER}.mlp.experts.down_proj", torch.empty(4, 64, 32)).shape == (4, 64, 32)
    stored: dict[str, Tensor] = {}
    torch.manual_seed(0)
    for name, w, put in matrices(tensors):
        parts, dense = make_one(w.clone())
        stored |= {f"{name}.{suffix}": part.contiguous() for suffix, part in parts.items()}
        put(dense)
    judge = copy.deepcopy(model)
    judge.load_state_dict({k: v for k, v in tensors.items() if k in judge.state_dict()}, strict=False)
    done = {n for n in tensors if n.removesuffix(".weight") + ".qweight" in stored}
    done |= {n for n in tensors if n.removesuffix(".weight") + ".weight_packed" in stored}
    rest = {n: t for n, t in tensors.items() if n not in done and not n.endswith(("gate_up_proj", "experts.down_proj"))}
    save_file(rest | stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text()) | {"quantization_config": quantization}
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = Reference(folder, judge).logits(TURNS)
    assert relative_l2(theirs, Reference(folder, model).logits(TURNS)) > 1e-2
    assert relative_l2(Ours(tmp_path).logits(TURNS), theirs) <= 1e-5


LAYER = "model.language_model.layers.0"


@pytest.mark.parametrize("bits", [4, 3])
def test_what_we_write_is_read_by_transformers_with_compressed_tensors(tmp_path: Path, bits: int) -> None:
    folder = tmp_path / "source"
    make(folder, Shape("d", family="qwen3_vl", seed=4, text={"num_hidden_layers": 2}))
    plan = make_plan(bits, None, [], [], None, 0.0)
    to = tmp_path / "q"
    quantize(folder, to, plan, samples=2, device=None, dtype=None, tell=lambda _: None)
    read = CompressedTensorsConfig(dequantize=True)
    model = AutoModelForImageTextToText.from_pretrained(to, quantization_config=read, dtype=torch.float32).eval()
    theirs = Reference(folder, model).logits(TURNS)
    assert relative_l2(Ours(to).logits(TURNS), theirs) <= 1e-5
