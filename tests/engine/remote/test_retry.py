"""When a request is sent again, how long is waited, and when it is given up."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from email.utils import formatdate
from typing import Any

import pytest
from remotes import QUICK, remote
from standin import Asked, Behaviour, StandIn, answer

from zellige.engine.api import EngineUnavailable, RequestRejected, ask
from zellige.engine.remote.errors import EngineBusyError, TryAgainError
from zellige.engine.remote.retry import Tries, retry_after_s


def status(code: int, **headers: str) -> Behaviour:
    async def reply(asked: Asked) -> None:
        await asked.reply(code, {"error": {"message": f"it is {code}"}}, **headers)

    return reply


async def cut(asked: Asked) -> None:
    asked.cut()


async def cut_halfway(asked: Asked) -> None:
    await asked.send(b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"choices": [')
    asked.cut()


async def nonsense(asked: Asked) -> None:
    await asked.reply(200, b"<html>a proxy's page</html>")


async def no_completion(asked: Asked) -> None:
    await asked.reply(200, {"choices": [{"message": None}]})


async def answer_and_close(asked: Asked) -> None:
    """Keeps the promise of an open connection for one answer only."""
    await answer(asked)
    asked.writer.close()


@pytest.mark.parametrize(
    "trouble",
    [
        status(429), status(500), status(502), status(503), status(504), cut, cut_halfway, nonsense, no_completion,
    ],
    ids=["429", "500", "502", "503", "504", "cut", "cut halfway", "no JSON", "no completion"],
)  # fmt: skip
def test_trouble_that_passes_costs_a_second_try_and_no_answer(go: Any, trouble: Behaviour) -> None:
    async def work() -> tuple[str, int]:
        server = await StandIn([trouble, trouble]).start()
        async with remote(server) as engine:
            return (await engine.answer(ask("x"))).text, len(server.asked)

    assert go(work()) == ("you said x", 3)


@pytest.mark.parametrize("trouble", [status(500), cut, nonsense], ids=["500", "cut", "no JSON"])
def test_a_request_that_always_fails_is_given_up_after_so_many_tries(go: Any, trouble: Behaviour) -> None:
    async def work() -> int:
        server = await StandIn(otherwise=trouble).start()
        async with remote(server, tries=3) as engine:
            with pytest.raises(EngineUnavailable, match="given up after 3 tries"):
                await engine.answer(ask("x"))
        return len(server.asked)

    assert go(work()) == 3


def test_a_busy_engine_is_waited_for_longer_than_any_number_of_tries(go: Any) -> None:
    async def work() -> int:
        server = await StandIn([status(429)] * 12).start()
        async with remote(server, tries=3) as engine:
            await engine.answer(ask("x"))
        return len(server.asked)

    assert go(work()) == 13


@pytest.mark.parametrize("code", [401, 403, 404])
def test_an_engine_that_lets_us_in_no_more_blames_no_request_and_is_not_asked_again(go: Any, code: int) -> None:
    async def work() -> int:
        server = await StandIn([status(code)]).start()
        async with remote(server) as engine:
            with pytest.raises(EngineUnavailable, match=f"it is {code}"):
                await engine.answer(ask("x"))
        return len(server.asked)

    assert go(work()) == 1


def test_retry_after_is_honoured(go: Any) -> None:
    async def work() -> tuple[float, int]:
        server = await StandIn([status(429, Retry_After="1")]).start()
        async with remote(server) as engine:
            await engine.identity()
            start = time.monotonic()
            # The second comes while the engine wants to be left alone, and waits without asking.
            first = asyncio.create_task(engine.answer(ask("x")))
            await asyncio.sleep(0.2)
            await engine.answer(ask("y"))
            await first
            return time.monotonic() - start, len(server.asked)

    seconds, times = go(work())
    assert 1.0 <= seconds < 9
    assert times == 3


def test_retry_after_longer_than_the_deadline_is_given_up_at_once(go: Any) -> None:
    async def work() -> float:
        server = await StandIn([status(429, Retry_After="3600")]).start()
        async with remote(server) as engine:
            start = time.monotonic()
            for _ in range(2):
                with pytest.raises(EngineUnavailable):
                    await engine.answer(ask("x"))
            assert len(server.asked) == 1
            return time.monotonic() - start

    assert go(work()) < 5


def test_a_busy_engine_leaves_the_work_to_the_others_meanwhile(go: Any) -> None:
    async def work() -> tuple[float, int]:
        busy, free = await StandIn(otherwise=status(429, Retry_After="9")).start(), await StandIn().start()
        async with remote(busy, free) as engine:
            await engine.identity()
            start = time.monotonic()
            await asyncio.gather(*(engine.answer(ask("x")) for _ in range(20)))
            return time.monotonic() - start, len(free.asked)

    seconds, answered = go(work())
    assert seconds < 8
    assert answered == 20


@pytest.mark.parametrize("slow", ["silent", "dribbling"])
def test_the_deadline_ends_a_request_that_is_never_answered(go: Any, slow: str) -> None:
    async def never(asked: Asked) -> None:
        if slow == "dribbling":
            await asked.begin_stream()
        for _ in range(400):
            if slow == "dribbling":
                await asked.send(b" ")
            await asyncio.sleep(0.01)

    async def work() -> float:
        server = await StandIn(otherwise=never).start()
        async with remote(server, deadline_s=0.3) as engine:
            await engine.identity()
            start = time.monotonic()
            with pytest.raises(EngineUnavailable, match="no whole answer within"):
                await engine.answer(ask("x"))
            return time.monotonic() - start

    assert 0.25 < go(work()) < 3.5


def test_connections_that_the_server_closes_between_requests_cost_nothing(go: Any) -> None:
    async def work() -> list[str]:
        server = await StandIn(otherwise=answer_and_close).start()
        async with remote(server) as engine:
            return [(await engine.answer(ask(f"{i}"))).text for i in range(30)]

    assert go(work()) == [f"you said {i}" for i in range(30)]


def test_no_answer_goes_to_another_request_and_none_is_lost_whatever_the_server_does(go: Any) -> None:
    luck = random.Random(5)
    troubles = [status(429), status(500), status(503), cut, cut_halfway, nonsense, answer_and_close]

    async def moody(asked: Asked) -> None:
        await asyncio.sleep(luck.random() * 0.01)
        await (luck.choice(troubles) if luck.random() < 0.3 else answer)(asked)

    async def work() -> list[str]:
        servers = [await StandIn(otherwise=moody).start() for _ in range(3)]
        async with remote(*servers, tries=50, unreachable_s=20, deadline_s=25) as engine:
            answers = await asyncio.gather(*(engine.answer(ask(f"number {i}")) for i in range(200)))
        return [a.text for a in answers]

    assert go(work()) == [f"you said number {i}" for i in range(200)]


def test_backoff_doubles_with_full_jitter_up_to_its_most(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, float]] = []
    monkeypatch.setattr(random, "uniform", lambda low, high: asked.append((low, high)) or high)
    tries = Tries(replace(QUICK, first_s=0.5, most_s=4.0, deadline_s=100.0))
    waits = [tries.wait_s(EngineBusyError("busy")) for _ in range(5)]
    assert waits == [0.5, 1.0, 2.0, 4.0, 4.0]
    assert all(low == 0 for low, _ in asked)
    assert tries.wait_s(EngineBusyError("busy"), free_in_s=7.0) == 11.0


def test_a_wait_over_the_deadline_is_not_begun() -> None:
    with pytest.raises(EngineUnavailable, match="not answered within 10 s: why"):
        Tries(QUICK).wait_s(TryAgainError("why"), free_in_s=11.0)


def test_retry_after_is_read_as_seconds_or_as_a_date() -> None:
    assert retry_after_s("7") == 7.0
    assert retry_after_s(formatdate(time.time() + 60, usegmt=True)) == pytest.approx(60, abs=2)
    assert retry_after_s(formatdate(time.time() - 60, usegmt=True)) == 0.0
    assert [retry_after_s(value) for value in (None, "", "soon", "-1")] == [None, None, None, 0.0]


def test_a_rejected_request_is_no_trouble_of_the_engine(go: Any) -> None:
    async def work() -> int:
        server = await StandIn([status(400)]).start()
        async with remote(server) as engine:
            with pytest.raises(RequestRejected):
                await engine.answer(ask("bad"))
            await engine.answer(ask("good"))
        return server.paths.count("/v1/models")

    assert go(work()) == 1, "nothing was probed again"
