"""A pool of processes that decode: a crash, a flood of memory or a decoder without end costs one image and no more."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zellige.data.decode_wire import Failed, GoOn, Header, Large, Order, Piece, Ready, Setup, pixels_in, receive, send
from zellige.data.decode_wire import written as file_of
from zellige.data.schema import ErrorKind
from zellige.data.views import View, ViewRule

#: How a worker is started; the number of its socket follows. -P: files where the user stands are no modules of ours.
COMMAND = (sys.executable, "-P", "-m", "zellige.data.decode_worker")
#: Seconds for one image, and for each megabyte of its file and each million pixels that are read by region.
DEADLINE_S, DEADLINE_S_A_MB, DEADLINE_S_A_MEGAPIXEL = 60.0, 1.0, 0.5
#: Memory of one worker: what an image of the largest size that is decoded whole takes, at its widest, and some.
MEMORY_BYTES = 4 << 30
#: Times an image may kill its worker before it is given up, and times in a row that a worker may die as it starts.
TRIES, STARTS = 2, 3
#: No threads of libraries in each worker; and memory of one image is kept for the next: to get it anew from the system
#: page by page took a third of the time of small photos.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "VIPS_CONCURRENCY": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
}


class PoolError(Exception):
    """The worker processes cannot be started; the message says what was tried."""


class DecodeFailed(Exception):
    """An image that gives no views, or no more; ``failed`` says why and what is known of it."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.message)
        self.failed = failed


class _Died(Exception):
    """The process ended by itself; ``how`` in words."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


def default_workers() -> int:
    """One process a CPU that this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


class DecodePool:
    """Up to ``workers`` processes, each started when there is first work for it. For one event loop at a time."""

    def __init__(
        self, workers: int | None = None, *, memory_bytes: int = MEMORY_BYTES, deadline_s: float = DEADLINE_S
    ) -> None:
        self._places = asyncio.Semaphore(workers or default_workers())
        self._second_tries = asyncio.Lock()
        self._memory_bytes, self._deadline_s = memory_bytes, deadline_s
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()

    def start_one(self) -> None:
        """Start a first worker ahead of its work, while something else is waited for."""
        if not self._all:
            self._idle.append(self._new())

    async def views(
        self, rule: ViewRule, source: bytes, *, is_path: bool, page: int | None, size_bytes: int
    ) -> AsyncGenerator[tuple[Header, View, float], None]:
        """The views of one image as they are asked for, each with the seconds of work that it took.

        ``source`` is the encoded image, or (``is_path``) the path of its file. The worker goes on when the next view
        is asked for. Raises DecodeFailed or PoolError.
        """
        given, left = 0, _TimeLeft(self._deadline_s + DEADLINE_S_A_MB * size_bytes / 1e6)
        for attempt in range(1, TRIES + 1):
            order = Order(rule, source if is_path else None, page, skip=given)
            try:
                async with aclosing(self._views(order, None if is_path else source, left, alone=attempt > 1)) as pieces:
                    async for piece, pixels in pieces:
                        given += 1
                        yield piece.header, View(piece.tile, pixels, piece.index), piece.seconds
                return
            except _Died as error:
                how = error.how
        message = f"the decoder died ({how}) on this image, {TRIES} times"
        raise DecodeFailed(Failed(ErrorKind.UNREADABLE, message))

    async def _views(
        self, order: Order, data: bytes | None, left: _TimeLeft, *, alone: bool
    ) -> AsyncGenerator[tuple[Piece, NDArray[np.uint8]], None]:
        async with self._worker(alone) as worker:
            file = None if data is None else file_of(data)
            try:
                worker.order(order, file)
            finally:
                if file is not None:
                    os.close(file)
            while True:
                message, pixels_file = await left.spend(worker)
                if isinstance(message, Failed):
                    worker.busy = False
                    raise DecodeFailed(message)
                if isinstance(message, Large):
                    left.seconds += DEADLINE_S_A_MEGAPIXEL * message.pixels / 1e6
                    continue
                assert isinstance(message, Piece)
                assert pixels_file is not None
                pixels = pixels_in(pixels_file, message.shape)
                worker.busy = not message.last
                try:
                    yield message, pixels
                except GeneratorExit:
                    if worker.busy:
                        worker.stop()
                    raise
                if message.last:
                    return
                worker.go_on()

    @asynccontextmanager
    async def _worker(self, alone: bool) -> AsyncIterator[_Worker]:
        """A worker for one image; what is left in the middle of its work is ended. ``alone``: one such at a time."""
        async with self._second_tries if alone else _nothing(), self._places:
            worker = self._idle.pop() if self._idle and not alone else self._new()
            try:
                for start in range(1, STARTS + 1):
                    try:
                        await worker.ready()
                        break
                    except PoolError:  # killed from outside, it may be, which says nothing about the next one
                        if start == STARTS:
                            raise
                        worker.end()
                        self._all.discard(worker)
                        worker = self._new()
                yield worker
            finally:
                if worker.busy:
                    worker.end()
                    self._all.discard(worker)
                else:
                    self._idle.append(worker)

    def _new(self) -> _Worker:
        worker = _Worker(self._memory_bytes)
        self._all.add(worker)
        return worker

    def close(self) -> None:
        """End every worker."""
        while self._all:
            self._all.pop().end()
        self._idle.clear()


