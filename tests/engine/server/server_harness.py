"""A server on a loopback port of this process, an engine that does as it is told, and pictures to send."""

from __future__ import annotations

import asyncio
import base64
import io
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

import httpx
import openai
import uvicorn
from PIL import Image, ImageDraw

from zellige.engine.api import (
    Answer,
    Delta,
    EngineError,
    EngineStats,
    ImagePart,
    ModelIdentity,
    ObservedEngine,
    Request,
    RunMeter,
    TextPart,
    Usage,
    VisionBudget,
)
from zellige.engine.server.app import create_app
from zellige.engine.server.fetch import AllowedHosts
from zellige.engine.server.keys import KeyRing
from zellige.engine.server.limits import Limits
from zellige.engine.server.service import Service


class FakeEngine:
    """Says ``words`` one by one, ``gap_s`` apart; ``before`` may raise. Knows which requests it answers now."""

    def __init__(self, words: tuple[str, ...] = ("one ", "two ", "three"), gap_s: float = 0.0) -> None:
        self.words, self.gap_s = words, gap_s
        self.before: Callable[[Request], None] = lambda request: None
        self.between: Callable[[int], None] = lambda place: None
        self.seen: list[Request] = []
        self.answering: set[str] = set()
        self.failure: str | None = None
        self.pause: str | None = None
        self.closed = threading.Event()

    async def answer(self, request: Request) -> Answer:
        async for delta in self.stream(request):
            if delta.answer is not None:
                return delta.answer
        raise AssertionError("no answer")

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        self.seen.append(request)
        self.answering.add(request.request_id)
        try:
            self.before(request)
            for place, word in enumerate(self.words):
                if self.gap_s:
                    await asyncio.sleep(self.gap_s)
                if self.closed.is_set():
                    raise EngineError("the engine was closed")
                self.between(place)
                yield Delta(word)
            images = sum(isinstance(p, ImagePart) for m in request.messages for p in m.parts)
            usage = Usage(4 * images, 10 + 4 * images, len(self.words))
            yield Delta("", Answer("".join(self.words), "stop", usage, (1, 2, 3), -0.5, 0.2, 0.1))
        finally:
            self.answering.discard(request.request_id)

    async def meter(self, run_id: str) -> RunMeter:
        return RunMeter(requests=sum(r.run_id == run_id for r in self.seen))

    async def identity(self) -> ModelIdentity:
        return ModelIdentity("fake", "f00d", "float32", VisionBudget(16, 2, 1024, 200_704), 512)

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self.answering), cache_blocks=8, cache_blocks_free=6, failure=self.failure, pause=self.pause
        )

    async def close(self) -> None:
        self.closed.set()

    @property
    def texts(self) -> list[str]:
        """What the last request says, part by part; images as <w x h>."""
        parts = [p for m in self.seen[-1].messages for p in m.parts]
        return [p.text if isinstance(p, TextPart) else f"<{p.pixels.shape[1]} x {p.pixels.shape[0]}>" for p in parts]


class LiveServer:
    """Uvicorn in a thread; leaving ends it and the engine."""

    def __init__(
        self,
        open_engine: Callable[[], ObservedEngine],
        *,
        limits: Limits | None = None,
        hosts: tuple[str, ...] = (),
        keys: dict[str, str] | None = None,
        wait: bool = True,
    ) -> None:
        self.engine: Any = None

        def opened() -> ObservedEngine:
            self.engine = open_engine()
            return self.engine

        ring = None if keys is None else KeyRing(keys)
        self.service = Service(opened, limits or Limits(), AllowedHosts(hosts), ring)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(create_app(self.service), log_level="warning", timeout_graceful_shutdown=5)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]})
        self._wait = wait

    def __enter__(self) -> Self:
        self._thread.start()
        if self._wait:
            until(lambda: self._server.started and self.service.why_not_ready is None)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    def client(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60)

    def post(self, body: object, path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
        return httpx.post(self.url + path, json=body, headers=headers, timeout=60)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(self.url + path, headers=headers, timeout=60)

    def metric(self, name: str) -> float:
        """The sum of a metric's samples over its labels."""
        lines = [line for line in self.get("/metrics").text.splitlines() if line.startswith(f"zellige:{name}{{")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until it holds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "did not come true in time"
        time.sleep(0.01)


def card(colour: str = "red", shape: str = "ellipse", size: tuple[int, int] = (320, 240)) -> Image.Image:
    """One shape on white, as the checkpoint that ships knows them."""
    image = Image.new("RGB", size, "white")
    width, height = size
    box = (width // 3, height // 4, width // 3 + height // 2, height // 4 + height // 2)
    draw = ImageDraw.Draw(image)
    (draw.ellipse if shape == "ellipse" else draw.rectangle)(box, fill=colour)
    return image


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def uri(data: bytes, head: str = "data:image/png;base64,") -> str:
    return head + base64.b64encode(data).decode()


def chat(*contents: str, **options: Any) -> dict[str, Any]:
    """A body of one user message: data: URIs and other addresses are images, the rest is text."""
    parts = [
        {"type": "image_url", "image_url": {"url": c}} if ":" in c[:12] else {"type": "text", "text": c}
        for c in contents
    ]
    return {"messages": [{"role": "user", "content": parts}], **options}
