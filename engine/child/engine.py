"""The engine in a process of its own, which may die: of what it had in hand only the guilty request fails.

``engine/child/keeper.py`` says how.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

from zellige.engine.api import Answer, Delta, EngineError, EngineStats, ModelIdentity, Request, RunMeter
from zellige.engine.child.keeper import Keeper
from zellige.engine.child.wire import Close, Setup


class ProcessEngine:
    """Implements ``engine.api.Engine``. Callers hand in requests; a thread hears the process."""

    def __init__(self, setup: Setup) -> None:
        """Start the process and wait for its model; raises what ``LocalEngine.load`` raises, and EngineError."""
        self._keeper = Keeper(setup)
        self._hand = self._keeper.hand
        self._keeper.start()

    async def answer(self, request: Request) -> Answer:
        """The whole answer; raises RequestRejected, NonFiniteLogits, RequestFatal or EngineError."""
        async for delta in self._run(request, streams=False):
            if delta.answer is not None:
                return delta.answer
        raise EngineError("the engine ended without an answer")

    def stream(self, request: Request) -> AsyncIterator[Delta]:
        """The answer piece by piece, never half a character; the last delta carries the whole."""
        return self._run(request, streams=True)

    async def meter(self, run_id: str) -> RunMeter:
        """What the run had of all processes. One that died unheard leaves out its last fifth of a second."""
        await asyncio.wrap_future(self._hand.ask_about(run_id))
        return self._keeper.meter(run_id)

    async def identity(self) -> ModelIdentity:
        return self._keeper.identity

    def stats(self) -> EngineStats:
        """What the process said last."""
        stats = replace(self._keeper.stats, failure=self._hand.failure, pause=self._hand.pause)
        return stats if stats.pause is None else replace(stats, running=0, waiting=len(self._hand))

    async def close(self) -> None:
        """End the process; requests on their way fail with EngineError."""
        starting = self._hand.close()
        child = self._hand.child
        child.send(Close())
        await asyncio.to_thread(child.end if starting else child.close)
        await asyncio.to_thread(self._keeper.join)

    async def _run(self, request: Request, *, streams: bool) -> AsyncIterator[Delta]:
        job = self._hand.take_in(request, streams=streams)
        try:
            async for delta in job.caller.pieces():
                yield delta
        finally:
            self._hand.give_back(job)
