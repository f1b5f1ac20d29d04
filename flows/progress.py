"""How a run is watched: a bar on a terminal, a line now and then elsewhere, nothing when asked to be quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from zellige.flows.output import put
from zellige.tasks.watch import Tally

if TYPE_CHECKING:
    from rich.progress import Progress

#: Seconds between two lines where there is no terminal.
LINE_EVERY_S = 10.0


class Bar:
    """A progress bar on a terminal: items, rates, failures and time left."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None, rates="", failed="", left="")

    def __call__(self, tally: Tally) -> None:
        rates = tally.rates()
        self._progress.update(
            self._task,
            total=tally.items_total or None,
            completed=tally.items,
            rates=f"{rates['items_per_s']:.1f} items/s · {rates['tokens_per_s']:.0f} tokens/s",
            failed=f"[red]{tally.failed} failed[/red]" if tally.failed else "0 failed",
            left=_left(tally.left_s()).removeprefix(" · "),
        )


class Lines:
    """One plain line every ``every_s`` seconds, and one at the end."""

    def __init__(self, out: TextIO, every_s: float = LINE_EVERY_S) -> None:
        self._out = out
        self._every_s = every_s
        self._next = time.monotonic() + every_s
        self._told = -1

    def __call__(self, tally: Tally) -> None:
        finished = tally.items == tally.items_total
        if tally.items == self._told or (time.monotonic() < self._next and not finished):
            return
        self._told = tally.items
        self._next = time.monotonic() + self._every_s
        put(progress_line(tally), self._out)


def progress_line(tally: Tally) -> str:
    """Items, rates, failures and time left in one line of text."""
    rates, left = tally.rates(), tally.left_s()
    return (
        f"{tally.items}/{tally.items_total} items · {rates['items_per_s']:.1f} items/s · "
        f"{rates['tokens_per_s']:.0f} tokens/s · {tally.failed} failed" + _left(left)
    )


def _left(seconds: float | None) -> str:
    return f" · {duration(seconds)} left" if seconds else ""


def duration(seconds: float) -> str:
    """Seconds for people: 8 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


@contextmanager
def watching(quiet: bool) -> Iterator[Callable[[Tally], None]]:
    """What to call with the counts while a run works: it writes to stderr only."""
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rates]}"),
            TextColumn("{task.fields[failed]}"),
            TextColumn("{task.fields[left]}"),
        )
        with Progress(*columns, console=Console(stderr=True)) as progress:
            yield Bar(progress)
    else:
        yield Lines(sys.stderr)
