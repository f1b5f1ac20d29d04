"""Servers in processes of their own: started, waited for, killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import httpx


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as s:
        s.bind((host, 0))
        return int(s.getsockname()[1])


class ServerProcess:
    """``python ARGUMENTS``, with ``{host}`` and ``{port}`` replaced, in a context; ready when ``ready`` answers 200."""

    def __init__(self, arguments: Sequence[str], log: Path, ready: str = "/health", host: str = "127.0.0.1") -> None:
        self.host, self.port = host, free_port(host)
        self._arguments = [a.format(host=host, port=self.port) for a in arguments]
        self._log, self._ready = log, ready
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/v1"

    def start(self, wait_s: float = 90) -> None:
        """Start it, on the same port as before; raises AssertionError with its last words when it does not come up."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._arguments],
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            )
        end = time.monotonic() + wait_s
        while time.monotonic() < end and self._process.poll() is None:
            try:
                if httpx.get(f"http://{self.host}:{self.port}{self._ready}").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        self.kill()
        raise AssertionError(f"the server did not come up: {self._log.read_text()[-3000:]}")

    def kill(self) -> None:
        """As a machine does that loses its power."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
