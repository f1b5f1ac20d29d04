"""A whole checkpoint quantised: what is written, that it is read as it was meant, and what its rules choose."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parents[2] / "conformance"))

from checkpoints import SHAPES, make

from zellige.engine.api import EngineError
from zellige.engine.checkpoint import Checkpoint, CheckpointError, Weights
from zellige.engine.models.qwen3_vl import Qwen3VL, load_model
from zellige.engine.quantize import folder as folder_module
from zellige.engine.quantize.passages import Opened
from zellige.engine.quantize.plan import PlanError, make_plan
from zellige.engine.quantize.report import compare, quality
from zellige.engine.quantize.run import quantize, quantize_and_judge

LAYER = "model.language_model.layers.0"


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experts of 64 inputs; down has 32, so that every matrix makes groups."""
    path = tmp_path_factory.mktemp("mixture")
    make(path, SHAPES[0].__class__("moe-32", text={"moe_intermediate_size": 32, "num_hidden_layers": 2}))
    return path


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dense")
    make(path, SHAPES[4].__class__("dense", family="qwen3_vl", text={"num_hidden_layers": 2}))
    return path


def run(source: Path, to: Path, bits: int = 4, experts_bits: int | None = None, **more: Any) -> dict[str, Any]:
    given = {"keep": [], "tensors": [], "group": None, "sensitive": None} | more
    plan = make_plan(bits, experts_bits, **given)
    return quantize(source, to, plan, samples=4, device=None, dtype=None, tell=lambda _: None)


def loaded(path: Path, *, packed: bool = False) -> Qwen3VL:
    checkpoint = Checkpoint(path)
    with Weights(checkpoint, torch.device("cpu"), torch.float32, packed=packed) as w:
        return load_model(w, checkpoint.config)


def bits_of(path: Path) -> dict[str, int]:
    """Bits of each matrix, told from how many words a row takes."""
    found = {}
    for name, tensor in load_file(path / "model.safetensors").items():
        if name.endswith(".weight_packed"):
            shape = load_file(path / "model.safetensors")[name.replace("_packed", "_shape")]
            found[name.removesuffix(".weight_packed")] = tensor.shape[1] * 32 // int(shape[1])
    return found


@pytest.mark.parametrize("experts_bits", [8, 4, 3, 2])
def test_quantised_checkpoint_loads_and_stays_near_what_it_was(
    mixture: Path, tmp_path: Path, experts_bits: int
) -> None:
    report = run(mixture, tmp_path / "q", 8, experts_bits)
    assert report["matrices"] == 2 * (4 + 8 * 3)
    assert report["bytes"] < report["bytes_before"]
    source, made = Opened(mixture, None, None), Opened(tmp_path / "q", None, None)
    (passage,) = source.passages([_case()])
    a, b = source.logits(source.step(passage)), made.logits(made.step(passage))
    distance = float((a - b).norm() / a.norm())
    assert distance < {8: 0.02, 4: 0.35, 3: 0.6, 2: 0.9}[experts_bits]


def _case() -> Any:
    from zellige.engine.demo.calibration import held_out_cases

    return held_out_cases(2)[1]


@pytest.mark.parametrize("mixed", [False, True])
def test_packed_in_memory_gives_what_written_out_gives(mixture: Path, tmp_path: Path, mixed: bool) -> None:
    if mixed:
        run(mixture, tmp_path / "q", 4, 2, tensors=[r"layers\.0\..*v_proj=3", r"layers\.0\..*experts\.3\.up=8"])
    else:
        run(mixture, tmp_path / "q", 4, 3, sensitive=0.0)
    lean, whole = Opened(tmp_path / "q", None, None), Opened(tmp_path / "q", None, None)
    lean.model = loaded(tmp_path / "q", packed=True)
    assert lean.model.capturable != mixed
    (passage,) = whole.passages([_case()])
    step = whole.step(passage)
    torch.testing.assert_close(lean.logits(step), whole.logits(step), rtol=1e-3, atol=1e-3)


def test_bits_follow_the_first_rule_that_fits_then_experts_then_the_rest(mixture: Path, tmp_path: Path) -> None:
    rules = {
        "keep": [r"layers\.1\.self_attn"],
        "tensors": [r"o_proj=8", r"visual\.blocks\.0\.mlp=8", r"experts\.0\.=4"],
    }
    run(mixture, tmp_path / "q", 3, 2, **rules)
    bits = bits_of(tmp_path / "q")
    assert bits[f"{LAYER}.self_attn.q_proj"] == 3
    assert bits[f"{LAYER}.self_attn.o_proj"] == 8
    assert bits[f"{LAYER}.mlp.experts.1.down_proj"] == 2
    assert bits[f"{LAYER}.mlp.experts.0.down_proj"] == 4
    assert bits["model.visual.blocks.0.mlp.linear_fc1"] == 8
    assert not [
        n for n in bits if "layers.1.self_attn" in n or "lm_head" in n or ("gate_proj" in n and "experts" not in n)
    ]
    loaded(tmp_path / "q")


