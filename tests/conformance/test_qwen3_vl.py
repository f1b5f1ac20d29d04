"""Our Qwen3-VL against transformers, float32 on the CPU: logits at every position, and 64 greedy tokens."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from ours import Ours, relative_l2, request
from reference import Reference

from zellige.engine.local import LocalEngine

TOLERANCE = 1e-5


def picture(seed: int, width: int, height: int) -> np.ndarray:
    """Noise over a gradient: every patch differs from every other."""
    rng = np.random.default_rng(seed)
    ramp = np.linspace(0, 180, width)[None, :, None] * np.linspace(0.3, 1, height)[:, None, None]
    return (ramp + rng.integers(0, 76, (height, width, 3))).astype(np.uint8)


CONVERSATIONS: dict[str, list[tuple[str, list[Any]]]] = {
    "text only": [("user", ["what is in the thin tin?"])],
    "one token of text": [("user", ["a"])],
    "one image": [("user", [picture(1, 96, 128), "the thing in it"])],
    "sizes that are not multiples of the patch": [("user", [picture(2, 131, 77), "in"])],
    "larger than the model sees": [("user", [picture(3, 500, 333), "the"])],
    "smaller than the model sees": [("user", [picture(4, 9, 5), "the"])],
    "several images": [("user", [picture(5, 64, 160), "then", picture(6, 200, 50), picture(7, 33, 33), "which?"])],
    "several turns": [
        ("system", ["be brief"]),
        ("user", [picture(8, 100, 100), "what is it?"]),
        ("assistant", ["the thing"]),
        ("user", ["and this?", picture(9, 70, 140)]),
    ],
    "not ASCII": [("user", ["é 汉字 🙂 ﬁ ½ e\u0301"])],
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_logits_equal_at_every_position(name, shape, saved):
    folder, model = saved(shape)
    theirs = Reference(folder, model).logits(CONVERSATIONS[name])
    ours = Ours(folder).logits(CONVERSATIONS[name])
    assert ours.shape == theirs.shape
    assert relative_l2(ours, theirs) <= TOLERANCE
    # No single row may hide behind the others.
    per_row = (ours - theirs).norm(dim=1) / theirs.norm(dim=1)
    assert float(per_row.max()) <= 2 * TOLERANCE


def test_prompt_in_chunks_equals_the_whole_at_every_cut(saved):
    from checkpoints import SHAPES

    folder, model = saved(SHAPES[0])
    turns = CONVERSATIONS["several images"]
    theirs = Reference(folder, model).logits(turns)
    ours = Ours(folder)
    for cut in range(1, len(theirs)):
        assert relative_l2(ours.logits(turns, cuts=(cut,)), theirs) <= TOLERANCE, f"cut at {cut}"


def test_tokens_of_a_prompt_are_those_of_the_judge(shape, saved):
    folder, model = saved(shape)
    reference, ours = Reference(folder, model), Ours(folder)
    for turns in CONVERSATIONS.values():
        assert ours.processor.prepare(request(turns)).tokens == reference.inputs(turns)["input_ids"][0].tolist()


def test_positions_are_those_of_the_judge(shape, saved):
    folder, model = saved(shape)
    reference, ours = Reference(folder, model), Ours(folder)
    for turns in CONVERSATIONS.values():
        inputs = reference.inputs(turns)
        want, delta = model.model.get_rope_index(
            inputs["input_ids"], inputs["mm_token_type_ids"], inputs.get("image_grid_thw")
        )
        prompt = ours.processor.prepare(request(turns))
        assert np.array_equal(prompt.positions, want[:, 0].T.numpy())
        assert prompt.next == len(prompt.tokens) + int(delta)


@pytest.mark.parametrize("size", [(96, 128), (131, 77), (500, 333), (9, 5), (1, 150), (33, 4000), (256, 256)])
def test_resized_pixels_equal_the_judges_bit_for_bit(size, shape, saved):
    folder, model = saved(shape)
    turns = [("user", [picture(11, *size), "x"])]
    reference, ours = Reference(folder, model), Ours(folder)
    theirs = reference.inputs(turns)["pixel_values"]
    side = ours.processor.rules.budget.patch
    # They hold each patch twice (two equal frames); we hold one.
    theirs = theirs.view(len(theirs), 3, 2, side, side)[:, :, 0]
    got = ours.runner.images.patches(ours.processor.prepare(request(turns)).images[0]).view_as(theirs)
    mean = torch.tensor(reference.images.image_mean).view(3, 1, 1)
    std = torch.tensor(reference.images.image_std).view(3, 1, 1)

    def as_pixels(x: torch.Tensor) -> torch.Tensor:
        return ((x.double() * std + mean) * 255).round().to(torch.uint8)

    assert torch.equal(as_pixels(got), as_pixels(theirs))
    assert float((got - theirs).abs().max()) <= 1e-6  # two float32 operations in another order


def answers(folder, conversations, tokens: int, concurrent: bool) -> list[list[int]]:
    async def run() -> list[list[int]]:
        engine = LocalEngine.load(folder)
        requests = [request(t, max_tokens=tokens, ignore_eos=True) for t in conversations]
        if concurrent:
            got = await asyncio.gather(*map(engine.answer, requests))
        else:
            got = [await engine.answer(r) for r in requests]
        await engine.close()
        return [list(a.token_ids) for a in got]

    return asyncio.run(run())


def test_64_greedy_tokens_are_the_judges_alone_and_in_a_mixed_batch(shape, saved):
    folder, model = saved(shape)
    reference = Reference(folder, model)
    conversations = list(CONVERSATIONS.values())
    want = [reference.greedy(t, 64) for t in conversations]
    assert len({tuple(w) for w in want}) == len(want), "the prompts must be told apart for this test to mean anything"
    assert answers(folder, conversations, 64, concurrent=False) == want
    assert answers(folder, conversations, 64, concurrent=True) == want
