"""Hears the engine's process, restarts it when it dies, and finds out which request was to blame.

A device error spoils its process: every later launch fails, whoever made the first one fail. So the process ends, and a
new one computes what it was computing once more, one request after another at ``audit``, the youngest first: the one
that ends a process alone is guilty. The others go on together as before.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress

from zellige.engine.api import EngineError, EngineStats, ModelIdentity, RequestFatal, RunMeter
from zellige.engine.child import process
from zellige.engine.child.hand import InHand
from zellige.engine.child.jobs import Books, Job
from zellige.engine.child.process import Died
from zellige.engine.child.wire import Audit, Beat, Said, Setup, Told

#: Deaths without an answer between them after which the engine is given up: every kernel may be broken.
MOST_DEATHS = 6
#: Seconds between two looks whether the process still computes.
LOOK_S = 1.0
#: A restart may take so many times as long as the first start; one that fails is tried again after AGAIN_S seconds.
PATIENCE, AGAIN_S = 5.0, 1.0

log = logging.getLogger(__name__)


class Keeper(threading.Thread):
    """The thread to which the process belongs; others read ``identity``, ``stats`` and ``meter``."""

    def __init__(self, setup: Setup) -> None:
        """Start the process and wait for its model; raises what ``LocalEngine.load`` raises, and EngineError."""
        super().__init__(name="zellige-engine-process", daemon=True)
        begin = time.monotonic()
        self.hand = InHand(setup)
        self._device = setup.device or "cpu"
        try:
            opened = self.hand.child.opened()
        except BaseException as error:
            self._end_child()
            if isinstance(error, Died):
                raise EngineError(f"the engine's process ended while it loaded the model: {error}") from error
            raise
        self._load_s = time.monotonic() - begin
        self.identity: ModelIdentity = opened.identity
        self.stats: EngineStats = opened.stats
        self._books = Books()
        self._deaths, self._why = 0, ""
        #: How far the process has come, and since when it has not come further or had nothing to do.
        self._launched, self._moved = 0, time.monotonic()

    def meter(self, run_id: str) -> RunMeter:
        """What a run had of all processes, as far as it was heard."""
        return self._books.meter(run_id)

    def run(self) -> None:
        """Hear the process until the engine is closed; where it dies, put another in its place."""
        try:
            while not self.hand.closed:
                try:
                    self._hear()
                except Died as died:
                    if not self.hand.closed:
                        self._recover(died)
        except _GivenUp as over:
            if not self.hand.closed:
                log.error("the engine answers no more: %s", over)
                self.hand.give_up(str(over))
        except BaseException as error:
            self.hand.give_up(f"the thread that hears the engine's process ended: {error}")
            raise
        finally:
            self._end_child()
            self.hand.forget_asked()

    def _hear(self) -> None:
        """Take in what the process says next; raises Died, also for one that has computed nothing for too long."""
        with suppress(TimeoutError):
            for message in self.hand.child.receive(LOOK_S):
                self._take(message)
        now = time.monotonic()
        if not self.hand:
            self._moved = now
        elif now - self._moved > process.STALL_S:
            raise self.hand.child.kill()

    def _take(self, message: object) -> None:
        if isinstance(message, Said):
            self._moved = time.monotonic()
            self._pass_on(message)
        elif isinstance(message, Beat):
            if message.launched != self._launched:
                self._launched, self._moved = message.launched, time.monotonic()
            self.stats = message.stats
            self._books.heard(message.accounts)
        elif isinstance(message, Told):
            self._books.heard({message.run_id: message.account})
            self.hand.told(message.number)

    def _pass_on(self, said: Said) -> None:
        job = self.hand.get(said.number)
        if job is None:
            return  # cancelled meanwhile
        item = said.item if isinstance(said.item, EngineError) else job.passed_on(said.item)
        if isinstance(item, EngineError):
            self.hand.fail(job, item)
        elif item is not None:
            if item.answer is not None:
                self._deaths = 0
                self.hand.over(job)
            job.caller.send(item)

    def _recover(self, died: Died) -> None:
        """Find who is guilty, and let the others go on; raises _GivenUp."""
        had = self.hand.keep_back(f"the engine's process died ({died}) and is started again")
        suspects = [job for job in had if not died.running or job.number in died.running]
        self._bury(died, len(had))
        self._start()
        if not self._found_guilty(suspects):
            for run_id in dict.fromkeys(job.request.run_id for job in suspects):
                self._books.blame(run_id, died.fault, self._device)
        self._moved = time.monotonic()
        self.hand.go_on()

    def _found_guilty(self, suspects: list[Job]) -> bool:
        """Compute each alone until one ends the process again: it fails, and another process stands ready."""
        self.hand.child.send(Audit(on=True))
        for job in reversed(suspects):  # the youngest have computed least: what they bring along is new
            try:
                self._moved = time.monotonic()
                self.hand.hand_over_alone(job)
                while job in self.hand:
                    self._hear()
            except Died as again:
                if self.hand.closed:
                    raise _GivenUp("the engine was closed") from again
                self._condemn(job, again)
                return True
        self.hand.child.send(Audit(on=False))
        return False

    def _condemn(self, job: Job, died: Died) -> None:
        what = died.fault or died
        log.error("request %s ended the engine's process also alone: %s", job.request.request_id, what)
        self._books.blame(job.request.run_id, died.fault, self._device)
        message = (
            f"computing this request ended the engine's process, and alone once more: {what}; "
            "`zellige doctor` tests each operator"
        )
        self.hand.fail(job, RequestFatal(message))
        self._bury(died, 1)
        self._start()

    def _bury(self, died: Died, had: int) -> None:
        self._deaths += 1
        self._why = str(died)
        log.warning("the engine's process died with %d requests in hand and is started again: %s", had, died)
        self._books.heard(died.accounts)
        self._books.died()
        self._end_child()

    def _start(self) -> None:
        """Another process, its model loaded; raises _GivenUp."""
        while self._deaths < MOST_DEATHS:
            if not self.hand.start():
                raise _GivenUp("the engine was closed")
            try:
                opened = self.hand.child.opened(max(process.STALL_S, PATIENCE * self._load_s))
            except Exception as error:
                self._deaths += 1
                self._why = str(error)
                self._end_child()
                log.warning("the engine's process could not be started again: %s", error)
                time.sleep(AGAIN_S)
                continue
            if opened.identity.fingerprint != self.identity.fingerprint:
                raise _GivenUp("the checkpoint on disk is another one than was loaded at first; start again")
            self.identity, self.stats, self._launched = opened.identity, opened.stats, 0
            return
        raise _GivenUp(
            f"the engine's process died {self._deaths} times without an answer in between, the last time: {self._why}; "
            "`zellige doctor` tests the machine and each operator"
        )

    def _end_child(self) -> None:
        self.hand.child.end()
        self.hand.child.release()


class _GivenUp(Exception):
    """There will be no other process; the message says why."""
