"""The engine's process as its parent holds it: started, told and heard, and how it ended. Needs no torch."""

from __future__ import annotations

import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from zellige.engine.account import Account
from zellige.engine.api import EngineError
from zellige.engine.child.wire import BlackBox, Channel, Ended, NotOpened, Opened, Setup
from zellige.kernels.tally import Fault

#: How the process is started; the numbers of its socket and of its black box follow. -P: files where the user stands
#: are no modules of ours.
COMMAND = (sys.executable, "-P", "-m", "zellige.engine.child.worker")
#: Seconds without one launch, with something to compute, after which the process counts as hung.
STALL_S = 120.0
#: Seconds that a process which is told to end has for it.
END_S = 10.0


class Died(Exception):
    """The process ended, or was ended; ``fault`` is the launch that did it and ``running`` what it was computing.

    Both are None where it left no word of them.
    """

    def __init__(
        self,
        how: str,
        fault: Fault | None = None,
        running: frozenset[int] | None = None,
        accounts: Mapping[str, Account] | None = None,
    ) -> None:
        super().__init__(how)
        self.fault, self.running, self.accounts = fault, running, accounts or {}


class Child:
    """One process. ``send`` is for any thread; one thread receives."""

    def __init__(self, setup: Setup) -> None:
        ours, theirs = socket.socketpair()
        self._channel, self._box = Channel(ours, STALL_S), BlackBox()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [*COMMAND, str(theirs.fileno()), str(self._box.fileno())],
                    pass_fds=[theirs.fileno(), self._box.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,  # the user's is for answers; what goes wrong is on stderr
                    process_group=0,  # an interrupt at the terminal is the parent's to handle
                )
            except OSError as error:
                self.release()
                raise EngineError(f"no process for the engine could be started: {error}") from error
        self._outbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        # A thread of its own: pixels of many images wait for the process to take them, and no event loop may.
        threading.Thread(target=self._send, name="zellige-engine-sender", daemon=True).start()
        self.send(setup)

    def opened(self, timeout_s: float | None = None) -> Opened:
        """Wait until the model is loaded; raises what loading raised, or Died."""
        try:
            message, *_ = self.receive(timeout_s)
        except TimeoutError:
            raise Died(f"the model was not loaded within {timeout_s:.0f} s") from None
        if isinstance(message, NotOpened):
            raise message.error
        assert isinstance(message, Opened)
        return message

    def send(self, message: object) -> None:
        """Lost where the process is gone: who reads from it is told."""
        self._outbox.put(message)

    def receive(self, timeout_s: float | None) -> tuple[Any, ...]:
        """The next messages; raises Died, or TimeoutError."""
        try:
            messages = self._channel.receive(timeout_s)
        except EOFError:
            raise Died(self._how_it_ended(), self._box.read()) from None
        for message in messages:
            if isinstance(message, Ended):
                raise Died(message.why, message.fault, message.running, message.accounts)
        return messages

    def kill(self) -> Died:
        """End a process that hangs; what there is to say of it."""
        fault = self._box.read()
        self.end()
        return Died(f"nothing was computed for {STALL_S:.0f} s", fault)

    def close(self) -> None:
        """Let the process end by itself, for a while."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self.end()

    def end(self) -> None:
        """End it now. Harmless when it has ended."""
        self._process.kill()
        self._process.wait()
        self._outbox.put(None)

    def release(self) -> None:
        """Close what is left of a process that has ended, when nobody hears it any more."""
        self._channel.close()
        self._box.close()

    def _how_it_ended(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        code = self._process.poll()
        if code is None:
            return "it fell silent"
        if code >= 0:
            return f"exit code {code}"
        with suppress(ValueError):
            return f"signal {-code}, {signal.Signals(-code).name}"
        return f"signal {-code}"

    def _send(self) -> None:
        with suppress(OSError):  # it is gone
            while (message := self._outbox.get()) is not None:
                self._channel.send(message)
