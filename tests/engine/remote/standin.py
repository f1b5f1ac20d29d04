"""A small OpenAI-compatible server that can misbehave on the wire in every way that a real one has.

As a script: ``standin.py PORT`` answers properly until it is killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Asked:
    """One request as it came, and the connection it came on."""

    body: dict[str, Any]
    headers: dict[str, str]
    writer: asyncio.StreamWriter

    @property
    def text(self) -> str:
        """What the last message says, with ``<image>`` for each picture."""
        content = self.body["messages"][-1]["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        return "".join(p["text"] if p["type"] == "text" else "<image>" for p in parts)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self, status: int, body: Any, **headers: str) -> None:
        """A whole response; ``body`` is bytes or a JSON value."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(data)}", "Content-Type: application/json"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    async def begin_stream(self) -> None:
        await self.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")

    def cut(self) -> None:
        """End the connection without a word, as a process that was killed does."""
        self.writer.transport.abort()


Behaviour = Callable[[Asked], Awaitable[None]]


def completion(text: str, finish: str | None = "stop", **choice: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish, **choice}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }


def chunk(text: str, finish: str | None = None) -> bytes:
    delta = {"content": text} if text else {}
    value = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


async def answer(asked: Asked) -> None:
    """The proper one: says what it was asked."""
    if not asked.body.get("stream"):
        await asked.reply(200, completion(f"you said {asked.text}"))
        return
    await asked.begin_stream()
    for piece in ("you ", "said ", asked.text):
        await asked.send(chunk(piece))
    await asked.send(chunk("", "stop") + b"data: [DONE]\n\n")
    asked.writer.close()


@dataclass
class StandIn:
    """``script`` is what the next chat requests meet, one each, and then ``otherwise``; ``asked`` is what came."""

    script: list[Behaviour] = field(default_factory=list)
    otherwise: Behaviour = answer
    asked: list[Asked] = field(default_factory=list)
    models: list[dict[str, Any]] = field(default_factory=lambda: [{"id": "stand-in", "object": "model"}])
    health: int = 404
    paths: list[str] = field(default_factory=list)
    other: dict[str, Any] = field(default_factory=dict)
    key: str | None = None
    port: int = 0
    host: str = "127.0.0.1"
    at_once: int = 0
    _server: asyncio.Server | None = None
    _connections: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/v1"

    async def start(self) -> StandIn:
        """Listen, on the same port as before if there was one."""
        self._server = await asyncio.start_server(self._connected, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._connections:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # cancelled: the test is over, and asyncio would log what it cancelled itself
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        data = await reader.readexactly(int(headers.get("content-length", 0)))
        path = first.split()[1]
        self.paths.append(path)
        asked = Asked(json.loads(data) if data else {}, headers, writer)
        if path == "/health":
            await asked.reply(self.health, {"ready": self.health == 200})
        elif self.key is not None and headers.get("authorization") != f"Bearer {self.key}":
            await asked.reply(401, {"error": {"message": "send a valid key"}})
        elif path == "/v1/models":
            await asked.reply(200, {"object": "list", "data": self.models})
        elif path == "/v1/chat/completions":
            self.asked.append(asked)
            self.at_once += 1
            try:
                await (self.script.pop(0) if self.script else self.otherwise)(asked)
            finally:
                self.at_once -= 1
        elif path in self.other:
            await asked.reply(200, self.other[path])
        else:
            await asked.reply(404, {"error": {"message": "no such path"}})
        return not writer.is_closing()


async def _main(port: int) -> None:
    async def slowly(asked: Asked) -> None:
        await asyncio.sleep(0.05)
        await answer(asked)

    await StandIn(otherwise=slowly, port=port).start()
    print("listening", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
