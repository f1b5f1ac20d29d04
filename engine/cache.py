"""Who owns which block of cache, and which beginnings of prompts lie in which. Knows nothing of attention or torch."""

from __future__ import annotations

import hashlib
import heapq
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zellige.engine.processor import PromptImage


@dataclass(frozen=True)
class FullKV:
    """A layer that keeps every key and value: ``2 · kv_heads · head_dim`` numbers a token."""

    kv_heads: int
    head_dim: int


class OutOfBlocksError(Exception):
    """The pool holds fewer free blocks than were asked for."""


#: Beginnings of prompts are told apart at every so many tokens.
UNIT = 16


def prefix_keys(tokens: Sequence[int], images: Iterable[PromptImage], block_tokens: int) -> tuple[bytes, ...]:
    """A key for the beginnings of ``unit``, 2 · ``unit``, ... tokens: a hash chain over token ids and image contents.

    An image's places all hold the same token id, so that its content key and where it begins are hashed too: the same
    words about another picture of the same size are another beginning.
    """
    unit = min(UNIT, block_tokens)
    key, keys = b"", []
    spans = [(i.start, i.start + i.tokens, i.key) for i in images]
    for end in range(unit, len(tokens) + 1, unit):
        seen = [(begin - end, name) for begin, last, name in spans if begin < end and last > end - unit]
        key = hashlib.blake2b(repr((key, tokens[end - unit : end], seen)).encode(), digest_size=16).digest()
        keys.append(key)
    return tuple(keys)


class BlockPool:
    """Hands out numbered blocks with reference counts. A block is free when its last owner gives it back.

    A free block that holds the beginning of a prompt is remembered, up to ``remembered`` of them (None: all), until the
    block is needed; the one unused longest goes first.
    """

    def __init__(self, blocks: int, block_tokens: int, remembered: int | None = None) -> None:
        if blocks < 1 or block_tokens < 1:
            raise ValueError(f"a pool of {blocks} blocks of {block_tokens} tokens holds nothing")
        self.blocks, self.block_tokens = blocks, block_tokens
        self._most_remembered = blocks if remembered is None else remembered
        self._owners = [0] * blocks
        # A heap: the lowest block goes first, so that what is in use lies close together.
        self._free = list(range(blocks))
        self._remembered: OrderedDict[int, None] = OrderedDict()
        self._holds: dict[bytes, int] = {}
        self._keys: dict[int, list[bytes]] = {}

    @property
    def free(self) -> int:
        """Blocks that nobody owns, remembered ones included."""
        return len(self._free) + len(self._remembered)

    def owned(self, block: int) -> bool:
        """Whether a sequence owns the block; a remembered one is free."""
        return self._owners[block] > 0

    def needed(self, tokens: int) -> int:
        """Blocks that hold ``tokens`` tokens."""
        return -(-tokens // self.block_tokens)

    def take(self, count: int) -> list[int]:
        """``count`` blocks, each with one owner; raises OutOfBlocksError and takes none where there are fewer."""
        if count > self.free:
            raise OutOfBlocksError(f"{count} blocks wanted, {self.free} free")
        while len(self._free) < count:
            self._forget_oldest()
        taken = [heapq.heappop(self._free) for _ in range(count)]
        for block in taken:
            self._owners[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """One owner more for each block, which is owned or remembered."""
        for block in blocks:
            self._remembered.pop(block, None)
            self._owners[block] += 1

    def give_back(self, blocks: Iterable[int]) -> None:
        """One owner less for each block; raises ValueError for a block that nobody owns."""
        for block in blocks:
            if self._owners[block] < 1:
                raise ValueError(f"block {block} was given back twice")
            self._owners[block] -= 1
            if self._owners[block]:
                continue
            if block in self._keys:
                self._remembered[block] = None
            else:
                heapq.heappush(self._free, block)
        while len(self._remembered) > self._most_remembered:
            self._forget_oldest()

    def remember(self, key: bytes, block: int) -> None:
        """An owned ``block`` holds the end of the beginning that ``key`` names; the first block that does is kept."""
        if self._most_remembered and key not in self._holds:
            self._holds[key] = block
            self._keys.setdefault(block, []).append(key)

    def find(self, key: bytes) -> int | None:
        """The block that holds the end of this beginning, None where there is none."""
        return self._holds.get(key)

    def forget(self, block: int) -> None:
        """What ``block`` holds is not to be used again."""
        for key in self._keys.pop(block, ()):
            del self._holds[key]
        if block in self._remembered:
            del self._remembered[block]
            heapq.heappush(self._free, block)

    def _forget_oldest(self) -> None:
        self.forget(next(iter(self._remembered)))
