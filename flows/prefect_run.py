"""What the flows share of Prefect: its settings, the steps that it sees, and the state that it is shown at the end."""

# ruff: noqa: E402  (settings are read when Prefect is imported)
from __future__ import annotations

from dataclasses import replace
from datetime import UTC
from typing import Any

from zellige.flows.ephemeral import DEFAULTS, prefer

prefer(DEFAULTS)

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.concurrency.sync import concurrency
from prefect.context import FlowRunContext
from prefect.states import Cancelled

from zellige.flows.artifacts import progress_shown, show_summary
from zellige.flows.pipeline import Steps, run_job
from zellige.flows.runners import loops_of
from zellige.tasks.job import Job
from zellige.tasks.prefect_steps import plan_task, record_task
from zellige.tasks.watch import current_watch, watched_by

__all__ = ["ENGINE_LIMIT", "flow", "run_as_flow"]

#: Prefect's global concurrency limit that every flow run holds a slot of, from its plan to its end: how many may use an
#: engine at once. ``zellige deploy`` makes it; where there is none, nothing waits.
ENGINE_LIMIT = "zellige-engine"
#: Seconds after which the slot of a flow run that was killed is free again.
SLOT_LEASE_S = 60


def run_as_flow(job: Job, reports: str | None = None) -> dict[str, Any] | State[Any]:
    """The summary of a finished run (also where rows failed), or Prefect's Cancelled state for a stopped one.

    The run bears the flow run's name, so that a flow run that is tried again goes on with it. ``reports`` is a folder
    for a page about the run.
    """

    def record_and_show(job: Job, run_id: str) -> dict[str, Any]:
        summary = record_task(job, run_id)
        show_summary(summary, reports)
        return summary

    job, watch = replace(job, run_id=_run_id(job)), current_watch()
    # A slot that is lost because the server was away for a while stops no run.
    slot = concurrency(ENGINE_LIMIT, lease_duration=SLOT_LEASE_S, raise_on_lease_renewal_failure=False)
    with slot, watched_by(watch), progress_shown(watch, job.task):
        summary = run_job(job, Steps(plan_task, loops_of(job), record_and_show))
    if summary["run_id"] is None:
        show_summary(summary, reports)
    if summary["state"] == "interrupted":
        return Cancelled(message=f"stopped; finish it with --resume {summary['run_id']}", data=summary)
    return summary


def _run_id(job: Job) -> str | None:
    """The name of the run that this flow run makes: the same one however often it is tried."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow_run.expected_start_time is None:
        return None
    due = context.flow_run.expected_start_time.astimezone(UTC)
    return f"{due:%Y%m%d-%H%M%S}-{job.task}-{context.flow_run.id.hex[-8:]}"
