"""What is in hand between callers and the engine's process: requests, and questions about runs."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future

from zellige.engine.api import EngineError, EngineUnavailable, Request
from zellige.engine.caller import Caller
from zellige.engine.child.jobs import Job
from zellige.engine.child.process import Child
from zellige.engine.child.wire import Ask, AskAccount, Cancel, Setup


class InHand:
    """Hands over what comes in to the process that lives, and keeps it back while there is none. For any thread.

    ``pause`` says why requests are kept back, ``failure`` why there will be no more answers.
    """

    def __init__(self, setup: Setup) -> None:
        """Start a first process."""
        self._setup = setup
        self.child = Child(setup)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._jobs: dict[int, Job] = {}
        self._asked: dict[int, tuple[str, Future[None]]] = {}
        self.pause: str | None = None
        self.failure: str | None = None
        self.closed = False

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job: Job) -> bool:
        return job.number in self._jobs

    def get(self, number: int) -> Job | None:
        """The request of this number; None where it has ended or was cancelled."""
        return self._jobs.get(number)

    def take_in(self, request: Request, *, streams: bool) -> Job:
        """A request of the event loop that runs here; raises EngineError where nothing is answered any more."""
        with self._lock:
            if self.closed:
                raise EngineError("the engine was closed")
            if self.failure is not None:
                raise EngineUnavailable(self.failure)
            job = Job(next(self._numbers), request, streams, Caller())
            self._jobs[job.number] = job
            if self.pause is None:
                self._hand_over(job)
        return job

    def give_back(self, job: Job) -> bool:
        """Nobody waits for it any more: the process need not compute it. False where it was over before."""
        with self._lock:
            mine = self._jobs.pop(job.number, None) is not None
            if mine and job.sent:
                self.child.send(Cancel(job.number))
        return mine

    def fail(self, job: Job, error: EngineError) -> None:
        """It gets no answer, and its caller is told why."""
        if self.give_back(job):
            job.caller.send(error)

    def over(self, job: Job) -> None:
        """Its answer is whole."""
        with self._lock:
            self._jobs.pop(job.number, None)

    def ask_about(self, run_id: str) -> Future[None]:
        """Done when the process has said what the run had; asked, in a pause, of the next one."""
        told: Future[None] = Future()
        told.set_running_or_notify_cancel()  # a caller that goes away leaves it as it is
        with self._lock:
            if self.closed or self.failure is not None:
                told.set_result(None)
                return told
            number = next(self._numbers)
            self._asked[number] = run_id, told
            if self.pause is None:
                self.child.send(AskAccount(number, run_id))
        return told

    def told(self, number: int) -> None:
        """What was asked about a run has been said."""
        with self._lock:
            _, told = self._asked.pop(number)
        told.set_result(None)

    def keep_back(self, why: str) -> list[Job]:
        """The process died: hand nothing over; gives what it had, in the order in which it came."""
        with self._lock:
            self.pause = why
            had = [job for job in self._jobs.values() if job.sent]
            for job in had:
                job.rewind()
        return had

    def hand_over_alone(self, job: Job) -> None:
        """In a pause: let the process compute this one."""
        with self._lock:
            if job.number in self._jobs:
                self._hand_over(job)

    def go_on(self) -> None:
        """The pause is over: hand over all there is."""
        with self._lock:
            self.pause = None
            for job in self._jobs.values():
                self._hand_over(job)
            for number, (run_id, _) in self._asked.items():
                self.child.send(AskAccount(number, run_id))

    def start(self) -> bool:
        """Start a process in place of the one that died; False where the engine was closed meanwhile."""
        with self._lock:
            if not self.closed:
                self.child = Child(self._setup)
            return not self.closed

    def close(self) -> bool:
        """Take nothing in any more, and fail what there is; whether a process is being started just now."""
        with self._lock:
            self.closed = True
        self._fail_all(EngineError("the engine was closed"))
        return self.pause is not None

    def give_up(self, why: str) -> None:
        """There will be no more answers."""
        with self._lock:
            self.failure, self.pause = why, None
        self._fail_all(EngineUnavailable(why))

    def forget_asked(self) -> None:
        """There is no process any more: who waits for word of a run gets what was heard of it before."""
        with self._lock:
            asked, self._asked = self._asked, {}
        for _, told in asked.values():
            told.set_result(None)

    def _fail_all(self, error: EngineError) -> None:
        for job in list(self._jobs.values()):
            self.fail(job, error)

    def _hand_over(self, job: Job) -> None:
        job.sent = True
        self.child.send(Ask(job.number, job.request, job.streams))
