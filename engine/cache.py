"""Who owns which block of cache. Knows nothing of attention, and needs no torch."""

from __future__ import annotations

import heapq
from dataclasses import dataclass


@dataclass(frozen=True)
class FullKV:
    """A layer that keeps every key and value: ``2 · kv_heads · head_dim`` numbers a token."""

    kv_heads: int
    head_dim: int


class OutOfBlocksError(Exception):
    """The pool holds fewer free blocks than were asked for."""


class BlockPool:
    """Hands out numbered blocks with reference counts. A block is free when its last owner gives it back."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        if blocks < 1 or block_tokens < 1:
            raise ValueError(f"a pool of {blocks} blocks of {block_tokens} tokens holds nothing")
        self.blocks, self.block_tokens = blocks, block_tokens
        self._owners = [0] * blocks
        # A heap: the lowest block goes first, so that what is in use lies close together.
        self._free = list(range(blocks))

    @property
    def free(self) -> int:
        """Blocks that nobody owns."""
        return len(self._free)

    def needed(self, tokens: int) -> int:
        """Blocks that hold ``tokens`` tokens."""
        return -(-tokens // self.block_tokens)

    def take(self, count: int) -> list[int]:
        """``count`` blocks, each with one owner; raises OutOfBlocksError and takes none where there are fewer."""
        if count > len(self._free):
            raise OutOfBlocksError(f"{count} blocks wanted, {len(self._free)} free")
        taken = [heapq.heappop(self._free) for _ in range(count)]
        for block in taken:
            self._owners[block] = 1
        return taken

    def give_back(self, blocks: list[int]) -> None:
        """One owner less for each block; raises ValueError for a block that nobody owns."""
        for block in blocks:
            if self._owners[block] < 1:
                raise ValueError(f"block {block} was given back twice")
            self._owners[block] -= 1
            if not self._owners[block]:
                heapq.heappush(self._free, block)
