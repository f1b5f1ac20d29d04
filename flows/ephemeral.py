"""Prefect on this machine alone: quiet, without telemetry, and a temporary server that never outlives its flow."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

#: Set where the user set nothing, before Prefect is imported. A loaded machine was seen to need 25 s for its server,
#: whose database is made on the way, maybe on a slow disk; with an eighth of a CPU a flow took 100 s from start to end.
DEFAULTS = {
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",
    "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
    "PREFECT_SERVER_DATABASE_CONNECTION_TIMEOUT": "60",
    "PREFECT_API_REQUEST_TIMEOUT": "300",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
}
#: For the command line alone: it tells errors itself, once and in its own words.
QUIET = {"PREFECT_LOGGING_LEVEL": "CRITICAL"}


def prefer(settings: Mapping[str, str]) -> None:
    """Set those of ``settings`` in the environment that are not set there."""
    for name, value in settings.items():
        os.environ.setdefault(name, value)


class PrefectUnavailableError(Exception):
    """Prefect's API cannot be reached or started; the message says how to go on without it."""


@contextmanager
def prefect_server(tell: Callable[[str], None] | None = None) -> Iterator[None]:
    """A Prefect API for the flow inside: the one that is configured, else a temporary one that ends with the context.

    The temporary server does not see Ctrl-C, which is for the flow, and ends also when this process is killed.
    ``tell`` is called where one has to be started, which takes some seconds. Raises PrefectUnavailableError.
    """
    prefer(DEFAULTS | QUIET)
    from prefect.server.api.server import SubprocessASGIServer
    from prefect.settings import PREFECT_API_URL

    if PREFECT_API_URL.value():
        yield
        return
    if tell is not None:
        tell("starting Prefect's temporary server, which takes some seconds (--no-prefect runs without one)")
    server = SubprocessASGIServer()
    failure: list[Exception] = []

    def start() -> None:
        # The server inherits the signal mask of the thread that starts it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            server.start()
        except Exception as e:
            failure.append(e)

    thread = threading.Thread(target=start, name="zellige-prefect-start", daemon=True)
    thread.start()
    try:
        thread.join()
        if failure:
            raise PrefectUnavailableError(
                f"Prefect's temporary server did not start ({failure[0]}). Run the same command with --no-prefect, "
                "or set PREFECT_API_URL to a server that runs, or give it more time with "
                "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS."
            ) from failure[0]
        assert server.server_process is not None
        with _ended_with_us(server.server_process.pid):
            yield
    finally:
        server.stop()


@contextmanager
def _ended_with_us(pid: int) -> Iterator[None]:
    """End process ``pid`` if this one dies inside: a shell reads from a pipe that then nobody holds any more."""
    watcher = subprocess.Popen(
        ["/bin/sh", "-c", 'read -r _; kill "$1"', "sh", str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        watcher.kill()
        watcher.wait()
