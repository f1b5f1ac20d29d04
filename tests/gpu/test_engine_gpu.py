"""The engine on a GPU: captured steps launched ahead of their tokens give the answers of steps run one by one."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
import torch

from zellige.engine.api import Answer, Request, Sampling, ask
from zellige.engine.connect import DEMO_MODEL
from zellige.engine.local import LocalEngine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def requests(count: int, **sampling) -> list[Request]:
    rng = np.random.default_rng(0)
    return [
        ask(
            f"Describe the image. {'again ' * (i % 7)}",
            rng.integers(0, 256, (64 + 32 * (i % 5), 96, 3), dtype=np.uint8),
            sampling=Sampling(max_tokens=5 + 9 * (i % 6), seed=i, **sampling),
        )
        for i in range(count)
    ]


def run(work):
    engine = LocalEngine.load(DEMO_MODEL, device="cuda", dtype="float32")

    async def whole():
        try:
            return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(whole())


def tokens(answers: list[Answer]) -> list[tuple[int, ...]]:
    return [a.token_ids for a in answers]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_steps_launched_ahead_choose_the_tokens_of_steps_run_one_by_one(temperature):
    asked = requests(40, temperature=temperature, ignore_eos=True)

    async def work(engine: LocalEngine):
        ahead = await asyncio.gather(*map(engine.answer, asked))
        engine._runner.graphs, graphs = None, engine._runner.graphs
        alone = [await engine.answer(r) for r in asked]
        engine._runner.graphs = graphs
        replayed = graphs._steps
        stats = engine.stats()
        return tokens(ahead), tokens(alone), replayed, stats.cache_blocks == stats.cache_blocks_free

    ahead, alone, replayed, all_free = run(work)
    assert ahead == alone
    assert replayed > 20
    assert all_free


def test_a_cancelled_neighbour_changes_nothing_and_leaves_no_block():
    asked = requests(24, ignore_eos=True)

    async def work(engine: LocalEngine):
        want = tokens([await engine.answer(r) for r in asked])
        victims = [asyncio.ensure_future(engine.answer(r)) for r in requests(8, ignore_eos=True, temperature=1.0)]
        others = [asyncio.ensure_future(engine.answer(r)) for r in asked]
        for v in victims:
            await asyncio.sleep(0.004)
            v.cancel()
        got = tokens(await asyncio.gather(*others))
        await asyncio.gather(*victims, return_exceptions=True)
        for _ in range(100):
            stats = engine.stats()
            if stats.cache_blocks == stats.cache_blocks_free:
                break
            await asyncio.sleep(0.01)
        return want, got, stats.cache_blocks - stats.cache_blocks_free

    want, got, leaked = run(work)
    assert got == want
    assert leaked == 0


def test_what_was_planned_of_the_memory_is_not_exceeded():
    async def work(engine: LocalEngine):
        plan = engine._runner.memory
        torch.cuda.reset_peak_memory_stats()
        largest = np.random.default_rng(1).integers(0, 256, (448, 448, 3), dtype=np.uint8)
        many = [
            ask("Describe the image.", np.roll(largest, i, 0), sampling=Sampling(8, temperature=1.0, top_p=0.9))
            for i in range(300)
        ]
        await asyncio.gather(*map(engine.answer, many))
        return plan, torch.cuda.max_memory_reserved()

    plan, peak = run(work)
    assert peak <= plan.total * plan.fraction, json.dumps({"peak": peak, "plan": str(plan)})
