"""From engine requests to a reply: all answers at once, or their pieces as they come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

from zellige.engine.api import Answer, Delta, Engine, EngineError, Request
from zellige.engine.server.disconnect import closing
from zellige.engine.server.errors import of_engine
from zellige.engine.server.metrics import Metrics
from zellige.engine.server.replies import DONE, Reply, event


async def answers_of(engine: Engine, requests: Sequence[Request]) -> list[Answer]:
    """Every answer, in order; when one fails or the caller is cancelled, the others are cancelled too."""
    tasks = [asyncio.create_task(engine.answer(request)) for request in requests]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def events_of(
    engine: Engine,
    requests: Sequence[Request],
    reply: Reply,
    metrics: Metrics,
    answered: Callable[[Answer], None],
    prompts: int,
    *,
    tells_usage: bool,
) -> AsyncGenerator[bytes, None]:
    """The events of a streamed reply, one choice a request.

    An error before the first event is raised as it is; a later one is the last event. ``answered`` is told of each
    answer. The requests share ``prompts`` prompts evenly; ``tells_usage``: whether an event at the end counts tokens.
    """
    answers: dict[int, Answer] = {}
    last: dict[int, float] = {}
    try:
        async with closing(merged([engine.stream(request) for request in requests])) as pieces:
            async for index, delta in pieces:
                now = time.perf_counter()
                out = b"" if index in last else reply.begin(index)
                if index in last:
                    metrics.token_gap(now - last[index])
                last[index] = now
                if delta.text or delta.logprobs:
                    out += reply.piece(index, delta)
                if delta.answer is not None:
                    answers[index] = delta.answer
                    answered(delta.answer)
                    out += reply.end(index, delta.answer)
                if out:
                    yield out
    except EngineError as error:
        if not last:
            raise
        failure = of_engine(error)
        metrics.failed(failure.status)
        yield event(failure.body)
        return
    except (asyncio.CancelledError, GeneratorExit):
        metrics.cancelled()
        raise
    in_order = [answers[i] for i in sorted(answers)]
    metrics.prompts_answered(in_order, prompts)
    if tells_usage:
        yield reply.usage(in_order, prompts)
    yield DONE


async def merged(streams: Sequence[AsyncIterator[Delta]]) -> AsyncGenerator[tuple[int, Delta], None]:
    """Deltas of all streams as they come, with the stream's number; raises what any of them raises."""
    if len(streams) == 1:
        async with closing(streams[0]) as only:
            async for delta in only:
                yield 0, delta
        return
    arrived: asyncio.Queue[tuple[int, Delta | Exception]] = asyncio.Queue()

    async def pump(index: int, stream: AsyncIterator[Delta]) -> None:
        try:
            async with closing(stream) as open_stream:
                async for delta in open_stream:
                    arrived.put_nowait((index, delta))
        except Exception as error:
            arrived.put_nowait((index, error))

    tasks = [asyncio.create_task(pump(i, stream)) for i, stream in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            index, item = await arrived.get()
            if isinstance(item, Exception):
                raise item
            left -= item.answer is not None
            yield index, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
