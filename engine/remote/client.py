"""The engine behind one URL or several: requests are sent, sent again where that helps, and counted."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from typing import Any

import httpx

from zellige.engine.api import (
    Answer,
    Delta,
    EngineError,
    EngineUnavailable,
    ModelIdentity,
    Request,
    RequestRejected,
    RunMeter,
)
from zellige.engine.remote import wire
from zellige.engine.remote.config import Address, RemoteConfig, api_key
from zellige.engine.remote.errors import (
    CutOffError,
    EngineGoneError,
    FieldRefusedError,
    TryAgainError,
    of_event,
    of_response,
    of_transport,
)
from zellige.engine.remote.identity import assumed_identity, served_by
from zellige.engine.remote.meters import counted, read_meter, total
from zellige.engine.remote.pool import Endpoint, Pool, Served
from zellige.engine.remote.reading import Reading
from zellige.engine.remote.retry import Tries, retry_after_s
from zellige.engine.remote.sse import events

#: Seconds that a probe and a question for numbers may take.
QUICK_S = 10.0

log = logging.getLogger(__name__)


class RemoteEngine:
    """Implements ``engine.api.Engine`` over OpenAI's API. Belongs to the event loop that uses it first.

    Retries live here and nowhere above: what is raised is RequestRejected, NonFiniteLogits or EngineUnavailable; a
    stream that breaks after its first piece raises EngineError. No proxy of the environment is used.
    """

    def __init__(
        self, addresses: Sequence[Address], assumed: ModelIdentity, config: RemoteConfig, key: str | None = None
    ) -> None:
        self._assumed, self._config = assumed, config
        self._pool = Pool(addresses, self._probe, config)
        self._opening: asyncio.Task[ModelIdentity] | None = None
        self._uris = wire.DataUris()
        # As many connections as the caller has requests in flight: waiting in a queue here would hide an engine's load.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=config.kept_connections)
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(limits=limits, socket_options=_keepalive()),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(None, connect=config.connect_s),
        )

    @classmethod
    def at(cls, urls: Sequence[str], model: str | None = None) -> RemoteEngine:
        """The engines at ``urls``, one model served by all; raises EngineError for what is no URL or no key.

        ``model`` is a checkpoint folder that says what a server other than ours leaves out. Nothing is connected yet.
        """
        config = RemoteConfig.load()
        addresses = list(dict.fromkeys(Address.parse(url) for url in urls))
        return cls(addresses, assumed_identity(config, model), config, api_key())

    async def identity(self) -> ModelIdentity:
        """Which model answers; the first call connects. Raises EngineUnavailable with what to do."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.create_task(self._pool.open())
        return await asyncio.shield(self._opening)

    async def answer(self, request: Request) -> Answer:
        """The whole answer; cancelling closes the connection, by which the server knows."""
        async with aclosing(self._run(request, stream=False)) as deltas:
            async for delta in deltas:
                if delta.answer is not None:
                    return delta.answer
        raise AssertionError("a run ends with an answer or an error")

    def stream(self, request: Request) -> AsyncIterator[Delta]:
        """The answer piece by piece; the last delta carries the whole."""
        return self._run(request, stream=True)

    async def meter(self, run_id: str) -> RunMeter:
        """What our own servers measured for this run; of any other, and of one that is gone, what was counted here."""
        await self.identity()
        return total(await asyncio.gather(*(self._measured(e, run_id) for e in self._pool.endpoints)))

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        await self._pool.close()
        await self._http.aclose()

    async def _run(self, request: Request, *, stream: bool) -> AsyncGenerator[Delta, None]:
        arrived = time.perf_counter()
        tries = Tries(self._config)
        await self.identity()
        messages = await wire.messages_json(request.messages, self._uris)
        while True:
            endpoint = await self._pool.choose(tries.deadline)
            reading = Reading(request.sampling)
            try:
                first_s = 0.0
                async with aclosing(self._send(endpoint, request, messages, reading, tries, stream)) as pieces:
                    async for piece in pieces:
                        first_s = first_s or time.perf_counter() - arrived
                        yield piece
                answer = reading.answer(time.perf_counter() - arrived, first_s)
            except FieldRefusedError as refused:
                log.info("%s does not know %s; it is left out", endpoint.address.base, refused.field)
                endpoint.refused.add(refused.field)
                continue
            except TryAgainError as error:
                if isinstance(error, CutOffError | EngineGoneError):
                    self._pool.failed(endpoint, str(error))
                if stream and reading.text:
                    raise EngineError(f"the stream broke after {len(reading.text)} characters: {error}") from error
                if error.retry_after_s:
                    self._pool.busy(endpoint, error.retry_after_s)
                wait = tries.wait_s(error, self._pool.free_in_s())
                log.info("sent again in %.1f s: %s", wait, error)
                await asyncio.sleep(wait)
                continue
            meter = endpoint.meters.get(request.run_id, RunMeter())
            endpoint.meters[request.run_id] = counted(meter, request, answer)
            yield Delta("", answer)
            return

    async def _send(
        self, endpoint: Endpoint, request: Request, messages: bytes, reading: Reading, tries: Tries, stream: bool
    ) -> AsyncGenerator[Delta, None]:
        """One try at one engine: the pieces of the answer, all of which ``reading`` holds at the end."""
        assert endpoint.served is not None
        url = f"{endpoint.address.base}/chat/completions"
        content, optional = wire.body(
            messages,
            request,
            model=endpoint.served.name,
            ours=endpoint.served.ours,
            stream=stream,
            without=endpoint.refused,
        )
        headers = {"Content-Type": "application/json"}
        if request.run_id:
            headers["X-Zellige-Run"] = request.run_id
        with self._pool.asking(endpoint):
            try:
                # Between two reads; a whole answer is one read. The rest of the deadline is what a silence may last.
                timeout = httpx.Timeout(max(0.01, tries.left_s), connect=self._config.connect_s)
                async with self._http.stream(
                    "POST", url, content=content, headers=headers, timeout=timeout
                ) as response:
                    if response.status_code != 200:
                        await response.aread()
                        raise _refusal(response, url, optional)
                    chunks = _in_time(response.aiter_bytes(), tries, url)
                    if not stream:
                        reading.take(_json(b"".join([c async for c in chunks]), url), "message")
                        return
                    async for data in events(chunks):
                        if data == b"[DONE]":
                            return
                        value = _json(data, url)
                        if isinstance(value, dict) and value.get("error"):
                            raise of_event(value["error"], url)
                        text, logprobs = reading.take(value, "delta")
                        if text or logprobs:
                            yield Delta(text, logprobs=logprobs)
                    if reading.finish is None:
                        raise CutOffError(f"{url}: the stream ended before the answer did")
            except httpx.ReadTimeout as error:
                raise tries.too_late(url) from error
            except (httpx.TransportError, httpx.InvalidURL) as error:
                raise of_transport(error, url) from error

    async def _probe(self, endpoint: Endpoint) -> Served:
        """Ask for health, where the server has such a page, and then who it is."""
        health = await self._get(url := f"{endpoint.address.root}/health")
        if health.status_code >= 500:
            raise _refusal(health, url)
        models = await self._get(url := f"{endpoint.address.base}/models")
        if models.status_code != 200:
            refusal = _refusal(models, url)
            raise EngineUnavailable(str(refusal)) if isinstance(refusal, RequestRejected) else refusal
        return served_by(_json(models.content, url), endpoint.address, self._assumed)

    async def _get(self, url: str) -> httpx.Response:
        try:
            return await self._http.get(url, timeout=QUICK_S)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise of_transport(error, url) from error

    async def _measured(self, endpoint: Endpoint, run_id: str) -> RunMeter:
        here = endpoint.meters.get(run_id, RunMeter())
        if endpoint.served is None or not endpoint.served.ours or not run_id:
            return here
        url = f"{endpoint.address.base}/runs/{run_id}/meter"
        try:
            response = await self._get(url)
            if response.status_code != 200:
                raise _refusal(response, url)
            return read_meter(_json(response.content, url))
        except (TryAgainError, EngineError, KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("no numbers of run %s from %s: %s", run_id, endpoint.address.base, error)
            return here


async def _in_time(chunks: AsyncIterator[bytes], tries: Tries, url: str) -> AsyncIterator[bytes]:
    """``chunks`` until the deadline: a server that sends a little now and then is not waited for without end."""
    async for chunk in chunks:
        if tries.left_s <= 0:
            raise tries.too_late(url)
        yield chunk


def _refusal(response: httpx.Response, url: str, optional: AbstractSet[str] = frozenset()) -> Exception:
    wait = retry_after_s(response.headers.get("retry-after"))
    return of_response(response.status_code, response.content, wait, url, optional)


def _json(data: bytes, url: str) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise TryAgainError(f"{url}: the server sent no valid JSON ({error})") from error


def _keepalive() -> list[tuple[int, int, int]]:
    """TCP asks a silent peer after a minute: a machine that lost its power is noticed while an answer is awaited."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    if hasattr(socket, "TCP_KEEPIDLE"):
        seconds = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
        options += [(socket.IPPROTO_TCP, name, value) for name, value in seconds]
    return options
