"""The engine as flows use it: many requests at once, cancellations, failures of one that hurt no other."""

from __future__ import annotations

import asyncio
import math
import random

import numpy as np
import pytest
import torch

from zellige.engine import config
from zellige.engine.api import EngineError, NonFiniteLogits, Request, RequestRejected, RunMeter, Sampling, ask
from zellige.engine.local import LocalEngine


def picture(seed: int, width: int = 96, height: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)


def question(number: int, **sampling: object) -> Request:
    rng = random.Random(number)
    images = [picture(number, rng.randint(40, 200), rng.randint(40, 200))] if number % 3 else []
    return ask(f"the thing {number} " * rng.randint(1, 9), *images, sampling=Sampling(**{"max_tokens": 24, **sampling}))


def run(folder, work):
    async def inside():
        engine = LocalEngine.load(folder)
        try:
            return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(asyncio.wait_for(inside(), 120))


def free_blocks(engine: LocalEngine) -> int:
    return engine._scheduler.pool.free


def test_an_answer_is_the_same_alone_and_among_fifteen_others(model_folder) -> None:
    async def work(engine: LocalEngine):
        alone = [await engine.answer(question(i)) for i in range(16)]
        together = await asyncio.gather(*(engine.answer(question(i)) for i in range(16)))
        return alone, together

    alone, together = run(model_folder, work)
    assert [a.token_ids for a in alone] == [a.token_ids for a in together]
    assert len({a.token_ids for a in alone}) > 12, "answers must be told apart for this to mean anything"


def test_sixteen_coloured_cards_each_get_their_own_answer(model_folder) -> None:
    """Same prompt, same size, other pixels: nothing may be mixed up or kept from an earlier image."""

    async def work(engine: LocalEngine):
        cards = [np.full((64, 64, 3), (i * 16, 255 - i * 16, (i * 53) % 256), np.uint8) for i in range(16)]
        requests = [ask("what colour?", c, sampling=Sampling(max_tokens=12)) for c in cards]
        together = await asyncio.gather(*map(engine.answer, requests))
        again = [await engine.answer(ask("what colour?", c, sampling=Sampling(max_tokens=12))) for c in reversed(cards)]
        return [a.token_ids for a in together], [a.token_ids for a in reversed(again)]

    together, singly = run(model_folder, work)
    assert together == singly


def with_setting(folder, monkeypatch, old: str, new: str) -> None:
    changed = config.DEFAULTS.read_text()
    assert changed.count(old) == 1
    path = folder / "engine.toml"
    path.write_text(changed.replace(old, new))
    monkeypatch.setattr(config, "DEFAULTS", path)


def test_answers_are_the_same_with_and_without_the_beginnings_of_earlier_prompts(model_folder, monkeypatch) -> None:
    """Ten questions about each of three images, two of them of one size, in one prompt with a fourth."""
    images = [picture(1), picture(2), picture(3, 160, 120)]
    sampling = Sampling(max_tokens=12, ignore_eos=True)
    requests = [
        ask(f"{'word ' * (i % 4)}what is {i}?", image, picture(9, 70, 50), sampling=sampling)
        for i in range(10)
        for image in images
    ]

    async def work(engine: LocalEngine):
        answers = [a.token_ids for a in await asyncio.gather(*map(engine.answer, requests))]
        return answers, engine.stats(), free_blocks(engine) == engine._scheduler.pool.blocks

    reused, stats, all_free = run(model_folder, work)
    assert all_free
    assert stats.prefix_hits > stats.prefix_queries / 3
    assert stats.image_queries - stats.image_hits == 4, "each image is encoded once"
    with_setting(model_folder, monkeypatch, "prefix_cache_bytes = 268435456", "prefix_cache_bytes = 0")
    computed, stats, all_free = run(model_folder, work)
    assert all_free
    assert stats.prefix_hits == 0
    assert reused == computed
    assert len(set(computed)) > 20, "answers must be told apart for this to mean anything"


def test_streamed_pieces_join_to_the_answer(model_folder) -> None:
    async def work(engine: LocalEngine):
        deltas = [d async for d in engine.stream(question(4))]
        return deltas, await engine.answer(question(4))

    deltas, whole = run(model_folder, work)
    assert "".join(d.text for d in deltas) == whole.text == deltas[-1].answer.text
    assert [d.answer is None for d in deltas[:-1]] == [True] * (len(deltas) - 1)


