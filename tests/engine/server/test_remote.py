"""An engine asked through the server is the same engine: what RemoteEngine is told is what LocalEngine says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from server_harness import FakeEngine, LiveServer, card

from zellige.engine.api import (
    EngineError,
    Grammar,
    NonFiniteLogits,
    Request,
    RequestFatal,
    RequestRejected,
    Sampling,
    ask,
)
from zellige.engine.connect import open_engine

PICTURE = np.asarray(card())
DRAWN = Sampling(
    max_tokens=12, min_tokens=3, temperature=1.2, seed=3, top_k=20, top_p=0.95, min_p=0.01, stop=("zz",), logprobs=2,
    presence_penalty=0.5, frequency_penalty=-0.5, logit_bias=((5, 1.0),), repetition_stop=True,
)  # fmt: skip


def through(server: LiveServer, work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    """Do ``work`` with a client of the server."""

    async def run() -> None:
        remote = open_engine(f"{server.url}/v1")
        try:
            await work(remote)
        finally:
            await remote.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "request_",
    [
        ask("Describe the image.", PICTURE),
        ask("Describe the image.", PICTURE, PICTURE[:, ::-1], sampling=DRAWN),
        replace(ask("Describe the image.", PICTURE), grammar=Grammar("choice", choices=("yes", "no"))),
        replace(ask("Describe the image.", PICTURE), grammar=Grammar("regex", "[a-z]{3}")),
    ],
)
def test_answers_are_the_engines_own_whole_and_streamed(demo: LiveServer, request_: Request) -> None:
    async def work(remote: Any) -> None:
        own = await demo.engine.answer(request_)
        for answer in (
            await remote.answer(replace(request_, request_id="a")),
            [d async for d in remote.stream(replace(request_, request_id="b"))][-1].answer,
        ):
            assert (answer.text, answer.token_ids, answer.usage) == (own.text, own.token_ids, own.usage)
            assert answer.finish_reason == own.finish_reason
            # What is asked again finds its beginning in the cache, and shorter chunks round in other places.
            assert answer.mean_logprob == pytest.approx(own.mean_logprob, abs=1e-5)
            assert [t.logprob for t in answer.logprobs] == pytest.approx([t.logprob for t in own.logprobs], abs=1e-4)

    through(demo, work)


def test_the_model_and_the_run_are_told_as_they_are(demo: LiveServer) -> None:
    async def work(remote: Any) -> None:
        assert await remote.identity() == await demo.engine.identity()
        await remote.answer(ask("Describe the image.", PICTURE, run_id="through"))
        assert await remote.meter("through") == await demo.engine.meter("through")

    through(demo, work)


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (RequestRejected("too long"), RequestRejected),
        (NonFiniteLogits("NaN in layer 3"), NonFiniteLogits),
        (RequestFatal("rms_norm"), RequestFatal),
    ],
)
def test_final_errors_keep_their_kind(fake: LiveServer, error: EngineError, seen: type[EngineError]) -> None:
    def fail(request: Request) -> None:
        raise error

    fake.engine.before = fail

    async def work(remote: Any) -> None:
        with pytest.raises(seen, match=str(error)):
            await remote.answer(ask("?"))

    through(fake, work)
    assert len(fake.engine.seen) == 1  # not sent again


def test_an_engine_that_fails_once_is_asked_again(fake: LiveServer) -> None:
    def fail_once(request: Request) -> None:
        if len(fake.engine.seen) == 1:
            raise EngineError("out of luck")

    fake.engine.before = fail_once

    async def work(remote: Any) -> None:
        assert (await remote.answer(ask("?"))).text == "one two three"

    through(fake, work)


def test_a_task_that_is_cancelled_frees_the_engine() -> None:
    engine = FakeEngine(words=("word ",) * 1000, gap_s=0.05)

    async def work(remote: Any) -> None:
        task = asyncio.create_task(remote.answer(ask("?")))
        while not engine.answering:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(5):
            while engine.answering:
                await asyncio.sleep(0.01)

    with LiveServer(lambda: engine) as server:
        through(server, work)
