"""Request bodies, within the limits of size and time."""

from __future__ import annotations

import asyncio

from fastapi import Request
from starlette.requests import ClientDisconnect

from zellige.engine.server.errors import ApiError, too_large
from zellige.engine.server.limits import Limits

#: How much of a refused body is taken in and thrown away, so that its sender gets to read why.
_DISCARD_BYTES = 512 << 20
_DISCARD_S = 10.0


class BodyReader:
    """Reads bodies until it is closed: then those that are still on their way are given up."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._deadlines: set[asyncio.Timeout] = set()
        self._closed = False

    async def read(self, http: Request) -> bytes:
        """The whole body; raises ApiError 408, 413 or 503, ClientDisconnect when the client goes away first."""
        body = bytearray()
        deadline = asyncio.timeout(0 if self._closed else self._limits.body_s)
        self._deadlines.add(deadline)
        try:
            async with deadline:
                async for piece in http.stream():
                    if len(body) + len(piece) > self._limits.body_bytes:
                        break
                    body += piece
                else:
                    return bytes(body)
        except TimeoutError as error:
            if self._closed:
                raise ApiError(503, "the server is shutting down", code="not_ready", retry_after_s=1) from error
            raise ApiError(408, f"the body did not come within {self._limits.body_s:g} s", code="timeout") from error
        finally:
            self._deadlines.discard(deadline)
        del body
        await discard(http)
        raise too_large(f"the body is over the limit of {self._limits.body_bytes >> 20} MiB")

    def close(self) -> None:
        """Harmless when called again."""
        self._closed = True
        for deadline in self._deadlines:
            if not deadline.expired():
                deadline.reschedule(asyncio.get_running_loop().time())


async def discard(http: Request) -> None:
    """Take in what is still being sent, and keep nothing. Closing on a sender would reset its connection."""
    if "expect" in http.headers:
        return  # it waits for leave to send
    left = _DISCARD_BYTES
    try:
        async with asyncio.timeout(_DISCARD_S):
            while left > 0:
                message = await http.receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
                left -= len(message.get("body", b""))
    except (TimeoutError, ClientDisconnect):
        return
