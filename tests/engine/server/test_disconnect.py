"""Clients that go away (D27): whatever they had is free again, and nobody else's answer suffers."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
from pathlib import Path

import httpx
import pytest
from server_harness import FakeEngine, LiveServer, card, chat, encoded, until, uri

CLIENTS, ROUNDS = (500, 3) if os.environ.get("ZELLIGE_TEST_LONG") == "1" else (60, 2)
COLOURS = ("red", "blue", "green", "yellow", "orange", "purple", "pink", "brown")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_leaves_ends_its_requests(stream: bool, n: int) -> None:
    engine = FakeEngine(words=("word ",) * 10_000, gap_s=0.01)
    with LiveServer(lambda: engine) as server:
        with httpx.Client() as client:
            request = client.build_request(
                "POST", f"{server.url}/v1/chat/completions", json=chat("a", stream=stream, n=n)
            )
            if stream:
                reply = client.send(request, stream=True)
                next(reply.iter_raw())
                reply.close()
            else:
                with pytest.raises(httpx.ReadTimeout):
                    client.send(
                        request.__class__(
                            "POST", request.url, json=chat("a", n=n), extensions={"timeout": {"read": 0.3}}
                        )
                    )
        until(lambda: not engine.answering)
        until(lambda: server.service.admission.requests == 0)
        assert len(engine.seen) == n
        assert server.metric("request_cancelled_total") == 1


def test_a_client_that_leaves_before_the_first_token_ends_its_request() -> None:
    engine = FakeEngine(gap_s=60)
    with LiveServer(lambda: engine) as server:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/chat/completions", json=chat("a", stream=True), timeout=0.5)
        until(lambda: not engine.answering)
        until(lambda: server.metric("request_cancelled_total") == 1)
        assert server.service.admission.requests == 0


def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_nothing(fake: LiveServer) -> None:
    async def leave() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", fake.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n")
        writer.write(b'Content-Length: 1000\r\n\r\n{"messages"')
        await writer.drain()
        await asyncio.sleep(0.2)
        assert fake.service.admission.requests == 1
        writer.close()

    asyncio.run(leave())
    until(lambda: (fake.service.admission.requests, fake.service.admission.bytes) == (0, 0))
    until(lambda: fake.metric("request_cancelled_total") == 1)
    assert not fake.engine.seen


class Crowd:
    """Clients with pictures of several colours; some leave at a random time, the others want their whole answer."""

    def __init__(self, server: LiveServer, seed: int) -> None:
        self.server, self.random = server, random.Random(seed)
        self.pictures = {c: uri(encoded(card(c))) for c in COLOURS}
        self.answers: list[tuple[str, str]] = []
        self.left = 0

    async def come(self, clients: int) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=300, limits=limits) as client:
            await asyncio.gather(*(self._ask(client) for _ in range(clients)))

    async def _ask(self, client: httpx.AsyncClient) -> None:
        colour = self.random.choice(COLOURS)
        patience_s = self.random.choice((None, None, self.random.uniform(0, 0.05), self.random.uniform(0, 8)))
        await asyncio.sleep(self.random.uniform(0, 1))
        body = chat(self.pictures[colour], "Describe the image.", stream=True, max_tokens=16)
        try:
            async with asyncio.timeout(patience_s):
                self.answers.append((colour, await self._listen(client, body)))
        except TimeoutError:
            self.left += 1

    async def _listen(self, client: httpx.AsyncClient, body: dict[str, object]) -> str:
        text, reason = "", None
        async with client.stream("POST", f"{self.server.url}/v1/chat/completions", json=body) as reply:
            assert reply.status_code == 200
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    (choice,) = json.loads(line[6:])["choices"]
                    text += choice["delta"].get("content", "")
                    reason = choice["finish_reason"] or reason
        assert reason in ("stop", "length")
        return text


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / (1 << 20)


def test_a_crowd_of_which_many_leave_costs_nobody_an_answer_and_no_block(demo: LiveServer) -> None:
    """``ZELLIGE_TEST_LONG=1``: 500 clients at once."""
    alone = {c: demo.post(chat(uri(encoded(card(c))), "Describe the image.", max_tokens=16)) for c in COLOURS}
    expected = {c: reply.json()["choices"][0]["message"]["content"] for c, reply in alone.items()}
    free = demo.engine.stats().cache_blocks_free
    memory: list[float] = []
    for round_ in range(ROUNDS):
        crowd = Crowd(demo, seed=round_)
        asyncio.run(crowd.come(CLIENTS))
        assert crowd.left + len(crowd.answers) == CLIENTS
        assert crowd.left > CLIENTS // 10
        assert [(c, expected[c]) for c, _ in crowd.answers] == crowd.answers
        until(lambda: (stats := demo.engine.stats()).running == stats.waiting == 0)
        until(lambda: demo.service.admission.requests == 0)
        assert demo.service.admission.bytes == 0
        assert demo.engine.stats().cache_blocks_free == free
        assert not demo.engine._jobs
        gc.collect()
        memory.append(resident_mib())
    assert memory[-1] - memory[-2] < 50, memory
    assert demo.post(chat(uri(encoded(card("red"))), "Describe the image.")).status_code == 200
