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


async def read_body(http: Request, limits: Limits) -> bytes:
    """The whole body; raises ApiError 408 or 413, ClientDisconnect when the client goes away first."""
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_s):
            async for piece in http.stream():
                if len(body) + len(piece) > limits.body_bytes:
                    break
                body += piece
            else:
                return bytes(body)
    except TimeoutError as error:
        raise ApiError(408, f"the body did not come within {limits.body_s:g} s", code="timeout") from error
    del body
    await discard(http)
    raise too_large(f"the body is over the limit of {limits.body_bytes >> 20} MiB")


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
