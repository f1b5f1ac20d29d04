"""Requests on their way through a process that may die: what each was given of its answer, and what each run had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from zellige.engine.account import Account
from zellige.engine.api import Delta, EngineError, Request, RunMeter
from zellige.engine.caller import Caller
from zellige.kernels.tally import Fault, Reading, Tally

#: The operator of a death that nothing put a name to, as it stands in a run's record.
UNNAMED = "unnamed"


@dataclass(eq=False)
class Job:
    """One request in hand; ``sent``: the process that lives now has it."""

    number: int
    request: Request
    streams: bool
    caller: Caller
    sent: bool = False
    #: What a stream was given so far; and what of that has come again since it is computed anew, None where it is not.
    _given: str = ""
    _logprobs: int = 0
    _again: str | None = None
    _logprobs_again: int = 0

    def rewind(self) -> None:
        """Its process died: the answer will come again from its beginning."""
        self.sent = False
        self._again, self._logprobs_again = "", 0

    def passed_on(self, delta: Delta) -> Delta | EngineError | None:
        """What of ``delta`` the caller has not had, None for nothing; an error where it had something else."""
        if not self.streams:
            return delta
        if self._again is None:
            self._given += delta.text
            self._logprobs += len(delta.logprobs)
            return delta
        self._again += delta.text
        self._logprobs_again += len(delta.logprobs)
        again, given = self._again, self._given
        if not again.startswith(given) and (not given.startswith(again) or delta.answer is not None):
            return EngineError(
                "the engine's process died in the middle of this answer, and computed again it came out otherwise; "
                "ask again"
            )
        if len(again) < len(given):
            return None
        new = max(self._logprobs_again - self._logprobs, 0)
        self._given, self._logprobs, self._again = again, self._logprobs + new, None
        fresh = replace(delta, text=again[len(given) :], logprobs=delta.logprobs[len(delta.logprobs) - new :])
        return fresh if fresh.text or fresh.answer is not None else None


class Books:
    """What each run had of all the processes that lived one after another."""

    def __init__(self) -> None:
        self._ended: dict[str, Account] = {}
        self._living: dict[str, Account] = {}

    def heard(self, accounts: Mapping[str, Account]) -> None:
        """What runs had so far of the process that lives."""
        self._living.update(accounts)

    def died(self) -> None:
        """It lives no more."""
        for run_id, account in self._living.items():
            self._ended[run_id] = self._ended.get(run_id, Account()).plus(account)
        self._living = {}

    def blame(self, run_id: str, fault: Fault | None, device: str) -> None:
        """Note in a run's kernel health that a launch ended a process, by the operator's name where it has one."""
        name, place = (UNNAMED, device) if fault is None else (fault.operator, fault.device)
        blamed = Account(reading=Reading((Tally(name, place, launch_errors=1),)))
        self._ended[run_id] = self._ended.get(run_id, Account()).plus(blamed)

    def meter(self, run_id: str) -> RunMeter:
        """All of it, as far as it was heard."""
        return self._ended.get(run_id, Account()).plus(self._living.get(run_id, Account())).meter()
