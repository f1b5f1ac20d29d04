"""Work for a client ends when the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def unless_gone(http: Request, work: Coroutine[Any, Any, T]) -> T:
    """What ``work`` gives; cancelled, with ClientGone, when the client closes first. The body must have been read."""
    task, watcher = asyncio.create_task(work), asyncio.create_task(_gone(http))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        # Waited for: when this returns, the request's blocks have been given up.
        for each in (task, watcher):
            each.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _gone(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def closing(stream: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Ends a generator when its reader leaves, and not when memory is swept."""
    try:
        yield stream
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


class EventStream(StreamingResponse):
    """Server-sent events: ``first``, then the others. However it ends, they are closed and ``leave`` is called."""

    def __init__(self, first: bytes, events: AsyncGenerator[bytes, None], leave: Callable[[], None]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(self._all(first, events), media_type="text/event-stream", headers=headers)
        self._events, self._leave = events, leave

    @staticmethod
    async def _all(first: bytes, events: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
        yield first
        async for event in events:
            yield event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            try:
                await self._events.aclose()
            finally:
                self._leave()
