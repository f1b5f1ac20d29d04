"""One job from its plan to its summary: the same functions with Prefect around them or without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zellige.data.ledger import LedgerError
from zellige.tasks.host import closing_engines
from zellige.tasks.job import Job
from zellige.tasks.lease import lease_loop
from zellige.tasks.plan import plan
from zellige.tasks.record import record
from zellige.tasks.watch import current_watch, watched_by


class RunFailedError(Exception):
    """A run could not go on; ``summary`` says how far it came, and --resume takes it up from there."""

    def __init__(self, summary: dict[str, Any], cause: Exception) -> None:
        super().__init__(f"run {summary['run_id']} could not go on: {cause}")
        self.summary = summary


def run_job(
    job: Job,
    plan: Callable[[Job], str] = plan,
    lease_loop: Callable[[Job, str], None] = lease_loop,
    record: Callable[[Job, str], dict[str, Any]] = record,
) -> dict[str, Any]:
    """Plan, answer and record; the run's summary, whose ``state`` is ``interrupted`` where it was told to stop.

    Raises RunFailedError once there is a run; before that, what ``plan`` raises.
    """
    with watched_by(current_watch()), closing_engines():
        run_id = plan(job)
        try:
            lease_loop(job, run_id)
        except Exception as e:
            try:
                summary = record(job, run_id)
            except LedgerError:  # the store is gone: what happened first says more than that
                raise e from None
            raise RunFailedError(summary, e) from e
        return record(job, run_id)


def exit_code(summary: dict[str, Any]) -> int:
    """0 every row ok or skipped, 3 finished and some rows failed, 1 not finished."""
    if summary["state"] != "finished":
        return 1
    return 3 if summary["failed"] else 0
