"""Requests as OpenAI's chat completions spell them. No connection is opened here."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from zellige.engine.api import ImagePart, Message, Request, RequestRejected, Sampling, TextPart


class DataUris:
    """Pictures as ``data:`` URIs, each encoded once while its pixels live: several questions are asked about one."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[weakref.ref[NDArray[np.uint8]], asyncio.Task[str]]] = {}

    async def of(self, pixels: NDArray[np.uint8]) -> str:
        key = id(pixels)
        if key not in self._made:
            # The entry goes with the array, so that another one at the same address never meets it.
            ref = weakref.ref(pixels, lambda _: self._made.pop(key, None))
            self._made[key] = (ref, asyncio.create_task(asyncio.to_thread(png_uri, pixels)))
        # Shielded: who is cancelled must not take the picture from others who wait for it.
        return await asyncio.shield(self._made[key][1])


def png_uri(pixels: NDArray[np.uint8]) -> str:
    """(h, w, 3) uint8 as a PNG in a ``data:`` URI; no value changes on the way."""
    file = io.BytesIO()
    # Level 1: the bytes travel once over a local network, where the default's smaller files save less than they cost.
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(file.getbuffer()).decode()


async def messages_json(messages: tuple[Message, ...], uris: DataUris) -> bytes:
    """The ``messages`` field: built once, however often the request is sent."""
    return json.dumps([{"role": m.role, "content": await _content(m, uris)} for m in messages]).encode()


async def _content(message: Message, uris: DataUris) -> str | list[dict[str, Any]]:
    # Plain text stays a string: text-only servers take no list of parts.
    if all(isinstance(p, TextPart) for p in message.parts) and len(message.parts) == 1:
        return "".join(p.text for p in message.parts if isinstance(p, TextPart))
    content: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, ImagePart):
            content.append({"type": "image_url", "image_url": {"url": await uris.of(part.pixels)}})
        else:
            content.append({"type": "text", "text": part.text})
    return content


def body(
    messages: bytes, request: Request, *, model: str, ours: bool, stream: bool, without: set[str]
) -> tuple[bytes, set[str]]:
    """The JSON of one request, and which of its fields are optional; ``without`` those this server refused."""
    fields: dict[str, Any] = {"model": model, **_sampling(request.sampling, ours)}
    optional: dict[str, dict[str, Any]] = {}
    if request.sampling.logprobs is not None:
        fields |= {"logprobs": True, "top_logprobs": request.sampling.logprobs}
    elif not ours:  # ours tells their mean without being asked; some give none unless they may name a likeliest one
        optional["logprobs"] = {"logprobs": True, "top_logprobs": 1}
    if stream:
        fields["stream"] = True
        optional["stream_options"] = {"stream_options": {"include_usage": True}}
    fields |= _grammar(request)
    sent = {name: value for name, value in optional.items() if name not in without}
    for value in sent.values():
        fields |= value
    head = json.dumps(fields)
    return head[:-1].encode() + b', "messages": ' + messages + b"}", set(sent)


def _sampling(s: Sampling, ours: bool) -> dict[str, Any]:
    """OpenAI's names, and vLLM's for what OpenAI lacks; defaults are left out, as some servers know less."""
    fields: dict[str, Any] = {"max_tokens": s.max_tokens, "temperature": s.temperature}
    default = Sampling()
    for name in (
        *("top_p", "seed", "frequency_penalty", "presence_penalty"),
        *("top_k", "min_p", "min_tokens", "ignore_eos", "stop", "stop_token_ids"),
    ):
        if (value := getattr(s, name)) != getattr(default, name):
            fields[name] = list(value) if isinstance(value, tuple) else value
    if s.logit_bias:
        fields["logit_bias"] = {str(token): bias for token, bias in s.logit_bias}
    # Other servers have no such stop; there the flows refuse a looping answer once it is whole.
    if ours and s.repetition_stop:
        fields["repetition_stop"] = True
    return fields


def _grammar(request: Request) -> dict[str, Any]:
    grammar = request.grammar
    if not request.templated:
        raise RequestRejected("a prompt without its chat template cannot be sent to an engine behind a URL")
    if grammar is None:
        return {}
    if grammar.kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    if grammar.kind == "json_schema":
        schema = {"name": "answer", "strict": True, "schema": json.loads(grammar.source)}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    # vLLM's spelling of what OpenAI lacks
    wanted = {"regex": grammar.source} if grammar.kind == "regex" else {"choice": list(grammar.choices)}
    return {"structured_outputs": wanted}
