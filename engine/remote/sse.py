"""Server-sent events: the ``data`` of each event, from bytes that may be cut anywhere."""

from __future__ import annotations

from collections.abc import AsyncIterator


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each event; lines end with LF or CRLF and nothing else (JSON text may hold U+2028 or U+0085)."""
    rest = b""
    data: list[bytes] = []
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:  # comments, event names and ids say nothing that is needed here
                yield b"\n".join(data)
                data = []
    # An event that was not closed by an empty line is incomplete, and is dropped as the standard says.