def test_cancelling_frees_the_blocks_and_leaves_the_neighbours_as_they_were(model_folder) -> None:
    async def work(engine: LocalEngine):
        start = free_blocks(engine)
        want = [(await engine.answer(question(i, max_tokens=60, ignore_eos=True))).token_ids for i in range(1, 5)]
        doomed = [asyncio.create_task(engine.answer(question(100 + i, max_tokens=2000))) for i in range(8)]
        kept = [asyncio.create_task(engine.answer(question(i, max_tokens=60, ignore_eos=True))) for i in range(1, 5)]
        for i, task in enumerate(doomed):
            await asyncio.sleep(0.01 * i)
            task.cancel()
        got = [(await k).token_ids for k in kept]
        ended = await asyncio.gather(*doomed, return_exceptions=True)
        await engine.answer(question(0))
        return want, got, ended, start, free_blocks(engine)

    want, got, ended, start, end = run(model_folder, work)
    assert got == want
    assert all(isinstance(e, asyncio.CancelledError) for e in ended)
    assert start == end


def test_more_requests_than_cache_are_all_answered(model_folder, monkeypatch) -> None:
    """Preemption by recompute gives the same greedy answers."""

    async def work(engine: LocalEngine):
        return [a.token_ids for a in await asyncio.gather(*(engine.answer(question(i)) for i in range(12)))]

    want = run(model_folder, work)
    small = config.DEFAULTS.read_text().replace("block_tokens = 512", "block_tokens = 8")
    small = small.replace("cache_bytes = 1073741824", f"cache_bytes = {8 * 60 * 3 * 2 * 2 * 32 * 4}")
    path = model_folder / "engine.toml"
    path.write_text(small)
    monkeypatch.setattr(config, "DEFAULTS", path)
    assert run(model_folder, work) == want


def test_a_nonfinite_row_fails_alone_and_the_rest_is_bit_identical(model_folder, monkeypatch) -> None:
    """A hook sets one request's logits to NaN at one step, as a faulty kernel would."""

    async def work(engine: LocalEngine):
        requests = [question(i, max_tokens=20, ignore_eos=True) for i in range(1, 5)]
        want = [(await engine.answer(r)).token_ids for r in requests]
        victim = question(50, max_tokens=20, ignore_eos=True)
        launch, forward = engine._runner.launch, engine._runner.model.forward
        ending = []

        def watched(chunks, draws):
            ending[:] = [c.sequence for c in chunks if c.ends_sequence]
            return launch(chunks, draws)

        def faulty(*args):
            logits = forward(*args)
            for row, s in enumerate(ending):
                if s.request_id == victim.request_id and len(s.tokens) - len(s.prompt.tokens) == 7:
                    logits[row, 3] = float("nan")
            return logits

        monkeypatch.setattr(engine._runner, "launch", watched)
        monkeypatch.setattr(engine._runner.model, "forward", faulty)
        before = free_blocks(engine)
        got = await asyncio.gather(*map(engine.answer, [*requests, victim]), return_exceptions=True)
        return want, got[:4], got[4], before == free_blocks(engine)

    want, got, failed, returned = run(model_folder, work)
    assert isinstance(failed, NonFiniteLogits)
    assert [g.token_ids for g in got] == want
    assert returned


@pytest.mark.parametrize(
    ("spoil", "place"),
    [
        (lambda model: model.tower.blocks[1].fc2.weight, "vision block 1"),
        (lambda model: model.tower.merger.fc1.weight, "vision merger"),
        (lambda model: model.layers[1].norm2.weight, "decoder layer 1"),
        (lambda model: model.norm.weight, "logits"),
    ],
    ids=["tower", "merger", "decoder", "head"],
)
def test_the_first_layer_that_is_not_finite_is_named(model_folder, monkeypatch, spoil, place) -> None:
    async def work(engine: LocalEngine):
        # Prompts in several pieces: what goes wrong in the first shows in the last, in another layer.
        monkeypatch.setattr(engine._scheduler, "step_tokens", 8)
        weight = spoil(engine._runner.model)
        kept = weight.clone()
        weight.fill_(math.inf)
        with pytest.raises(NonFiniteLogits) as failed:
            await engine.answer(question(1))
        weight.copy_(kept)
        engine._runner.images.cache.clear()
        return str(failed.value), await engine.answer(question(1))

    told, answer = run(model_folder, work)
    assert told == f"the model's logits held NaN or infinity; the first in: {place}"
    assert answer.token_ids


