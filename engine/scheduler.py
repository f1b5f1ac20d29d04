"""Which tokens of which sequences are computed next. Pure Python: no torch, no clock, no thread."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from zellige.engine.cache import UNIT, BlockPool

if TYPE_CHECKING:
    from zellige.engine.processor import Prompt

#: Waiting sequences that a step looks at: some may wait for the beginning that another is computing.
_LOOK_AHEAD = 256


@dataclass(eq=False)
class Sequence:
    """One request as the scheduler sees it.

    ``tokens`` are the prompt's and the generated ones; the first ``computed`` of them have their keys and values in
    ``blocks``; there will never be more than ``limit``. ``keys`` name the prompt's beginnings (``cache.prefix_keys``).
    """

    request_id: str
    prompt: Prompt
    tokens: list[int]
    limit: int
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    keys: tuple[bytes, ...] = ()
    #: How many of ``keys`` the pool has been told.
    told: int = 0

    @property
    def pending(self) -> int:
        """Tokens that are not computed yet: 1 while generating."""
        return len(self.tokens) - self.computed


@dataclass(frozen=True)
class Copy:
    """The first ``tokens`` places of block ``source`` are copied to ``target`` before the step."""

    source: int
    target: int
    tokens: int


@dataclass(frozen=True, eq=False)
class Chunk:
    """``length`` tokens of a sequence from ``start`` on, to be computed in this step."""

    sequence: Sequence
    start: int
    length: int
    copy: Copy | None = None

    @property
    def ends_sequence(self) -> bool:
        """Whether the next token can be chosen from this chunk's last row."""
        return self.start + self.length == len(self.sequence.tokens)


