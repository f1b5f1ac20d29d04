"""One engine a process, on an event loop of its own, so that flows and Prefect may come and go around it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from zellige.engine import connect
from zellige.engine.api import Engine, EngineError, EngineUnavailable, EngineUnfit, ModelIdentity
from zellige.engine.connect import EngineSpec
from zellige.tasks.job import UnreachableError

T = TypeVar("T")


class EngineNotOpenedError(Exception):
    """The engine that was asked for could not be opened; the message says what to do."""


class EngineHost:
    """Owns an engine and the thread whose event loop it lives on; ``close`` ends both."""

    def __init__(self, spec: EngineSpec, engine: Engine | None = None) -> None:
        """Load or reach the engine, or take what is given; raises EngineNotOpenedError, UnreachableError."""
        try:
            self.engine: Engine = engine or connect.open_engine(spec)
        except Exception as e:
            raise EngineNotOpenedError(
                f"the engine could not be opened: {e or type(e).__name__}. "
                f"Look at {'--engine' if spec.urls else '--model, --device and --dtype'}."
            ) from e
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="zellige-engine-loop", daemon=True)
        self._thread.start()
        try:
            self._identity = self.run(self.engine.identity())
        except BaseException as e:
            self.close()
            if isinstance(e, EngineUnavailable) and not isinstance(e, EngineUnfit):
                raise UnreachableError(f"the engine could not be reached: {e}") from e
            if isinstance(e, EngineError):
                raise EngineNotOpenedError(f"the engine could not be opened: {e}") from e
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the engine's loop and wait for it; an interrupt of the waiter cancels the work."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()

    def identity(self) -> ModelIdentity:
        """Which model answers."""
        return self._identity

    def close(self) -> None:
        self.run(self.engine.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


_hosts: dict[EngineSpec, EngineHost] = {}
_hosts_lock = threading.RLock()
#: How many contexts of ``closing_engines`` this process is inside.
_users = 0


def engine_host(spec: EngineSpec) -> EngineHost:
    """The host of this engine in this process: opened the first time, the same one afterwards."""
    with _hosts_lock:
        if spec not in _hosts:
            _hosts[spec] = EngineHost(spec)
        return _hosts[spec]


def host_engine(spec: EngineSpec, engine: Engine) -> None:
    """Let ``engine`` answer wherever this process asks for ``spec``, until ``close_engines`` closes it."""
    with _hosts_lock:
        _hosts[spec] = EngineHost(spec, engine)


def close_engines() -> None:
    """Close every engine of this process; a later ``engine_host`` opens a new one."""
    with _hosts_lock:
        while _hosts:
            _hosts.popitem()[1].close()


@contextmanager
def closing_engines() -> Iterator[None]:
    """When the last such context of this process ends, whatever came of it, no engine is open: loops may share one."""
    global _users
    with _hosts_lock:
        _users += 1
    try:
        yield
    finally:
        with _hosts_lock:
            _users -= 1
            if not _users:
                close_engines()
