"""What other programs quantised is read as the weights that it stands for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parent))

from others import Made, awq, compressed, gptq

from zellige.engine.checkpoint import Checkpoint, CheckpointError, Weights
from zellige.engine.quantize.packed import Packed

N, K = 24, 96


def group(bits: int = 4, *, symmetric: bool = True, size: int = 32) -> dict[str, Any]:
    return {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": size}


def config(weights: dict[str, Any], form: str = "pack-quantized", **more: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None, **more}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]}


def folder(path: Path, quantization: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    (path / "config.json").write_text(json.dumps({"quantization_config": quantization}))
    save_file({f"a.b.{k}": v.contiguous() for k, v in tensors.items()}, path / "model.safetensors")
    return path


def read(path: Path, *, packed: bool, outputs: int = N, inputs: int = K) -> torch.Tensor | Packed:
    with Weights(Checkpoint(path), torch.device("cpu"), torch.float32, packed=packed) as w:
        return w.matrix("a.b", outputs, inputs)


def holds(path: Path, quantization: dict[str, Any], made: Made, *, stays: bool = True) -> None:
    """Read dense and packed, the weights are those that their maker unpacks, and so is a product with them."""
    stored, dense = made
    folder(path, quantization, stored)
    whole = read(path, packed=False)
    assert isinstance(whole, torch.Tensor)
    torch.testing.assert_close(whole, dense.float(), rtol=1e-6, atol=1e-7)
    lean = read(path, packed=True)
    assert isinstance(lean, Packed) == stays
    if isinstance(lean, Packed):
        torch.testing.assert_close(lean.dense(torch.float32), dense.float(), rtol=1e-6, atol=1e-7)
        x = torch.randn(3, dense.shape[1])
        torch.testing.assert_close(lean(x), x @ dense.float().T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_compressed_tensors_in_groups(tmp_path: Path, bits: int, symmetric: bool) -> None:
    weights = group(bits, symmetric=symmetric)
    holds(tmp_path, config(weights), compressed(torch.randn(N, K), **weights), stays=bits < 8)


@pytest.mark.parametrize("strategy", ["channel", "tensor"])
@pytest.mark.parametrize(("form", "bits"), [("pack-quantized", 4), ("int-quantized", 8), ("naive-quantized", 8)])
def test_compressed_tensors_with_a_scale_a_row_or_one_for_all(
    tmp_path: Path, strategy: str, form: str, bits: int
) -> None:
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": strategy}
    made = compressed(torch.randn(N, K), form, **weights)
    holds(tmp_path, config(weights, form), made, stays=bits < 8)


def test_three_bits_of_older_writers_that_left_two_bits_of_each_word(tmp_path: Path) -> None:
    weights = group(3)
    stored, dense = compressed(torch.randn(N, 320), **weights)
    stream = stored["weight_packed"].long() & 0xFFFFFFFF
    q = torch.stack(
        [
            ((stream[:, 3 * i // 32] | (stream[:, min(3 * i // 32 + 1, 29)] << 32)) >> 3 * i % 32) & 7
            for i in range(320)
        ],
        1,
    )
    older = (q.view(N, 32, 10) << torch.arange(0, 30, 3)).sum(-1).to(torch.int32)
    folder(tmp_path, config(weights), stored | {"weight_packed": older})
    torch.testing.assert_close(read(tmp_path, packed=False, inputs=320), dense, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("size", [32, 96])
def test_awq(tmp_path: Path, size: int) -> None:
    quantization = {"quant_method": "awq", "bits": 4, "group_size": size, "zero_point": True, "version": "gemm"}
    holds(tmp_path, quantization, awq(torch.randn(N, K), size))


@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("act_order", [False, True])
def test_gptq(tmp_path: Path, form: str, bits: int, act_order: bool) -> None:
    made = gptq(torch.randn(32, K), 32, bits=bits, plus_one=form == "gptq", act_order=act_order)
    quantization = {"quant_method": "gptq", "bits": bits, "group_size": 32, "desc_act": act_order, "sym": False}
    folder(tmp_path, quantization | {"checkpoint_format": form}, made[0])
    whole = read(tmp_path, packed=False, outputs=32)
    assert isinstance(whole, torch.Tensor)
    torch.testing.assert_close(whole, made[1], rtol=1e-6, atol=1e-7)
    lean = read(tmp_path, packed=True, outputs=32)
    # Groups whose inputs are scattered are written out: the kernel wants neighbours.
    assert isinstance(lean, Packed) == (bits < 8 and not act_order)
    if isinstance(lean, Packed):
        torch.testing.assert_close(lean.dense(torch.float32), made[1], rtol=1e-6, atol=1e-7)


def test_gptq_zero_point_of_nothing_has_wrapped_round_when_it_was_stored(tmp_path: Path) -> None:
    stored, _ = gptq(torch.randn(32, 32), 32)
    stored["qzeros"] = torch.full_like(stored["qzeros"], -1)
    folder(tmp_path, {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}, stored)
    w = read(tmp_path, packed=False, outputs=32, inputs=32)
    assert isinstance(w, torch.Tensor)
    assert w.min() >= 0


def test_a_matrix_that_a_quantiser_left_alone_is_read_as_it_is(tmp_path: Path) -> None:
    w = torch.randn(N, K)
    folder(tmp_path, config(group()), {"weight": w})
    assert torch.equal(read(tmp_path, packed=True), w)


def test_each_matrix_has_the_bits_of_the_group_whose_target_fits_it(tmp_path: Path) -> None:
    three, eight = group(3), group(8)
    quantization = config(eight)
    quantization["config_groups"]["group_1"] = {"targets": ["re:.*\\.b$"], "weights": three}
    stored, dense = compressed(torch.randn(N, K), **three)
    folder(tmp_path, quantization, stored)
    torch.testing.assert_close(read(tmp_path, packed=False), dense, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("quantization", "what"),
    [
        ({"quant_method": "bitsandbytes"}, "bitsandbytes"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "gemv"),
        ({"quant_method": "gptq", "bits": 5, "group_size": 128}, "5 bits"),
        (config(group(), form="nvfp4-pack-quantized"), "nvfp4"),
        (config({**group(8), "type": "float"}), "float"),
        (config(group(), input_activations={"num_bits": 8}), "activations"),
        (config({**group(), "strategy": "block"}), "block"),
        ({"quant_method": "gptq", "bits": 4}, "group_size"),
    ],
)
def test_a_quantisation_that_is_not_read_is_named(tmp_path: Path, quantization: dict[str, Any], what: str) -> None:
    folder(tmp_path, quantization, {"weight": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=what):
        read(tmp_path, packed=False)


def test_parts_that_are_missing_or_do_not_fit_are_told_with_everything_else(tmp_path: Path) -> None:
    weights = group(symmetric=False)
    stored, _ = compressed(torch.randn(N, K), **weights)
    folder(tmp_path, config(weights), {k: v for k, v in stored.items() if k != "weight_zero_point"})
    with pytest.raises(CheckpointError, match=r"a\.b\.weight_zero_point is missing"):
        read(tmp_path, packed=False)
    folder(tmp_path, config(weights), stored)
    with pytest.raises(CheckpointError, match=r"a\.b: .*expected"):
        read(tmp_path, packed=False, outputs=N + 8)
    folder(tmp_path, config(weights), stored | {"weight_scale": stored["weight_scale"][:, :2]})
    with pytest.raises(CheckpointError, match=r"a\.b: .*expected"):
        read(tmp_path, packed=False)
