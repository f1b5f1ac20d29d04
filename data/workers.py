"""Who is at work on a run: one file a worker, touched as long as the worker lives.

A worker is a process with a run open for writing. Its file is named after it in ``leases/`` and says host, process and
when that process started; its modification time is the heartbeat. A worker is gone when its file is gone, when it was
on this host and no such process lives, or when it was on another host and has not been heard of for ``SILENT_S``.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from zellige.data.files import StoreUnusable, usable
from zellige.data.folder import Folder, as_json, matching, read_json, write_json

HEARTBEAT_S = 5.0
SILENT_S = 60.0


@dataclass(frozen=True)
class Worker:
    """``host`` tells machines and containers apart; ``start`` tells a process from a later one with its number."""

    name: str
    host: str
    pid: int
    start: str


def this_host() -> str:
    """The host's name, with the process namespace where there is one: numbers of processes compare only inside it."""
    try:
        return f"{platform.node()}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return platform.node()


def _start_of(pid: int) -> str | None:
    """When the process started, in a form that no other process shares; None where no such process lives."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # it lives, and is another user's
    try:
        # The name, in brackets, may hold anything; after it come the state (field 3) and, as field 22, the start.
        after_name = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() else "unknown"
    return None if after_name[0] in "ZX" else f"{boot}:{after_name[19]}"


class Roster:
    """The workers of one run, and this process among them once it has joined."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._me: Worker | None = None
        self._named: tuple[int, str] = (0, "")
        self._leave: weakref.finalize[[], Roster] | None = None
        self._lock = threading.Lock()

    def join(self) -> Worker:
        """This process as a worker; the first call writes its file and starts the heartbeat."""
        with self._lock:
            if self._me is None or self._me.pid != os.getpid():
                pid = os.getpid()
                me = Worker(self.my_name, this_host(), pid, _start_of(pid) or "unknown")
                write_json(self.folder, _file(me.name), asdict(me))
                heart = _Heart(self.folder, me)
                threading.Thread(target=heart.beat, name="zellige-heartbeat", daemon=True).start()
                self._me, self._leave = me, weakref.finalize(self, heart.stop)
            return self._me

    def leave(self) -> None:
        """Say goodbye: the worker's file goes. Also happens when the roster is dropped or the program ends in order."""
        with self._lock:
            if self._leave is not None:
                self._leave()
            self._me = self._leave = None
            self._named = (0, "")  # who joins again is somebody new, and holds nothing of what was left behind

    @property
    def my_name(self) -> str:
        """What this process is called here, whether it has joined or not."""
        if self._named[0] != os.getpid():  # a forked child is somebody else
            node = re.sub(r"[^A-Za-z0-9-]", "-", platform.node())[:40]
            self._named = (os.getpid(), f"{node}-{os.getpid()}-{secrets.token_hex(4)}")
        return self._named[1]

    @property
    def joined(self) -> bool:
        return self._me is not None and self._me.pid == os.getpid()

    def workers(self) -> Iterator[tuple[Worker, bool]]:
        """Every worker that has a file, and whether it lives."""
        now = cache(self.now)
        for name in matching(self.folder, "worker-*.json"):
            stored = read_json(self.folder, name)
            if stored is not None:
                worker = Worker(**stored)
                yield worker, not self.is_gone(worker, now)

    def is_gone(self, worker: Worker, now: Callable[[], float] | None = None) -> bool:
        """Whether ``worker`` will never commit what it holds; see the rule at the top."""
        try:
            heard = self.folder.heard(_file(worker.name))
        except FileNotFoundError:
            return True
        if worker.host == this_host():
            return _start_of(worker.pid) != worker.start
        return (now or self.now)() - heard > SILENT_S

    def forget(self, worker: Worker) -> None:
        """Remove the file of a worker that is gone."""
        self.folder.remove(_file(worker.name))

    def now(self) -> float:
        """The time of the place that holds the files, which may not be this host's: that of our own heartbeat where we
        have one.
        """
        if self._me is None:
            return time.time()
        try:
            self.folder.touch(_file(self._me.name), as_json(asdict(self._me)))
            return self.folder.heard(_file(self._me.name))
        except FileNotFoundError:
            return time.time()


class _Heart:
    """Touches a worker's file until it is stopped, and then removes it. Knows nothing of the roster, which may go."""

    def __init__(self, folder: Folder, me: Worker) -> None:
        self._folder, self._name, self._me = folder, _file(me.name), me
        self._stopped = threading.Event()
        self._lock = threading.RLock()  # a roster may be collected in the heart's own thread
        self._removed = False

    def beat(self) -> None:
        while not self._stopped.wait(HEARTBEAT_S):
            with self._lock:
                if not self._stopped.is_set():
                    self._touch()
        with self._lock, suppress(OSError, StoreUnusable):
            self._remove()

    def stop(self) -> None:
        if os.getpid() != self._me.pid:  # a forked child inherits this call and must not make it
            return
        if _in_event_loop():  # the roster was collected in the thread that a request would wait for
            self._stopped.set()
            return
        with self._lock, usable(self._folder.at(self._name), "remove"):
            self._stopped.set()
            self._remove()

    def _remove(self) -> None:
        if not self._removed:
            self._folder.remove(self._name)
            self._removed = True

    def _touch(self) -> None:
        try:
            self._folder.touch(self._name, as_json(asdict(self._me)))
        except FileNotFoundError:  # we were silent for too long and taken for gone
            if self._folder.path.exists():  # else the run was deleted
                write_json(self._folder, self._name, asdict(self._me))
        except (OSError, StoreUnusable):  # it is away for a while: whoever commits next is told, and we go on trying
            return


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _file(worker: str) -> str:
    return f"worker-{worker}.json"