@pytest.mark.parametrize("bits", [4, 2])
def test_layout_is_that_of_compressed_tensors_unless_inputs_are_kept_in_eight_bits(
    dense: Path, tmp_path: Path, bits: int
) -> None:
    run(dense, tmp_path / "q", bits)
    method = json.loads((tmp_path / "q" / "config.json").read_text())["quantization_config"]["quant_method"]
    kept = [n for n in load_file(tmp_path / "q" / "model.safetensors") if n.endswith("weight_kept")]
    assert (method, bool(kept)) == (("compressed-tensors", False) if bits == 4 else ("zellige", True))
    run(dense, tmp_path / "plain", bits, sensitive=0.0)
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"


def test_folder_holds_what_the_source_held_and_a_manifest_that_is_checked(dense: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(dense, source)
    (source / "manifest.json").write_text('{"files": {}}')
    (source / "pytorch_model.bin").write_bytes(b"x")
    (source / "LICENSE").write_text("free")
    run(source, tmp_path / "q")
    names = {p.name for p in (tmp_path / "q").iterdir()}
    assert {"LICENSE", "tokenizer.json", "chat_template.jinja", "preprocessor_config.json"} <= names
    assert "pytorch_model.bin" not in names
    manifest = json.loads((tmp_path / "q" / "manifest.json").read_text())["files"]
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= manifest.keys()
    (tmp_path / "q" / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="sha256"):
        Checkpoint(tmp_path / "q")


def test_large_checkpoints_are_written_in_several_files(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "SHARD_BYTES", 200_000)
    run(dense, tmp_path / "q")
    assert len(list((tmp_path / "q").glob("model-*.safetensors"))) > 1
    loaded(tmp_path / "q")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"bits": 5}, "5 bits"),
        ({"experts_bits": 6}, "6 bits"),
        ({"group": 48}, "groups of 48"),
        ({"keep": ["("]}, "no regular expression"),
        ({"keep": ["layers.99"]}, "found in no name"),
        ({"tensors": ["o_proj=5"]}, "PATTERN=BITS"),
        ({"tensors": ["o_proj"]}, "PATTERN=BITS"),
        ({"keep": ["."]}, "nothing would be quantised"),
    ],
)
def test_what_cannot_be_done_is_told_and_leaves_nothing(
    dense: Path, tmp_path: Path, change: dict[str, Any], what: str
) -> None:
    with pytest.raises(PlanError, match=what):
        run(dense, tmp_path / "q", **({"bits": 4} | change))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_there_and_a_source_that_is_quantised_are_refused(dense: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"samples": 4, "judges": 0, "device": None, "dtype": None, "tell": lambda _: None}
    plan = make_plan(4, None, [], [], None, None)
    quantize_and_judge(dense, tmp_path / "q", plan, **how)
    with pytest.raises(EngineError, match="is there already"):
        quantize_and_judge(dense, tmp_path / "q", plan, **how)
    with pytest.raises(EngineError, match="is quantised already"):
        quantize_and_judge(tmp_path / "q", tmp_path / "p", plan, **how)
    with pytest.raises(EngineError, match="no such folder"):
        quantize_and_judge(tmp_path / "none", tmp_path / "p", plan, **how)


def test_quality_of_a_checkpoint_against_itself_is_perfect_and_of_a_ruined_one_is_not(
    dense: Path, tmp_path: Path
) -> None:
    same = quality(dense, dense, 2, None, lambda _: None)
    assert same["quantized"]["agreement"] == 1
    assert same["quantized"]["kl"] == pytest.approx(0, abs=1e-9)
    assert same["quantized"]["perplexity_ratio"] == pytest.approx(1)
    assert same["noise_floor"]["kl"] > 0
    run(dense, tmp_path / "q", 2, sensitive=0.0)
    worse = quality(dense, tmp_path / "q", 2, None, lambda _: None)["quantized"]
    assert worse["kl"] > 10 * same["noise_floor"]["kl"]
    assert worse["agreement"] < 1


def test_comparison_counts_tokens_not_samples() -> None:
    a, b = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]]), torch.tensor([[2.0, 0.0]])
    flipped = a.flip(1)
    found = compare([a, b], [flipped, b], [torch.tensor([0, 1, 0]), torch.tensor([0])])
    assert found.tokens == 4
    assert found.agreement == 0.25
    # Three rows whose two log-probabilities, 2 apart, are exchanged.
    assert found.kl == pytest.approx(3 / 4 * 2 * (torch.tensor(2.0).sigmoid() - torch.tensor(-2.0).sigmoid()).item())
    assert found.perplexity_ratio == pytest.approx(torch.tensor(2.0 * 3 / 4).exp().item())