def test_a_failing_step_fails_its_requests_by_name_and_the_engine_goes_on(model_folder, monkeypatch) -> None:
    async def work(engine: LocalEngine):
        forward = engine._runner.model.forward
        monkeypatch.setattr(engine._runner.model, "forward", lambda *_: torch.zeros(1) @ torch.zeros(2))
        with pytest.raises(EngineError, match="failed while computing"):
            await engine.answer(question(1))
        monkeypatch.setattr(engine._runner.model, "forward", forward)
        return await engine.answer(question(1)), free_blocks(engine), engine._scheduler.pool.blocks

    answer, free, blocks = run(model_folder, work)
    assert answer.token_ids
    assert free == blocks


def test_a_prompt_past_the_context_is_refused_with_the_numbers(model_folder) -> None:
    async def work(engine: LocalEngine):
        limit = (await engine.identity()).max_context
        with pytest.raises(RequestRejected, match=rf"context holds {limit}"):
            await engine.answer(ask("x" * (limit + 1)))
        return await engine.answer(ask("y" * (limit - 60), sampling=Sampling(max_tokens=10**9, ignore_eos=True))), limit

    answer, limit = run(model_folder, work)
    assert answer.finish_reason == "length"
    assert answer.usage.prompt_tokens + answer.usage.completion_tokens == limit


def test_extreme_shapes_fail_alone_and_the_others_are_answered(model_folder) -> None:
    async def work(engine: LocalEngine):
        sizes = [(1, 1), (22, 3), (31, 639), (499, 1), (1, 201), (100, 100)]
        tasks = (engine.answer(ask("x", picture(1, w, h), sampling=Sampling(max_tokens=3))) for w, h in sizes)
        return await asyncio.gather(*tasks, return_exceptions=True)

    got = run(model_folder, work)
    assert [isinstance(g, RequestRejected) for g in got] == [False, False, False, True, True, False]


def test_stop_strings_stop_tokens_and_seeds(model_folder) -> None:
    async def work(engine: LocalEngine):
        free = await engine.answer(question(2, ignore_eos=True))
        third = free.token_ids[2]
        first = free.token_ids.index(third)
        stopped = await engine.answer(question(2, ignore_eos=True, stop_token_ids=(third,)))
        assert stopped.token_ids == free.token_ids[: first + 1]
        assert stopped.finish_reason == "stop"
        hot = [await engine.answer(question(2, temperature=1.0, seed=s)) for s in (1, 1, 2)]
        assert hot[0].token_ids == hot[1].token_ids != hot[2].token_ids
        character = free.text[3]
        cut = await engine.answer(question(2, ignore_eos=True, stop=(character,)))
        assert cut.text == free.text[: free.text.index(character)]

    run(model_folder, work)


def test_the_meter_counts_a_runs_own_work(model_folder) -> None:
    async def work(engine: LocalEngine):
        requests = [ask("a", picture(i), sampling=Sampling(max_tokens=5), run_id=f"run{i % 2}") for i in range(4)]
        answers = await asyncio.gather(*map(engine.answer, requests))
        return answers, await engine.meter("run0"), await engine.meter("nobody")

    answers, meter, nobody = run(model_folder, work)
    assert nobody == RunMeter()
    assert meter.requests == meter.images == 2
    assert meter.completion_tokens == sum(answers[i].usage.completion_tokens for i in (0, 2))
    assert min(meter.preprocess_s, meter.vision_s, meter.prefill_s, meter.decode_s) > 0


def test_a_closed_engine_refuses_and_nobody_hangs(model_folder) -> None:
    async def work():
        engine = LocalEngine.load(model_folder)
        waiting = [asyncio.create_task(engine.answer(question(i, max_tokens=2000, ignore_eos=True))) for i in range(5)]
        await asyncio.sleep(0.05)
        await engine.close()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        with pytest.raises((EngineError, RuntimeError)):
            await engine.answer(question(1))
        return ended

    ended = asyncio.run(asyncio.wait_for(work(), 60))
    assert all(isinstance(e, EngineError | RuntimeError) for e in ended), ended
