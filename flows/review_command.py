"""``zellige review``: a run's page on loopback, whose words go to the store; its exit code."""

from __future__ import annotations

import getpass
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from zellige.data.catalog import Catalog
from zellige.flows.commands import logging_to, reported
from zellige.flows.output import put
from zellige.flows.report_command import planned_run
from zellige.flows.review_server import ReviewServer
from zellige.tasks.job import WrongUseError
from zellige.tasks.review import ReviewDesk


def review(run_id: str, store: str, port: int, reviewer: str | None) -> int:
    """Serve the page until SIGINT or SIGTERM; then the store's index knows what was said."""

    def work() -> int:
        run = planned_run(run_id, store)
        with ReviewDesk(run, reviewer or _user()) as desk, _opened(desk, port) as server:
            put(f"reviewing {run_id} at {server.address} (Ctrl-C ends it)", sys.stderr)
            _until_told()
        Catalog(store).record(run)
        put(f"what was said is in {run.folder / 'reviews'}, and in what zellige export writes", sys.stderr)
        return 0

    with logging_to(None):
        return reported(work, as_json=False)


@contextmanager
def _opened(desk: ReviewDesk, port: int) -> Iterator[ReviewServer]:
    try:
        server = ReviewServer(desk, port)
    except OSError as error:
        raise WrongUseError(f"cannot listen on port {port}: {error.strerror}; give another --port") from error
    thread = threading.Thread(target=server.serve_forever, name="zellige-review", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _until_told() -> None:
    told = threading.Event()

    def end(*_: Any) -> None:
        told.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        told.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return "unknown"
