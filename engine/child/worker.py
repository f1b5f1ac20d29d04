"""The engine's process: ``LocalEngine`` behind a socket. ``engine/child/process.py`` starts it.

An operator that spoils the device's context, or the process with it, costs this process and not its parent. It ends
when the parent does.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zellige.engine.account import Account
from zellige.engine.api import Delta, EngineError
from zellige.engine.child.wire import (
    Ask,
    AskAccount,
    Audit,
    Beat,
    BlackBox,
    Cancel,
    Channel,
    Close,
    Ended,
    NotOpened,
    Opened,
    Said,
    Setup,
    Told,
)
from zellige.engine.flights import EngineStopped
from zellige.engine.local import ENGINE_THREAD, LocalEngine
from zellige.kernels.meter import METER, LaunchFailed

#: Seconds between two beats; nothing is said where nothing changed.
BEAT_S = 0.2


def main(descriptor: int, box: int) -> None:
    """Serve the parent at the other end of the socket until it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent finishes what it has in hand, and then ends this process
    faulthandler.enable()
    threading.excepthook = _tell_of_thread
    channel = Channel(socket.socket(fileno=descriptor))
    (setup,) = channel.receive()
    METER.witness = BlackBox(box).write
    asyncio.run(_serve(channel, setup))


async def _serve(channel: Channel, setup: Setup) -> None:
    loop = asyncio.get_running_loop()
    inbox: asyncio.Queue[Any] = asyncio.Queue()
    heard = (channel, lambda message: loop.call_soon_threadsafe(inbox.put_nowait, message))
    threading.Thread(target=_hear, args=heard, name="zellige-parent", daemon=True).start()
    try:
        engine = await asyncio.to_thread(
            LocalEngine.load,
            Path(setup.folder),
            device=setup.device,
            dtype=setup.dtype,
            name=setup.name,
            limits=setup.limits,
        )
    except Exception as error:
        channel.send(NotOpened(_portable(error)))
        return
    channel.send(Opened(await engine.identity(), engine.stats()))
    worker = _Worker(channel, engine)
    beating = asyncio.create_task(worker.beat())
    while not isinstance(message := await inbox.get(), Close):
        worker.take(message)
    beating.cancel()
    await engine.close()
    os._exit(0)  # nobody waits for what is still said or compiled


def _tell_of_thread(args: threading.ExceptHookArgs) -> None:
    """As usual, but for the engine's own thread: what ended that is told at the end, whole."""
    if args.thread is None or args.thread.name != ENGINE_THREAD:
        threading.__excepthook__(args)


def _hear(channel: Channel, deliver: Callable[[Any], object]) -> None:
    """Hand on what the parent says; at its end, which may be a violent one, end at once."""
    try:
        while True:
            for message in channel.receive():
                deliver(message)
    except EOFError:
        os._exit(0)


class _Worker:
    """The requests in hand and what is to be said of them; all of it on the process's event loop."""

    def __init__(self, channel: Channel, engine: LocalEngine) -> None:
        self._channel, self._engine = channel, engine
        self._level = METER.level
        self._asked: dict[int, Ask] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        #: Runs of which a request has ended since the last beat.
        self._runs: set[str] = set()
        self._outbox: list[object] = []
        self._beaten: tuple[object, int] = (None, 0)

    def take(self, message: Any) -> None:
        """Begin what the parent wants."""
        if isinstance(message, Ask):
            self._asked[message.number] = message
            task = self._tasks[message.number] = asyncio.create_task(self._answer(message))
            task.add_done_callback(lambda _: self._over(message))
        elif isinstance(message, Cancel):
            if message.number in self._tasks:
                self._tasks[message.number].cancel()
        elif isinstance(message, AskAccount):
            self._say(Told(message.number, message.run_id, self._engine.account(message.run_id)))
        elif isinstance(message, Audit):
            METER.level = "audit" if message.on else self._level

    async def beat(self) -> None:
        """Tell how far the engine is, again and again: who hears nothing takes it for hung."""
        while True:
            await asyncio.sleep(BEAT_S)
            if self._engine.stopped is not None:
                self._end(self._engine.stopped)
            now = self._engine.stats(), METER.launched
            if now != self._beaten or self._runs:
                self._beaten = now
                self._say(Beat(*now, self._accounts()))

    async def _answer(self, ask: Ask) -> None:
        try:
            if ask.streams:
                async for delta in self._engine.stream(ask.request):
                    self._say(Said(ask.number, delta))
            else:
                self._say(Said(ask.number, Delta("", await self._engine.answer(ask.request))))
        except Exception as error:
            if self._engine.stopped is not None:
                self._end(self._engine.stopped)
            self._say(Said(ask.number, _as_engine_error(error)))

    def _over(self, ask: Ask) -> None:
        self._runs.add(ask.request.run_id)
        del self._asked[ask.number], self._tasks[ask.number]

    def _say(self, message: object) -> None:
        """Say it together with what else this turn of the loop has: a step ends in a piece for many requests."""
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(message)

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        self._channel.send(*outbox, Beat(self._engine.stats(), METER.launched, {}))

    def _accounts(self) -> dict[str, Account]:
        runs = self._runs | {ask.request.run_id for ask in self._asked.values()}
        self._runs = set()
        return {run: self._engine.account(run) for run in runs}

    def _end(self, stopped: EngineError) -> None:
        """Say why, and end: what ends by itself might wait for the device without end."""
        self._flush()
        cause = stopped.cause if isinstance(stopped, EngineStopped) else stopped
        ids = stopped.running if isinstance(stopped, EngineStopped) else frozenset[str]()
        running = frozenset(number for number, ask in self._asked.items() if ask.request.request_id in ids)
        fault = cause.fault if isinstance(cause, LaunchFailed) else None
        why = str(cause) if fault is not None else f"{type(cause).__name__}: {cause}"
        accounts = {run: account.without_launch_errors() for run, account in self._accounts().items()}
        traceback.print_exception(cause)
        self._channel.send(Ended(why, fault, running, accounts))
        os._exit(1)


def _as_engine_error(error: Exception) -> EngineError:
    if isinstance(error, EngineError):
        return error
    traceback.print_exception(error)  # a fault of the engine's own code; the parent's log has no trace of it
    return EngineError(f"{type(error).__name__}: {error}")


def _portable(error: Exception) -> Exception:
    """The error itself where it survives being sent, else its words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return EngineError(f"{type(error).__name__}: {error}")
    return error


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
