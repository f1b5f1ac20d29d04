"""Runs the server in this process until it is told to end, and then lets answers in hand end first."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

import uvicorn
from prometheus_client import disable_created_metrics

from zellige.engine.api import EngineError, ObservedEngine
from zellige.engine.server.app import create_app
from zellige.engine.server.fetch import AllowedHosts
from zellige.engine.server.keys import KeyFileError, KeyRing
from zellige.engine.server.limits import ANSWERS_END_S, CONNECTIONS_END_S, Limits
from zellige.engine.server.service import Service


class ServeError(EngineError):
    """The server cannot run; the message says why and what to do."""


def serve(
    open_engine: Callable[[], ObservedEngine],
    *,
    host: str,
    port: int,
    api_keys: Path | None = None,
    image_hosts: tuple[str, ...] = (),
    limits: Limits | None = None,
    on_listening: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until SIGTERM or SIGINT; raises ServeError. ``on_listening`` is told the address.

    The port is open before the model is loaded; ``/health`` says so. On a signal no connection is taken any more and
    answers may end for 12 s; then they fail in words. A second signal lets them fail at once. A model that is still
    being loaded is not waited for: end the process by ``os._exit``, as Python aborts when it exits around that thread.
    """
    try:
        hosts = AllowedHosts(image_hosts)
        keys = None if api_keys is None else KeyRing.load(api_keys)
    except (ValueError, KeyFileError) as error:
        raise ServeError(str(error)) from error
    disable_created_metrics()  # a time of birth beside each counter doubles the page and no dashboard reads it
    service = Service(open_engine, limits or Limits(), hosts, keys)
    listener = _listen(host, port)
    name = f"[{host}]" if ":" in host else host

    def stop() -> None:
        server.should_exit = True

    config = uvicorn.Config(
        create_app(service, on_load_error=stop),
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(CONNECTIONS_END_S),
    )
    server = DrainingServer(config, service)
    on_listening(f"http://{name}:{listener.getsockname()[1]}")
    server.run(sockets=[listener])
    if (problem := service.load_error) is not None:
        raise ServeError(f"the model could not be loaded: {problem or type(problem).__name__}") from problem


class DrainingServer(uvicorn.Server):
    """Uvicorn, but answers in hand fail in words before their connections are cut, and the exit is a clean one."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._hurry = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.leave()
        ending = asyncio.create_task(self._end_answers())
        await super().shutdown(sockets)
        ending.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Uvicorn's own would raise the signal once more at the end and so exit as if killed."""
        if self.should_exit and self._loop is not None:
            self._loop.call_soon_threadsafe(self._hurry.set)
        self.should_exit = True

    async def _end_answers(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), ANSWERS_END_S)
        await self._service.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        # From here on whoever connects is waited for, not refused.
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ServeError(
            f"cannot listen on {host} port {port}: {error.strerror}; give another --host or --port"
        ) from error
    return listener
