"""The scheduler against thousands of random arrivals, and its promises one by one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zellige.engine.cache import BlockPool, OutOfBlocksError
from zellige.engine.scheduler import Chunk, Scheduler, Sequence


def sequence(name: str, prompt: int, answer: int) -> Sequence:
    return Sequence(name, None, list(range(prompt)), prompt + answer)  # type: ignore[arg-type]


def check_step(scheduler: Scheduler, chunks: list[Chunk]) -> None:
    assert sum(c.length for c in chunks) <= scheduler.step_tokens
    assert len({c.sequence.request_id for c in chunks}) == len(chunks) <= scheduler.max_sequences
    lengths = [c.length == 1 for c in chunks]
    assert lengths == sorted(lengths, reverse=True), "chunks of one token come first"
    for c in chunks:
        assert c.length >= 1
        assert c.start == c.sequence.computed
        assert c.start + c.length <= len(c.sequence.blocks) * scheduler.pool.block_tokens
    owned = [b for s in scheduler.running for b in s.blocks]
    assert len(owned) == len(set(owned)), "no block has two owners"
    assert len(owned) + scheduler.pool.free == scheduler.pool.blocks, "no block is lost"
    assert all(not s.blocks and s.computed == 0 for s in scheduler.waiting)


@given(seed=st.integers(0, 2**32), blocks=st.integers(3, 24), block=st.sampled_from([1, 4, 16]), most=st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_every_request_ends_once_whatever_arrives(seed: int, blocks: int, block: int, most: int) -> None:
    rng = random.Random(seed)
    scheduler = Scheduler(BlockPool(blocks, block), most, step_tokens=most + rng.randrange(24))
    coming = []
    for i in range(rng.randrange(1, 40)):
        prompt = rng.randint(1, blocks * block)
        coming.append(sequence(str(i), prompt, rng.randint(0, blocks * block - prompt)))
    left = {s.request_id: s for s in coming}
    ended: list[str] = []
    for _ in range(20_000):
        while coming and rng.random() < 0.4:
            scheduler.add(coming.pop())
        if left and rng.random() < 0.02:
            victim = rng.choice(list(left.values()))
            if victim not in coming:
                scheduler.remove(victim)
                ended.append(left.pop(victim.request_id).request_id)
        chunks = scheduler.plan()
        check_step(scheduler, chunks)
        assert chunks or scheduler.idle, "work was left and none was planned"
        for c in chunks:
            scheduler.computed(c)
        for c in chunks:
            if c.ends_sequence:
                if len(c.sequence.tokens) >= c.sequence.limit or rng.random() < 0.1:
                    scheduler.remove(c.sequence)
                    ended.append(left.pop(c.sequence.request_id).request_id)
                else:
                    c.sequence.tokens.append(0)
        if not left:
            break
    assert not left, "a request never ended"
    assert len(ended) == len(set(ended))
    assert scheduler.idle
    assert scheduler.pool.free == blocks


def test_a_long_prompt_does_not_delay_those_that_are_generating() -> None:
    scheduler = Scheduler(BlockPool(64, 4), max_sequences=4, step_tokens=8)
    short = sequence("short", 2, 20)
    scheduler.add(short)
    for c in scheduler.plan():
        scheduler.computed(c)
    short.tokens.append(0)
    scheduler.add(sequence("long", 100, 1))
    for _ in range(5):
        chunks = scheduler.plan()
        assert [c.sequence.request_id for c in chunks] == ["short", "long"]
        assert [c.length for c in chunks] == [1, 7]
        for c in chunks:
            scheduler.computed(c)
        short.tokens.append(0)


def test_the_youngest_gives_way_when_blocks_run_out_and_keeps_its_tokens() -> None:
    scheduler = Scheduler(BlockPool(4, 2), max_sequences=4, step_tokens=16)
    old, young = sequence("old", 3, 5), sequence("young", 3, 1)
    scheduler.add(old)
    scheduler.add(young)
    for c in scheduler.plan():
        scheduler.computed(c)
    old.tokens += [7]
    young.tokens += [8]
    assert {c.sequence.request_id for c in scheduler.plan()} == {"old", "young"}
    old.computed, young.computed = 4, 4
    old.tokens += [7]
    young.tokens += [9]
    assert [c.sequence for c in scheduler.plan()] == [old]
    assert list(scheduler.waiting) == [young]
    assert young.tokens == [0, 1, 2, 8, 9]
    assert young.computed == 0


def test_a_request_that_could_never_fit_is_refused_at_once() -> None:
    scheduler = Scheduler(BlockPool(4, 2), max_sequences=2, step_tokens=8)
    with pytest.raises(ValueError, match="8 tokens there are"):
        scheduler.add(sequence("huge", 9, 0))


def test_pool_takes_all_or_nothing_and_refuses_a_block_twice() -> None:
    pool = BlockPool(3, 8)
    first = pool.take(2)
    with pytest.raises(OutOfBlocksError):
        pool.take(2)
    assert pool.free == 1
    pool.give_back(first)
    with pytest.raises(ValueError, match="given back twice"):
        pool.give_back(first)
    assert pool.take(3) == [0, 1, 2]
