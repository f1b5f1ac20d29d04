"""Who waits for an answer: an event loop on one side, the thread that computes on the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from zellige.engine.api import Delta, EngineError


class Caller:
    """Made on the loop that waits; ``send`` is for other threads."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._out: asyncio.Queue[Delta | EngineError] = asyncio.Queue()

    def send(self, item: Delta | EngineError) -> None:
        """Hand over the next piece, or why there is no more."""
        # The event loop may have ended with its flow; then nobody waits for this answer.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._out.put_nowait, item)

    async def pieces(self) -> AsyncIterator[Delta]:
        """What was sent, up to the piece with the whole answer; raises the error that was sent."""
        while True:
            item = await self._out.get()
            if isinstance(item, EngineError):
                raise item
            yield item
            if item.answer is not None:
                return