class Scheduler:
    """Continuous batching over one block pool.

    A step holds at most ``step_tokens`` tokens of at most ``max_sequences`` sequences. Sequences that are generating go
    first, so that a long prompt delays nobody by more than a step; prompts fill what is left and may be cut anywhere.
    When blocks run out the youngest sequence that is not yet part of the step gives all of its blocks back and is
    computed again later (its tokens are kept). The order of arrival is kept, so every request ends.

    A prompt that begins as one computed before shares the blocks that are equal in full and copies what is equal of the
    next one. One whose beginning is being computed in this very step waits for it: the next step has it for nothing.
    """

    def __init__(self, pool: BlockPool, max_sequences: int, step_tokens: int) -> None:
        if step_tokens < max_sequences:
            raise ValueError(f"a step of {step_tokens} tokens cannot hold {max_sequences} generating sequences")
        self.pool, self.max_sequences, self.step_tokens = pool, max_sequences, step_tokens
        self._unit = min(UNIT, pool.block_tokens)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        #: Tokens of prompts that were begun, and those of them that had been computed before.
        self.asked_tokens = self.reused_tokens = 0
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; raises ValueError for one that the pool could never hold."""
        if self.pool.needed(sequence.limit) > self.pool.blocks:
            raise ValueError(f"{sequence.limit} tokens need more cache than the {self.capacity} tokens there are")
        self.waiting.append(sequence)

    @property
    def capacity(self) -> int:
        """Tokens that the whole pool holds."""
        return self.pool.blocks * self.pool.block_tokens

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def remove(self, sequence: Sequence, *, spoiled: bool = False) -> None:
        """A sequence ended, failed or was cancelled: it leaves and its blocks are free. Harmless when already gone.

        ``spoiled``: nothing that it computed is to be used for another.
        """
        if spoiled:
            for block in sequence.blocks:
                self.pool.forget(block)
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self._release(sequence)

    def plan(self) -> list[Chunk]:
        """The next step, chunks of one token first; blocks for all of its tokens are taken. [] when idle."""
        budget = self.step_tokens
        chunks: list[Chunk] = []
        planned: set[str] = set()
        before = self.preemptions
        for sequence in sorted(self.running, key=lambda s: s.pending > 1):
            if not budget:
                break
            if self.preemptions > before and sequence not in self.running:  # gave way to one before it
                continue
            length = min(sequence.pending, budget)
            if not self._make_room(sequence, sequence.computed + length, planned):
                continue
            chunks.append(Chunk(sequence, sequence.computed, length))
            planned.add(sequence.request_id)
            budget -= length
        chunks += self._admit(budget)
        # Among the generating those of one block by its number: neighbours in the cache are read as one piece.
        return sorted(chunks, key=lambda c: (c.length > 1, len(c.sequence.blocks) > 1, c.sequence.blocks[0]))

    def plan_ahead(self, sequences: list[Sequence]) -> list[Chunk] | None:
        """One token more of each of ``sequences``, all of whose tokens are being computed and the next ones chosen.

        None where others have a claim. What it takes of blocks goes back with the sequence, also where one has ended.
        """
        if self.waiting or len(sequences) != len(self.running):
            return None
        starts = [len(s.tokens) for s in sequences]
        missing = [self.pool.needed(at + 1) - len(s.blocks) for s, at in zip(sequences, starts, strict=True)]
        if sum(missing) > self.pool.free:
            return None
        for sequence, count in zip(sequences, missing, strict=True):
            if count > 0:
                sequence.blocks += self.pool.take(count)
        return [Chunk(s, at, 1) for s, at in zip(sequences, starts, strict=True)]

    def computed(self, chunk: Chunk) -> None:
        """The chunk's keys and values are in the cache."""
        sequence = chunk.sequence
        sequence.computed = chunk.start + chunk.length
        for i in range(sequence.told, min(sequence.computed // self._unit, len(sequence.keys))):
            self.pool.remember(sequence.keys[i], sequence.blocks[((i + 1) * self._unit - 1) // self.pool.block_tokens])
            sequence.told = i + 1

    def _admit(self, budget: int) -> list[Chunk]:
        """Chunks of waiting sequences that begin now, within ``budget`` tokens."""
        chunks: list[Chunk] = []
        coming: set[bytes] = set()
        held: list[int] = []
        for sequence in list(islice(self.waiting, _LOOK_AHEAD)):
            if not budget or len(self.running) >= self.max_sequences:
                break
            shared, source, known = self._known(sequence)
            if known < len(sequence.keys) and sequence.keys[known] in coming:
                continue
            # All of its tokens and the next one must fit, or it would be the first to give way again.
            if not self._fits(sequence, shared, source):
                source, known = None, len(shared) * self.pool.block_tokens // self._unit
                if self.running and not self._fits(sequence, shared, None):
                    break
            self.waiting.remove(sequence)
            self.running.append(sequence)
            self.pool.share(shared)
            if source is not None:
                self.pool.share([source])  # nobody may overwrite it before it is copied
                held.append(source)
            start = known * self._unit
            length = min(len(sequence.tokens) - start, budget)
            sequence.blocks = shared + self.pool.take(self.pool.needed(start + length) - len(shared))
            sequence.computed, sequence.told = start, known
            copied = start - len(shared) * self.pool.block_tokens
            copy = Copy(source, sequence.blocks[len(shared)], copied) if source is not None else None
            chunks.append(Chunk(sequence, start, length, copy))
            coming.update(sequence.keys[known:])
            budget -= length
            self.asked_tokens += len(sequence.tokens)
            self.reused_tokens += start
        self.pool.give_back(held)
        return chunks

    def _fits(self, sequence: Sequence, shared: list[int], source: int | None) -> bool:
        kept = shared if source is None else [*shared, source]
        free = self.pool.free - sum(not self.pool.owned(b) for b in kept)
        return self.pool.needed(len(sequence.tokens) + 1) - len(shared) <= free

    def _known(self, sequence: Sequence) -> tuple[list[int], int | None, int]:
        """Blocks that hold a sequence's beginning in full, the one that goes on with it, and how many keys that is."""
        keys, unit = sequence.keys, self._unit
        # The last token is computed in any case: the next one is chosen from it.
        most = min(len(keys), (len(sequence.tokens) - 1) // unit)
        whole = self.pool.block_tokens // unit
        shared: list[int] = []
        while (len(shared) + 1) * whole <= most:
            block = self.pool.find(keys[(len(shared) + 1) * whole - 1])
            if block is None:
                break
            shared.append(block)
        done = len(shared) * whole
        for known in range(min(done + whole - 1, most), done, -1):
            if (source := self.pool.find(keys[known - 1])) is not None:
                return shared, source, known
        return shared, None, done

    def _make_room(self, sequence: Sequence, tokens: int, planned: set[str]) -> bool:
        """Blocks for the sequence's first ``tokens`` tokens; False where it had to give way itself."""
        missing = self.pool.needed(tokens) - len(sequence.blocks)
        while missing > self.pool.free:
            victim = next(s for s in reversed(self.running) if s.request_id not in planned)
            self._preempt(victim)
            if victim is sequence:
                return False
        if missing > 0:
            sequence.blocks += self.pool.take(missing)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        self.running.remove(sequence)
        self._release(sequence)
        self.waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.pool.give_back(sequence.blocks)
        sequence.blocks = []
        sequence.computed = sequence.told = 0
