"""Which engine a request goes to: the least loaded of those that answer; one that fails is out until it is back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from zellige.engine.api import EngineUnavailable, EngineUnfit, ModelIdentity, RunMeter
from zellige.engine.remote.config import Address, RemoteConfig
from zellige.engine.remote.errors import TryAgainError

#: Seconds until an engine that is out is looked at again: doubled each time, from the first to the last.
FIRST_LOOK_S, LAST_LOOK_S = 0.25, 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Served:
    """What a server says of its model: its ``name`` there, who it is, and whether the server is ours."""

    name: str
    identity: ModelIdentity
    ours: bool


@dataclass(eq=False)
class Endpoint:
    """One engine and what is known of it. ``served`` is None until it answered for the first time."""

    address: Address
    served: Served | None = None
    up: bool = False
    in_flight: int = 0
    asked: int = 0
    busy_until: float = 0.0
    why_out: str = "not asked yet"
    unfit: bool = False
    refused: set[str] = field(default_factory=set)
    meters: dict[str, RunMeter] = field(default_factory=dict)


class Pool:
    """Owns which endpoints are up and what is in flight at each. Belongs to one event loop.

    ``probe`` asks an endpoint who it is; it raises TryAgainError or EngineUnavailable while requests are of no use.
    """

    def __init__(
        self, addresses: Sequence[Address], probe: Callable[[Endpoint], Awaitable[Served]], config: RemoteConfig
    ) -> None:
        self.endpoints = [Endpoint(a) for a in addresses]
        self._probe, self._config = probe, config
        self._changed = asyncio.Event()
        self._probing: set[asyncio.Task[None]] = set()
        self._out_since = 0.0
        self._model: ModelIdentity | None = None

    async def open(self) -> ModelIdentity:
        """Ask every engine who it is; raises EngineUnavailable where none answers, EngineUnfit where none can serve.

        One that is there but not ready is waited for; those that cannot be reached are out, if any other answers.
        """
        give_up = time.monotonic() + self._config.unreachable_s
        pause = FIRST_LOOK_S
        while True:
            found = await asyncio.gather(*map(self._look, self.endpoints))
            if self._model is not None:
                break
            if not any(found) or time.monotonic() + pause > give_up:
                raise (EngineUnfit if all(e.unfit for e in self.endpoints) else EngineUnavailable)(self._why())
            log.info("waiting for the engine: %s", self._why())
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_LOOK_S)
        for endpoint in self.endpoints:
            if endpoint.served is not None and not endpoint.up:  # it answered, with another model
                raise EngineUnfit(endpoint.why_out)
            if not endpoint.up:
                self._begin_probing(endpoint)
        return self._model

    async def choose(self, deadline: float) -> Endpoint:
        """The least loaded engine that takes requests, waited for; EngineUnavailable where that takes too long."""
        while True:
            now = time.monotonic()
            up = [e for e in self.endpoints if e.up]
            if free := [e for e in up if e.busy_until <= now]:
                # Of equals the one that was asked less often: engines that answer at once share the work too.
                return min(free, key=lambda e: (e.in_flight, e.asked))
            until = min(e.busy_until for e in up) if up else self._out_since + self._config.unreachable_s
            if now >= deadline or (until > deadline if up else now >= until):
                raise EngineUnavailable(self._why())
            self._changed.clear()
            try:
                async with asyncio.timeout(max(0.0, min(until, deadline) - now)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def free_in_s(self) -> float:
        """Seconds until one of those that are up wants requests again; 0 where none is up, as nobody knows."""
        return max(0.0, min((e.busy_until for e in self.endpoints if e.up), default=0.0) - time.monotonic())

    @contextmanager
    def asking(self, endpoint: Endpoint) -> Iterator[None]:
        """Inside, one more request is in flight at ``endpoint``."""
        endpoint.in_flight += 1
        endpoint.asked += 1
        try:
            yield
        finally:
            endpoint.in_flight -= 1

    def failed(self, endpoint: Endpoint, why: str) -> None:
        """``endpoint`` is out, and looked at again and again until it is back."""
        if endpoint.up:
            endpoint.up, endpoint.why_out = False, why
            if not any(e.up for e in self.endpoints):
                self._out_since = time.monotonic()
            log.warning("an engine is taken out: %s", why)
            self._begin_probing(endpoint)

    def busy(self, endpoint: Endpoint, seconds: float) -> None:
        """``endpoint`` asked to be left alone for so long."""
        endpoint.busy_until = max(endpoint.busy_until, time.monotonic() + seconds)

    async def close(self) -> None:
        """Stop looking for engines."""
        tasks = list(self._probing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin_probing(self, endpoint: Endpoint) -> None:
        task = asyncio.create_task(self._until_back(endpoint))
        self._probing.add(task)
        task.add_done_callback(self._probing.discard)

    async def _until_back(self, endpoint: Endpoint) -> None:
        pause = FIRST_LOOK_S
        while True:
            await self._look(endpoint)
            if endpoint.up:
                log.warning("an engine is back: %s", endpoint.address.base)
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_LOOK_S)

    async def _look(self, endpoint: Endpoint) -> bool:
        """Ask who it is and let it in where it is the model of the others; whether waiting may help otherwise."""
        try:
            served = await self._probe(endpoint)
        except TryAgainError as error:
            endpoint.why_out, endpoint.unfit = str(error), False
            return error.starting
        except EngineUnavailable as error:
            endpoint.why_out, endpoint.unfit = str(error), True
            return False
        endpoint.served = served
        self._model = self._model or served.identity
        if not same_model(served.identity, self._model):
            why = (
                f"{endpoint.address.base} serves {_shown(served.identity)} and not {_shown(self._model)}; "
                "engines of one run serve one model"
            )
            if why != endpoint.why_out:
                log.error("%s", why)
            endpoint.why_out = why
            return False
        endpoint.up = True
        self._changed.set()
        return True

    def _why(self) -> str:
        up = [e for e in self.endpoints if e.up]
        if up:
            return f"no answer from {', '.join(e.address.base for e in up)} before the deadline"
        return "no engine answers: " + "; ".join(e.why_out for e in self.endpoints)


def same_model(a: ModelIdentity, b: ModelIdentity) -> bool:
    """Whether answers of both may stand in one run: what the recipe's fingerprint holds of a model is equal."""
    return (a.fingerprint, a.dtype, a.vision) == (b.fingerprint, b.dtype, b.vision)


def _shown(identity: ModelIdentity) -> str:
    return f"{identity.name} ({identity.dtype}, {identity.fingerprint})"
