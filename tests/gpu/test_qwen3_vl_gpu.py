"""The same code on a GPU: bfloat16 and float32 there against transformers in float32 on the CPU.

Run by hand: ``pytest -m gpu -s``; prints one line a comparison.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from checkpoints import SHAPES, make
from ours import Ours, relative_l2, request
from reference import Reference

from zellige.engine.connect import DEMO_MODEL
from zellige.engine.local import LocalEngine

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

TOLERANCES = {"bfloat16": 3e-2, "float32": 1e-5}
#: In a random mixture two experts are often nearly tied, and any rounding may swap them. Where transformers itself, in
#: bfloat16 on the same device, is about as far from its own float32 as the tolerance, we may be no further than this
#: multiple of it: both are draws of the same noise.
OF_THE_PEERS_NOISE = 1.3


def picture(seed: int, width: int, height: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    ramp = np.linspace(0, 180, width)[None, :, None] * np.linspace(0.3, 1, height)[:, None, None]
    return (ramp + rng.integers(0, 76, (height, width, 3))).astype(np.uint8)


CONVERSATIONS = {
    "text": [("user", ["what is in the thin tin?"])],
    "image": [("user", [picture(1, 96, 128), "the thing in it"])],
    "images": [("user", [picture(5, 64, 160), "then", picture(6, 200, 50), picture(7, 33, 33), "which?"])],
}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_logits_on_the_gpu(shape, dtype, tmp_path):
    model = make(tmp_path, shape)
    reference, ours = Reference(tmp_path, model), Ours(tmp_path, "cuda", dtype)
    wanted = {name: reference.logits(turns) for name, turns in CONVERSATIONS.items()}
    model.to("cuda", getattr(torch, dtype))
    for name, turns in CONVERSATIONS.items():
        theirs = wanted[name]
        error = relative_l2(ours.logits(turns), theirs)
        cut = relative_l2(ours.logits(turns, cuts=(len(theirs) // 2,)), theirs)
        peer = relative_l2(reference.logits(turns).cpu(), theirs)
        print(
            f"{shape.name:28} {dtype:9} {name:7} relative L2 {error:.2e}, in two chunks {cut:.2e}, "
            f"transformers on this device {peer:.2e}"
        )
        assert max(error, cut) <= max(TOLERANCES[dtype], OF_THE_PEERS_NOISE * peer)


@pytest.mark.parametrize("shape", SHAPES[:1] + SHAPES[4:5], ids=lambda s: s.name)
def test_greedy_tokens_on_the_gpu_in_float32(shape, tmp_path):
    model = make(tmp_path, shape)
    want = [Reference(tmp_path, model).greedy(t, 64) for t in CONVERSATIONS.values()]

    async def run() -> list[list[int]]:
        engine = LocalEngine.load(tmp_path, device="cuda", dtype="float32")
        requests = [request(t, max_tokens=64, ignore_eos=True) for t in CONVERSATIONS.values()]
        got = await asyncio.gather(*map(engine.answer, requests))
        await engine.close()
        return [list(a.token_ids) for a in got]

    assert asyncio.run(run()) == want


@pytest.mark.parametrize("size", [(224, 224), (448, 448), (96, 640), (1554, 1078)])
def test_the_checkpoint_that_ships_in_bfloat16(size):
    image = np.full((size[1], size[0], 3), 235, np.uint8)
    image[size[1] // 12 : size[1] // 4, size[0] // 12 : size[0] // 4] = (215, 35, 35)
    turns = [("user", [image, "Describe the image."])]
    theirs = Ours(DEMO_MODEL).logits(turns)
    error = relative_l2(Ours(DEMO_MODEL, "cuda", "bfloat16").logits(turns), theirs)
    print(f"shipped checkpoint {size[0]} x {size[1]} bfloat16 relative L2 {error:.2e}")
    assert error <= TOLERANCES["bfloat16"]
