"""Which tokens of which sequences are computed next. Pure Python: no torch, no clock, no thread."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zellige.engine.cache import BlockPool

if TYPE_CHECKING:
    from zellige.engine.processor import Prompt


@dataclass(eq=False)
class Sequence:
    """One request as the scheduler sees it.

    ``tokens`` are the prompt's and the generated ones; the first ``computed`` of them have their keys and values in
    ``blocks``; there will never be more than ``limit``.
    """

    request_id: str
    prompt: Prompt
    tokens: list[int]
    limit: int
    computed: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def pending(self) -> int:
        """Tokens that are not computed yet: 1 while generating."""
        return len(self.tokens) - self.computed


@dataclass(frozen=True, eq=False)
class Chunk:
    """``length`` tokens of a sequence from ``start`` on, to be computed in this step."""

    sequence: Sequence
    start: int
    length: int

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
    """

    def __init__(self, pool: BlockPool, max_sequences: int, step_tokens: int) -> None:
        if step_tokens < max_sequences:
            raise ValueError(f"a step of {step_tokens} tokens cannot hold {max_sequences} generating sequences")
        self.pool, self.max_sequences, self.step_tokens = pool, max_sequences, step_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

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

    def remove(self, sequence: Sequence) -> None:
        """A sequence ended, failed or was cancelled: it leaves and its blocks are free. Harmless when already gone."""
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
        for sequence in sorted(self.running, key=lambda s: s.pending > 1):
            if not budget:
                break
            if sequence not in self.running:  # gave way to one before it
                continue
            length = min(sequence.pending, budget)
            if not self._make_room(sequence, sequence.computed + length, planned):
                continue
            chunks.append(Chunk(sequence, sequence.computed, length))
            planned.add(sequence.request_id)
            budget -= length
        while budget and self.waiting and len(self.running) < self.max_sequences:
            sequence = self.waiting[0]
            # All of its tokens and the next one must fit, or it would be the first to give way again.
            if self.pool.needed(len(sequence.tokens) + 1) > self.pool.free and self.running:
                break
            self.waiting.popleft()
            self.running.append(sequence)
            length = min(sequence.pending, budget)
            sequence.blocks += self.pool.take(self.pool.needed(length))
            chunks.append(Chunk(sequence, 0, length))
            budget -= length
        # By first block among the generating: sequences that are neighbours in the cache are read as one piece.
        return sorted(chunks, key=lambda c: (c.length > 1, c.sequence.blocks[0]))

    def computed(self, chunk: Chunk) -> None:
        """The chunk's keys and values are in the cache."""
        chunk.sequence.computed = chunk.start + chunk.length

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
        self.running.remove(sequence)
        self._release(sequence)
        self.waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.pool.give_back(sequence.blocks)
        sequence.blocks = []
        sequence.computed = 0
