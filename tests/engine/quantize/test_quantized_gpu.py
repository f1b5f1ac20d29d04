"""Quantised checkpoints on a GPU: packed in memory, against the same weights written out on a CPU. By hand."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "conformance"))

from checkpoints import Shape, make
from ours import Ours, relative_l2, request

from zellige.engine.layers.experts import Int4Experts, QuantizedExperts
from zellige.engine.quantize.grid import Grid, nearest
from zellige.engine.quantize.scheme import written
from zellige.engine.quantize.stored import tensors_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

PIXELS = np.random.default_rng(3).integers(0, 255, (96, 128, 3), dtype=np.uint8)
TURNS = [("user", [PIXELS, "the thing in it"])]


def plainly(folder: Path, bits: int) -> None:
    """Round every matrix of the decoder's layers where the checkpoint lies, with a kept input, without calibration."""
    grid = Grid(bits, 32, symmetric=bits > 3)
    tensors = load_file(folder / "model.safetensors")
    done: dict[str, Grid] = {}
    out = {}
    for name, tensor in tensors.items():
        parts = {}
        if ".layers." in name and name.endswith("_proj.weight"):
            parts[name.removesuffix(".weight")] = tensor
        elif ".experts." in name:
            base = name.rpartition(".")[0]
            for e, whole in enumerate(tensor):
                named = {"down": whole} if "down" in name else dict(zip(("gate", "up"), whole.chunk(2), strict=True))
                parts |= {f"{base}.{e}.{p}_proj": w for p, w in named.items()}
        for module, w in parts.items():
            kept = torch.tensor([5]) if bits < 4 else None
            codes = nearest(w.float(), grid, torch.ones_like(w[0]), torch.float32, kept)
            out |= {f"{module}.{k}": v for k, v in tensors_of(codes).items()}
            done[module] = grid
        if not parts:
            out[name] = tensor
    save_file(out, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = written(done, [], beyond=bits < 4)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("bits", [4, 3, 2])
@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_vl_moe"])
def test_logits_are_those_of_the_weights_written_out(tmp_path: Path, family: str, bits: int) -> None:
    make(tmp_path, Shape("s", family=family, text={"moe_intermediate_size": 32} if "moe" in family else {}))
    plainly(tmp_path, bits)
    wanted = Ours(tmp_path).logits(TURNS)
    for dtype, tolerance in (("float32", 1e-3), ("bfloat16", 5e-2)):
        ours = Ours(tmp_path, "cuda", dtype)
        if "moe" in family:
            store = ours.runner.model.layers[0].feed_forward.store
            # Those with an input in 8 bits are computed one by one.
            assert isinstance(store, Int4Experts if bits == 4 else QuantizedExperts)
        distance = relative_l2(ours.logits(TURNS), wanted)
        print(f"{family} {bits} bits {dtype}: {distance:.2e}")
        assert distance <= tolerance


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_vl_moe"])
def test_engine_answers_with_quantised_weights(tmp_path: Path, family: str) -> None:
    make(tmp_path, Shape("s", family=family, text={"moe_intermediate_size": 32} if "moe" in family else {}))
    plainly(tmp_path, 4)

    from zellige.engine.local import LocalEngine

    async def answers(device: str) -> list[tuple[int, ...]]:
        engine = LocalEngine.load(tmp_path, device=device, dtype="float32")
        try:
            asked = [request([("user", [PIXELS, text])], max_tokens=24) for text in ("a", "the thin", "in the tin")]
            return [a.token_ids for a in await asyncio.gather(*map(engine.answer, asked))]
        finally:
            await engine.close()

    assert asyncio.run(answers("cuda")) == asyncio.run(answers("cpu"))
