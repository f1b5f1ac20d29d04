"""The steps of a flow as Prefect sees them: plan, one lease loop a worker, record. Nothing else here is a task run.

Only small values travel: a job and the name of a run. Nothing is cached or persisted: the store is the ledger.
"""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from zellige.tasks.job import Job
from zellige.tasks.lease import lease_loop
from zellige.tasks.plan import plan
from zellige.tasks.record import record


@task(name="plan", cache_policy=NO_CACHE, persist_result=False)
def plan_task(job: Job) -> str | None:
    """List the items, or take up the run to resume; the name of the run, None where nothing is new."""
    return plan(job)


@task(name="lease-loop", cache_policy=NO_CACHE, persist_result=False)
def lease_loop_task(job: Job, run_id: str) -> None:
    """Answer and commit shards until none is left."""
    lease_loop(job, run_id)


@task(name="record", cache_policy=NO_CACHE, persist_result=False)
def record_task(job: Job, run_id: str) -> dict[str, Any]:
    """Index the run; its summary."""
    return record(job, run_id)
