"""The scheduler against thousands of random arrivals, and its promises one by one."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zellige.engine.cache import BlockPool, OutOfBlocksError, prefix_keys
from zellige.engine.scheduler import Chunk, Scheduler, Sequence


def sequence(name: str, prompt: int, answer: int) -> Sequence:
    return Sequence(name, None, list(range(prompt)), prompt + answer)  # type: ignore[arg-type]


def told(name: str, tokens: list[int], answer: int, block: int) -> Sequence:
    return Sequence(name, None, list(tokens), len(tokens) + answer, keys=prefix_keys(tokens, [], block))  # type: ignore[arg-type]


class Memory:
    """What a device would hold: the token whose key and value lie in each place of each block."""

    def __init__(self, pool: BlockPool) -> None:
        self.size = pool.block_tokens
        self.places: list[list[int | None]] = [[None] * pool.block_tokens for _ in range(pool.blocks)]

    def run(self, chunks: list[Chunk]) -> None:
        for c in chunks:
            if c.copy is not None:
                self.places[c.copy.target][: c.copy.tokens] = self.places[c.copy.source][: c.copy.tokens]
        for c in chunks:
            s = c.sequence
            for i in range(c.start, c.start + c.length):
                self.places[s.blocks[i // self.size]][i % self.size] = s.tokens[i]
        for c in chunks:
            held = [self.places[c.sequence.blocks[i // self.size]][i % self.size] for i in range(c.start + c.length)]
            assert held == c.sequence.tokens[: c.start + c.length], "a sequence reads what is not its own past"

    def run_ahead(self, chunks: list[Chunk], blocks: list[list[int]], ended: list[bool]) -> None:
        """A step that was launched before it was known which sequences had ended; of those it writes anything."""
        for c, held, over in zip(chunks, blocks, ended, strict=True):
            place = held[c.start // self.size], c.start % self.size
            self.places[place[0]][place[1]] = None if over else c.sequence.tokens[c.start]


def check_step(scheduler: Scheduler, chunks: list[Chunk]) -> None:
    assert sum(c.length for c in chunks) <= scheduler.step_tokens
    assert len({c.sequence.request_id for c in chunks}) == len(chunks) <= scheduler.max_sequences
    lengths = [c.length == 1 for c in chunks]
    assert lengths == sorted(lengths, reverse=True), "chunks of one token come first"
    pool = scheduler.pool
    for c in chunks:
        assert c.length >= 1
        assert c.start == c.sequence.computed
        assert c.start + c.length <= len(c.sequence.blocks) * pool.block_tokens
        written = c.sequence.blocks[c.start // pool.block_tokens :]
        others = [b for s in scheduler.running if s is not c.sequence for b in s.blocks]
        assert not set(written) & set(others), "a block that is written has one owner"
    owned = {b for s in scheduler.running for b in s.blocks}
    assert len(owned) + pool.free == pool.blocks, "no block is lost"
    assert all(not s.blocks and s.computed == 0 for s in scheduler.waiting)


@given(
    seed=st.integers(0, 2**32),
    blocks=st.integers(3, 24),
    block=st.sampled_from([1, 4, 16, 48]),
    most=st.integers(1, 6),
    remembered=st.sampled_from([0, 1, 5, None]),
)
@settings(max_examples=5_000 if os.environ.get("ZELLIGE_TEST_LONG") else 500, deadline=None)
def test_every_request_ends_once_whatever_arrives(
    seed: int, blocks: int, block: int, most: int, remembered: int | None
) -> None:
    """About 20 arrivals an example; prompts begin alike often, so that beginnings are shared, copied and waited for."""
    rng = random.Random(seed)
    pool = BlockPool(blocks, block, remembered)
    scheduler, memory = Scheduler(pool, most, step_tokens=most + rng.randrange(3 * block + 8)), Memory(pool)
    texts = [[rng.randrange(1000) for _ in range(blocks * block)] for _ in range(rng.randint(1, 3))]
    coming = []
    for i in range(rng.randrange(1, 40)):
        length = rng.randint(1, blocks * block)
        alike = rng.randint(0, length)
        tokens = rng.choice(texts)[:alike] + [rng.randrange(1000) for _ in range(length - alike)]
        coming.append(told(str(i), tokens, rng.randint(0, min(blocks * block - length, 40)), block))
    left = {s.request_id: s for s in coming}
    ended: list[str] = []
    for _ in range(20_000):
        while coming and rng.random() < 0.4:
            scheduler.add(coming.pop())
        if left and rng.random() < 0.02:
            victim = rng.choice(list(left.values()))
            if victim not in coming:
                scheduler.remove(victim, spoiled=rng.random() < 0.5)
                ended.append(left.pop(victim.request_id).request_id)
        chunks = scheduler.plan()
        check_step(scheduler, chunks)
        assert chunks or scheduler.idle, "work was left and none was planned"
        memory.run(chunks)
        while chunks:
            ahead = plan_ahead(scheduler, chunks) if rng.random() < 0.6 else []
            held = [list(c.sequence.blocks) for c in ahead]
            for c in chunks:
                scheduler.computed(c)
            for c in [c for c in chunks if c.ends_sequence]:
                if len(c.sequence.tokens) >= c.sequence.limit or rng.random() < 0.1:
                    scheduler.remove(c.sequence)
                    ended.append(left.pop(c.sequence.request_id).request_id)
                else:
                    c.sequence.tokens.append(rng.randrange(1000))
            over = [c.sequence.request_id not in left for c in ahead]
            memory.run_ahead(ahead, held, over)
            chunks = [c for c, gone in zip(ahead, over, strict=True) if not gone]
            if chunks:
                check_step(scheduler, chunks)
            memory.run(chunks)
        if not left:
            break
    assert not left, "a request never ended"
    assert len(ended) == len(set(ended))
    assert scheduler.idle
    assert scheduler.pool.free == blocks
    assert pool.take(blocks) == list(range(blocks))


def plan_ahead(scheduler: Scheduler, chunks: list[Chunk]) -> list[Chunk]:
    """The step behind ``chunks``, as the engine launches it: of those that cannot end by their length."""
    going = [c.sequence for c in chunks if len(c.sequence.tokens) + 1 < c.sequence.limit]
    if not going or not all(c.ends_sequence for c in chunks):
        return []
    return scheduler.plan_ahead(going) or []


def finish(scheduler: Scheduler, one: Sequence) -> list[Chunk]:
    """All chunks of one sequence whose answer is a single token."""
    scheduler.add(one)
    chunks = []
    while one.pending:
        chunks += (planned := scheduler.plan())
        for c in planned:
            scheduler.computed(c)
    scheduler.remove(one)
    return chunks


def test_a_prompt_that_begins_as_one_before_shares_whole_blocks_and_copies_the_rest() -> None:
    scheduler = Scheduler(BlockPool(16, 32), max_sequences=4, step_tokens=512)
    text = list(range(100))
    finish(scheduler, told("first", text, 1, 32))
    (chunk,) = finish(scheduler, told("second", [*text[:90], 7, 7, 7], 1, 32))
    # 90 equal tokens are two blocks of 32 and one unit of 16.
    assert (chunk.start, chunk.length) == (80, 13)
    assert chunk.copy is not None
    assert chunk.copy.tokens == 16
    assert (scheduler.asked_tokens, scheduler.reused_tokens) == (193, 80)


def test_the_same_prompt_again_computes_its_last_token_only_past_the_last_unit() -> None:
    scheduler = Scheduler(BlockPool(16, 32), max_sequences=4, step_tokens=512)
    finish(scheduler, told("first", list(range(64)), 1, 32))
    (chunk,) = finish(scheduler, told("again", list(range(64)), 1, 32))
    assert (chunk.start, chunk.length) == (48, 16)


def test_a_beginning_that_is_being_computed_is_waited_for_and_others_go_ahead() -> None:
    scheduler = Scheduler(BlockPool(32, 32), max_sequences=8, step_tokens=512)
    a, b, other = told("a", list(range(40)), 1, 32), told("b", list(range(40)), 1, 32), told("c", [9] * 40, 1, 32)
    for s in (a, b, other):
        scheduler.add(s)
    first = scheduler.plan()
    assert [c.sequence for c in first] == [a, other]
    for c in first:
        scheduler.computed(c)
        scheduler.remove(c.sequence)
    (second,) = scheduler.plan()
    assert (second.sequence, second.start) == (b, 32)


def test_what_a_spoiled_sequence_computed_is_not_used_again() -> None:
    scheduler = Scheduler(BlockPool(16, 32), max_sequences=4, step_tokens=512)
    bad = told("bad", list(range(64)), 1, 32)
    scheduler.add(bad)
    for c in scheduler.plan():
        scheduler.computed(c)
    scheduler.remove(bad, spoiled=True)
    (chunk,) = finish(scheduler, told("again", list(range(64)), 1, 32))
    assert chunk.start == 0


@dataclass(frozen=True)
class Shown:
    start: int
    tokens: int
    key: str


def test_another_image_of_the_same_size_is_another_beginning() -> None:
    tokens = [1] * 8 + [5] * 40 + [2] * 16
    mine, same, other = (prefix_keys(tokens, [Shown(8, 40, k)], 16) for k in ("a", "a", "b"))  # type: ignore[list-item]
    assert mine == same
    assert len(mine) == 4
    assert not set(mine) & set(other)
    moved = prefix_keys(tokens, [Shown(9, 40, "a")], 16)  # type: ignore[list-item]
    assert not set(mine) & set(moved)


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


def test_a_step_is_planned_ahead_only_where_nobody_waits_and_blocks_are_free() -> None:
    scheduler = Scheduler(BlockPool(3, 2), max_sequences=2, step_tokens=8)
    one, other = sequence("one", 2, 4), sequence("other", 1, 4)
    scheduler.add(one)
    scheduler.plan()
    (chunk,) = scheduler.plan_ahead([one]) or []
    assert (chunk.start, chunk.length, len(one.blocks)) == (2, 1, 2)
    scheduler.add(other)
    assert scheduler.plan_ahead([one]) is None, "another waits to join"
    scheduler.computed(Chunk(one, 0, 2))
    one.tokens.append(7)
    scheduler.plan()
    assert scheduler.plan_ahead([one]) is None, "it would leave out a sequence that runs"
    one.tokens.append(7)
    assert scheduler.plan_ahead([one, other]) is None, "no block is free for the fifth token"
    assert len(one.blocks) + len(other.blocks) + scheduler.pool.free == 3
