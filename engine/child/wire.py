"""What the parent and the engine's process say to each other. Needs no torch.

A message is pickled; the pixels in it travel beside the pickle as they lie in memory, one copy on each side. Shared
memory would save one and costs more: its pages are new to both.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zellige.engine.account import Account
from zellige.engine.api import Delta, EngineError, EngineStats, ModelIdentity, Request
from zellige.kernels.tally import Fault

_COUNT, _LENGTH = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True)
class Setup:
    """The first message to the process: what it loads, as ``LocalEngine.load`` takes it."""

    folder: str
    device: str | None
    dtype: str | None
    name: str | None
    limits: Mapping[str, float]


@dataclass(frozen=True)
class Ask:
    """Answer this, piece by piece where it ``streams``; ``number`` is the parent's own name of it."""

    number: int
    request: Request
    streams: bool


@dataclass(frozen=True)
class Cancel:
    number: int


@dataclass(frozen=True)
class AskAccount:
    """What did this run have so far? The answer is a ``Told``."""

    number: int
    run_id: str


@dataclass(frozen=True)
class Audit:
    """Check every launch, or (not ``on``) as many as before. Only for a process that computes nothing just now."""

    on: bool


@dataclass(frozen=True)
class Close:
    """Nothing more is asked: end."""


@dataclass(frozen=True)
class Opened:
    """The first message of the process: the model is loaded."""

    identity: ModelIdentity
    stats: EngineStats


@dataclass(frozen=True)
class NotOpened:
    """Or it is not, and why."""

    error: Exception


@dataclass(frozen=True)
class Said:
    """The next piece of an answer, or why there is none."""

    number: int
    item: Delta | EngineError


@dataclass(frozen=True)
class Told:
    number: int
    run_id: str
    account: Account


@dataclass(frozen=True)
class Beat:
    """What the process is doing; ``launched`` grows as long as it computes. ``accounts`` are of runs that had part."""

    stats: EngineStats
    launched: int
    accounts: Mapping[str, Account]


@dataclass(frozen=True)
class Ended:
    """The last message of a process whose device context is not to be used again.

    ``fault`` where a launch reported it; ``running`` are the requests that were being computed. The launch is nobody's
    yet in ``accounts``: whose it is has to be found out.
    """

    why: str
    fault: Fault | None
    running: frozenset[int]
    accounts: Mapping[str, Account]


class Channel:
    """One end of a connection. One thread sends and one receives.

    With a ``stall_s`` the other end counts as gone when it stands still so long in the middle of a message.
    """

    def __init__(self, sock: socket.socket, stall_s: float | None = None) -> None:
        self._socket = sock
        sock.settimeout(stall_s)
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)

    def send(self, *messages: object) -> None:
        """Send them at once; raises OSError where the other end is gone."""
        buffers: list[memoryview] = []
        pickled = pickle.dumps(messages, protocol=5, buffer_callback=lambda b: buffers.append(b.raw()))
        parts = [memoryview(pickled), *buffers]
        self._socket.sendall(_COUNT.pack(len(parts)) + b"".join(_LENGTH.pack(part.nbytes) for part in parts))
        for part in parts:
            self._socket.sendall(part)

    def receive(self, timeout_s: float | None = None) -> tuple[Any, ...]:
        """What was sent at once; raises EOFError where the other end is gone, TimeoutError."""
        if not self._readable.poll(None if timeout_s is None else timeout_s * 1e3):
            raise TimeoutError
        (count,) = _COUNT.unpack(self._exactly(_COUNT.size))
        lengths = [length for (length,) in _LENGTH.iter_unpack(self._exactly(count * _LENGTH.size))]
        pickled, *buffers = [self._exactly(length) for length in lengths]
        messages: tuple[Any, ...] = pickle.loads(pickled, buffers=buffers)
        return messages

    def _exactly(self, length: int) -> bytearray:
        data = bytearray(length)
        rest = memoryview(data)
        while len(rest):
            try:
                got = self._socket.recv_into(rest)
            except (ConnectionError, TimeoutError) as error:
                raise EOFError from error
            if not got:
                raise EOFError
            rest = rest[got:]
        return data

    def close(self) -> None:
        self._socket.close()


class BlackBox:
    """A file in memory that says which launch a process was in when it ended without a word."""

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = os.memfd_create("zellige-launch", os.MFD_CLOEXEC)
        self._file = os.fdopen(descriptor, "r+b", buffering=0)

    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, fault: Fault | None) -> None:
        """The launch that begins, or None: it is over."""
        self._file.truncate(0)
        if fault is not None:
            os.pwrite(self.fileno(), pickle.dumps(fault), 0)

    def read(self) -> Fault | None:
        """The launch that was not over."""
        data = os.pread(self.fileno(), os.fstat(self.fileno()).st_size, 0)
        return pickle.loads(data) if data else None

    def close(self) -> None:
        self._file.close()