class _TimeLeft:
    """What is left of the seconds that an image may take its worker; waiting for the model takes none of them."""

    def __init__(self, seconds: float) -> None:
        self.seconds = self._given = seconds

    async def spend(self, worker: _Worker) -> tuple[Any, int | None]:
        """The worker's next message; raises DecodeFailed where it takes too long, _Died."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            async with asyncio.timeout(max(0.0, self.seconds)):
                return await worker.message()
        except TimeoutError:
            message = f"not decoded within {self._given:.0f} seconds"
            raise DecodeFailed(Failed(ErrorKind.TIMEOUT, message, seconds=self._given)) from None
        finally:
            self.seconds -= loop.time() - start


class _Worker:
    """One process and the socket to it; ``busy`` from an order until its last message."""

    def __init__(self, memory_bytes: int) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [*COMMAND, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    env=os.environ | ENVIRONMENT,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    # What libraries print about damaged images is in the rows; and stderr is the user's.
                    stderr=subprocess.DEVNULL,
                    process_group=0,  # an interrupt at the terminal is the parent's to handle
                )
            except OSError as error:
                self._socket.close()
                raise PoolError(f"no process for decoding could be started: {error}") from error
        self._socket.setblocking(False)
        send(self._socket, Setup(memory_bytes))
        self._ready = False
        self.busy = True

    async def ready(self) -> None:
        """Wait until it has started; raises PoolError."""
        if not self._ready:
            try:
                message, _ = await self.message()
            except _Died as error:
                raise PoolError(
                    f"a process for decoding ended while it started ({error.how}); try: {' '.join(COMMAND)} 0"
                ) from error
            self._ready = isinstance(message, Ready)
            self.busy = False

    def order(self, order: Order, file: int | None) -> None:
        self.busy = True
        self._send(order, file)

    def go_on(self) -> None:
        self._send(GoOn())

    def stop(self) -> None:
        """No more views of this image; only for a worker that waits to be told."""
        self._send(GoOn(stop=True))
        self.busy = False

    def _send(self, message: object, file: int | None = None) -> None:
        with suppress(OSError):  # it is gone: whoever waits for its answer is told
            send(self._socket, message, file)

    async def message(self) -> tuple[Any, int | None]:
        """The next message and the file with it; raises _Died."""
        while True:
            try:
                got = receive(self._socket)
            except BlockingIOError:
                await _readable(self._socket)
                continue
            except ConnectionError:
                got = None
            if got is None:
                raise _Died(await asyncio.to_thread(self._how_it_ended))
            return got

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        if code >= 0:
            return f"exit code {code}"
        with suppress(ValueError):
            return f"signal {-code}, {signal.Signals(-code).name}"
        return f"signal {-code}"

    def end(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():  # called again and again until someone has read
            ready.set_result(None)

    loop.add_reader(sock.fileno(), wake)
    try:
        await ready
    finally:
        loop.remove_reader(sock.fileno())


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield
