"""One job from its plan to its summary: the same functions with Prefect around them or without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zellige.data.ledger import LedgerError
from zellige.tasks.host import closing_engines
from zellige.tasks.job import Job
from zellige.tasks.lease import lease_loop
from zellige.tasks.plan import plan, resuming, unfinished_runs
from zellige.tasks.record import nothing_new, record
from zellige.tasks.watch import current_watch, watched_by


class RunFailedError(Exception):
    """A run could not go on; ``summary`` says how far it came, and --resume takes it up from there."""

    def __init__(self, summary: dict[str, Any], cause: Exception) -> None:
        super().__init__(f"run {summary['run_id']} could not go on: {cause}")
        self.summary = summary


@dataclass(frozen=True)
class Steps:
    """What a run goes through; a flow gives the same steps as tasks of Prefect's."""

    plan: Callable[[Job], str | None] = plan
    lease_loop: Callable[[Job, str], None] = lease_loop
    record: Callable[[Job, str], dict[str, Any]] = record


PLAIN = Steps()


def run_job(job: Job, steps: Steps = PLAIN) -> dict[str, Any]:
    """Plan, answer and record; the run's summary, whose ``state`` is ``interrupted`` where it was told to stop.

    Where only new items are wanted, runs that were left unfinished are finished first: ``finished_first`` counts their
    failed rows by their names, and where nothing is new the summary is that of the last of them. Raises RunFailedError
    once there is a run; before that, what ``plan`` raises.
    """
    with watched_by(current_watch()), closing_engines():
        finished: list[dict[str, Any]] = []
        for run_id in unfinished_runs(job) if job.new_only else ():
            summary = _run(resuming(job, run_id), steps)
            if summary["state"] != "finished":
                return summary
            finished.append(summary)
        done = _run(job, steps)
        if job.new_only:
            done = finished[-1] if finished and done["run_id"] is None else done
            done["finished_first"] = {summary["run_id"]: summary["failed"] for summary in finished}
        return done


def _run(job: Job, steps: Steps) -> dict[str, Any]:
    if (run_id := steps.plan(job)) is None:
        return nothing_new(job)
    try:
        steps.lease_loop(job, run_id)
    except Exception as e:
        try:
            summary = steps.record(job, run_id)
        except LedgerError:  # the store is gone: what happened first says more than that
            raise e from None
        raise RunFailedError(summary, e) from e
    return steps.record(job, run_id)


def exit_code(summary: dict[str, Any]) -> int:
    """0 every row ok or skipped, 3 finished and some rows failed, 1 not finished."""
    if summary["state"] != "finished":
        return 1
    return 3 if summary["failed"] or any(summary.get("finished_first", {}).values()) else 0
