"""Copies: images of equal bytes are asked about once, and each item has the answer in a row of its own."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import replace

from zellige.engine.api import Usage
from zellige.tasks.merge import Merged

#: What is the same question about the same image: sha256 of the encoded bytes, page, question_id, its text.
Key = tuple[str, int | None, str, str]
#: Answers that are kept for copies to come, each tile's counted.
MOST_KEPT = 50_000


class Answers:
    """The answers of one run in this process, by what was asked; for one event loop at a time.

    What is in flight is shared whatever comes of it; of what is done only good answers are kept, the latest used.
    """

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._in_flight: dict[Key, asyncio.Future[Merged]] = {}
        self._kept: OrderedDict[Key, Merged] = OrderedDict()
        self._most, self._count = most, 0

    def of(self, key: Key) -> asyncio.Future[Merged] | None:
        """The answer there is or will be. None: nobody has asked, and the caller does now, and calls ``settle``."""
        if key in self._in_flight:
            return self._in_flight[key]
        future: asyncio.Future[Merged] = asyncio.get_running_loop().create_future()
        if key in self._kept:
            self._kept.move_to_end(key)
            future.set_result(self._kept[key])
            return future
        self._in_flight[key] = future
        return None

    def settle(self, key: Key, result: Merged | Exception | None) -> None:
        """What came of it: an answer, an error, or nothing (the asking was given up). The first word counts."""
        future = self._in_flight.pop(key, None)
        if future is None:
            return
        if result is None:
            future.cancel()
        elif isinstance(result, Exception):
            future.set_exception(result)
            future.exception()  # looked at, so that nobody is told where no copy waits for it
        else:
            future.set_result(result)
            if result.error_kind is None:
                self._keep(key, result)

    def _keep(self, key: Key, merged: Merged) -> None:
        self._kept[key] = merged
        self._count += _weight(merged)
        while self._count > self._most and self._kept:
            self._count -= _weight(self._kept.popitem(last=False)[1])


def copied(merged: Merged) -> Merged:
    """The answer as the row of a copy has it: nothing was asked for it, so it cost no tokens, time or attempts."""
    return replace(merged, usage=Usage(), engine_s=0.0, attempts=0)


def _weight(merged: Merged) -> int:
    return 1 + len(merged.tiles)
