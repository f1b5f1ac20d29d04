"""A worker's time line: how it stood every so often, from a thread that only looks."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from zellige.engine.api import Engine
from zellige.tasks.gpu_gauges import GpuGauges
from zellige.tasks.watch import Tally

#: Seconds between two looks at first; when there are ``MOST_MOMENTS``, every second one goes and the pace halves.
EVERY_S = 1.0
MOST_MOMENTS = 2000

_COUNTED = ("items", "rows", "failed", "prompt_tokens", "completion_tokens", "in_flight")


class Timeline:
    """Looks at a tally, an engine and the GPUs while the context lasts; ``moments`` may be asked at any time."""

    def __init__(self, tally: Tally, engine: Engine, every_s: float = EVERY_S, most: int = MOST_MOMENTS) -> None:
        self._tally, self._stats = tally, getattr(engine, "stats", None)
        self._every_s, self._most = every_s, most
        self._moments: list[dict[str, Any]] = []
        self._lock, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="zellige-timeline", daemon=True)

    def moments(self) -> list[dict[str, Any]]:
        """One dict a moment by column of ``TIMELINE``, oldest first."""
        with self._lock:
            return list(self._moments)

    def __enter__(self) -> Timeline:
        self._thread.start()
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._end.set()
        self._thread.join()

    def _look_on(self) -> None:
        gauges = GpuGauges()
        while True:
            self._add(self._moment() | gauges.read())
            if self._end.wait(self._every_s):
                break
        self._add(self._moment() | gauges.read())

    def _add(self, moment: dict[str, Any]) -> None:
        with self._lock:
            if len(self._moments) >= self._most:
                del self._moments[1::2]
                self._every_s *= 2
            self._moments.append(moment)

    def _moment(self) -> dict[str, Any]:
        moment = {"at": datetime.now(UTC), **{name: getattr(self._tally, name) for name in _COUNTED}}
        if self._stats is not None:
            stats = self._stats()
            moment |= {"engine_running": stats.running, "engine_waiting": stats.waiting}
        return moment
