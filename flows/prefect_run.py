"""What the flows share of Prefect: its settings, the steps that it sees, and the state that it is shown at the end."""

# ruff: noqa: E402  (settings are read when Prefect is imported)
from __future__ import annotations

from typing import Any

from zellige.flows.ephemeral import DEFAULTS, prefer

prefer(DEFAULTS)

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Cancelled

from zellige.flows.pipeline import run_job
from zellige.tasks.job import Job
from zellige.tasks.prefect_steps import lease_loop_task, plan_task, record_task

__all__ = ["flow", "run_as_flow"]


def run_as_flow(job: Job) -> dict[str, Any] | State[Any]:
    """The summary of a finished run (also where rows failed), or Prefect's Cancelled state for a stopped one."""
    summary = run_job(job, plan_task, lease_loop_task, record_task)
    if summary["state"] == "interrupted":
        return Cancelled(message=f"stopped; finish it with --resume {summary['run_id']}", data=summary)
    return summary
