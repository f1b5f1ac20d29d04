"""What a run counts while it works, who looks at it, and how it is told to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zellige.data.schema import AnswerRow

#: What it takes to tell the time left: so many seconds of answering, and so many items or a tenth of all. The first
#: answers come late, for they are decoded one by one, and then many at once.
ENOUGH_S, ENOUGH_ITEMS = 10.0, 20


@dataclass
class Tally:
    """Counts and seconds of one process's share of a run; ``images`` were decoded, ``tiles`` were shown to the model.

    ``items`` counts what was done, ``items_again`` and ``rows_again`` what of it had been answered before, and
    ``failed_again`` what of that failed once more: a retry does not make a run longer. ``decode_s`` is summed over the
    decoding processes; ``engine_s`` is wall time with at least one request in flight; ``wall_s`` is planning and
    answering, without ``load_s`` (opening the engine).
    """

    items_total: int = 0
    items: int = 0
    rows: int = 0
    ok: int = 0
    failed: int = 0
    items_again: int = 0
    rows_again: int = 0
    failed_again: int = 0
    images: int = 0
    tiles: int = 0
    requests: int = 0
    retries: int = 0
    second_tries: int = 0
    image_tokens: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    load_s: float = 0.0
    plan_s: float = 0.0
    decode_s: float = 0.0
    engine_s: float = 0.0
    commit_s: float = 0.0
    wall_s: float = 0.0
    _in_flight: int = 0
    _busy_since: float = 0.0

    @property
    def in_flight(self) -> int:
        """Requests at the engine now."""
        return self._in_flight

    @contextmanager
    def waiting_for_engine(self) -> Iterator[None]:
        """Count the time inside as waiting for the engine; requests that overlap count once."""
        if self._in_flight == 0:
            self._busy_since = time.perf_counter()
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self.engine_s += time.perf_counter() - self._busy_since

    def count(self, rows: Sequence[AnswerRow]) -> None:
        """Count the rows of one item."""
        self.items += 1
        self.rows += len(rows)
        for row in rows:
            self.ok += row.status == "ok"
            self.failed += row.status == "failed"

    def repeated(self, rows: Sequence[AnswerRow]) -> None:
        """Note that ``rows``, counted before, say once more what the run had already."""
        self.items_again += len({row.item_id for row in rows})
        self.rows_again += len(rows)
        self.failed_again += sum(row.status == "failed" for row in rows)

    def left_s(self) -> float | None:
        """Seconds until the last item, by the rate so far; None while there is too little to tell by."""
        answering_s = self.wall_s - self.plan_s
        enough = self.items >= min(ENOUGH_ITEMS, self.items_total / 10) and answering_s >= ENOUGH_S
        return (self.items_total - self.items) / self.items * answering_s if enough and self.items else None

    def rates(self) -> dict[str, float]:
        """Items and completion tokens per second of ``wall_s``; zeros before any time has passed."""
        wall = self.wall_s or float("inf")
        return {"items_per_s": self.items / wall, "tokens_per_s": self.completion_tokens / wall}


@dataclass
class Watch:
    """Looks on while a run works: ``on_change`` is called with the counts so far; setting ``stop`` ends it early.

    After ``stop`` the shards in hand are finished and committed and no other is taken.
    """

    tally: Tally = field(default_factory=Tally)
    stop: threading.Event = field(default_factory=threading.Event)
    on_change: Callable[[Tally], None] = lambda _: None
    run_id: str | None = None


# A context variable, so that a Prefect task finds its watch although only small values travel as its parameters.
_WATCH: ContextVar[Watch] = ContextVar("zellige_watch")


def current_watch() -> Watch:
    """The watch of this context; one that nobody looks at where none was set (a deployment)."""
    return _WATCH.get(None) or Watch()


@contextmanager
def watched_by(watch: Watch) -> Iterator[None]:
    """Inside, ``watch`` is the watch of this context."""
    token = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(token)
