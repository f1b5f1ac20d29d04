"""Ctrl-C: once finishes the shards in hand, twice stops at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from zellige.tasks.watch import Watch

NOTICE = b"\nFinishing the shard in hand; press Ctrl-C again to stop at once.\n"


@contextmanager
def stopping_on_interrupt(watch: Watch) -> Iterator[None]:
    """Inside, the first SIGINT sets ``watch.stop`` and the second raises KeyboardInterrupt.

    The first one does that too before there are shards in hand: while an engine loads or items are listed.
    """

    def on_interrupt(_signal: int, _frame: FrameType | None) -> None:
        if watch.stop.is_set() or watch.run_id is None:
            raise KeyboardInterrupt
        watch.stop.set()
        # Not print: a handler may come in the middle of another write to the same stream.
        with suppress(OSError):  # nobody reads it any more
            os.write(2, NOTICE)

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
