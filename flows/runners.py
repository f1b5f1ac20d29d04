"""Several lease loops for one run, where a task runner of Prefect's puts them: threads here, Dask's or Ray's workers.

The loops share no state but the store: each leases, answers and commits by itself. So one that dies costs the run
nothing but time, and the flow only waits, tells how far the run is, and looks at the end whether it is whole.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, redirect_stdout
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.futures import PrefectFuture
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Running
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from zellige.data.ledger import LedgerError, Run
from zellige.flows.ephemeral import prefer
from zellige.tasks.job import Job, WrongUseError
from zellige.tasks.plan import open_store
from zellige.tasks.prefect_loop import STOPPING, shared_loop_task
from zellige.tasks.prefect_steps import lease_loop_task
from zellige.tasks.watch import Watch, current_watch

#: Seconds between two looks at how far a run is, which reads the footers of parts that are new.
LOOK_S = 5.0

log = logging.getLogger(__name__)


def loops_of(job: Job) -> Callable[[Job, str], None]:
    """The lease step of a flow, as ``job`` wants it run; raises WrongUseError where an extra is not installed."""
    if job.runner in (None, "thread") and (job.loops or 1) == 1:
        return lease_loop_task
    runner = task_runner(job)
    return lambda job, run_id: _answer(runner, job, run_id)


def task_runner(job: Job) -> TaskRunner[Any]:
    """The runner that ``job`` names, not started; without an address Dask and Ray get a cluster of their own here."""
    loops = job.loops or 1
    try:
        if job.runner == "dask":
            prefer({"DASK_LOGGING__DISTRIBUTED": "warning"})
            from prefect_dask import DaskTaskRunner

            own = {"n_workers": loops, "threads_per_worker": 1, "memory_limit": 0, "dashboard_address": None}
            where = {"address": job.runner_address} if job.runner_address else {"cluster_kwargs": own}
            runner: TaskRunner[Any] = DaskTaskRunner(**where)
        elif job.runner == "ray":
            prefer({"RAY_USAGE_STATS_ENABLED": "0"})
            from prefect_ray import RayTaskRunner

            quiet = {"log_to_driver": False, "logging_level": logging.WARNING}
            cpus = {} if job.runner_address else {"num_cpus": loops, "include_dashboard": False}
            runner = RayTaskRunner(address=job.runner_address or "local", init_kwargs=quiet | cpus)
        else:
            runner = ThreadPoolTaskRunner(max_workers=loops)
    except ImportError as error:
        raise WrongUseError(
            f"--runner {job.runner} needs what is not installed here ({error.name}): "
            f"pip install 'zellige[{job.runner}]', here and wherever its workers run"
        ) from error
    return runner


def _answer(runner: TaskRunner[Any], job: Job, run_id: str) -> None:
    """Answer a run in as many loops as ``job`` wants; raises what the loops raised where every one of them failed.

    Where loops died and left something, one more takes it up. What is not finished then was told to stop.
    """
    run, watch, loops = open_store(job).open_run(run_id), current_watch(), job.loops or 1
    watch.run_id = run_id
    # Ray prints what it thinks of its nodes on stdout, which is for the summary.
    with redirect_stdout(sys.stderr), _told_where_prefect_is(), runner:
        errors = _loops(runner, job, run, watch, [watch.tally.plan_s] + [0.0] * (loops - 1))
        if watch.stop.is_set() or run.state() == "finished":
            return
        if len(own := [error for error in errors if not isinstance(error, LoopGone)]) == loops:
            raise own[0]
        log.warning("run %s is not finished and its loops have ended; one more takes it up", run_id)
        for error in _loops(runner, job, run, watch, [0.0]):
            raise error


class LoopGone(Exception):
    """A loop's process died, as the runner tells it; the loop itself had no say."""


def _loops(runner: TaskRunner[Any], job: Job, run: Run, watch: Watch, plan_s: list[float]) -> list[Exception]:
    """Start a loop for each of ``plan_s`` and wait for all; the errors of those that did not end well."""
    with _spread(job):
        futures = [
            runner.submit(shared_loop_task, {"job": job, "run_id": run.run_id, "plan_s": seconds}) for seconds in plan_s
        ]
    tell, told = _Told(run, watch), False
    # Each future is waited for in a thread: how to ask one whether it is done differs from runner to runner.
    with ThreadPoolExecutor(len(futures), thread_name_prefix="zellige-loop") as threads:
        ends = [threads.submit(_ended, future) for future in futures]
        while wait(ends, timeout=LOOK_S).not_done:
            tell.look()
            if watch.stop.is_set() and not told and job.runner != "thread":
                _tell_loops_to_stop()
                told = True
    tell.look()
    errors = [error for end in ends if (error := end.result()) is not None]
    for error in errors:
        log.warning("a lease loop of run %s ended early: %s: %s", run.run_id, type(error).__name__, error)
    return errors


def _ended(future: PrefectFuture[None]) -> Exception | None:
    """Wait for a loop to end; what went wrong."""
    try:
        result: Any = future.result(raise_on_failure=False)
    except Exception as error:
        return LoopGone(f"{type(error).__name__}: {error}")
    return result if isinstance(result, Exception) else None


class _Told:
    """Tells a watch how far a run is, by what is committed, whoever did it."""

    def __init__(self, run: Run, watch: Watch) -> None:
        self._run, self._watch = run, watch
        self._before, self._start = run.progress(), time.perf_counter()

    def look(self) -> None:
        """Count what is committed since the start; a store that does not answer is asked again later."""
        try:
            now = self._run.progress()
        except LedgerError as error:
            log.warning("how far run %s is cannot be read now: %s", self._run.run_id, error)
            return
        before, tally = self._before, self._watch.tally
        tally.items_total, tally.items = now.items - before.items_done, now.items_done - before.items_done
        tally.ok, tally.failed = now.ok - before.ok, now.failed - before.failed
        tally.rows = tally.ok + tally.failed + now.skipped - before.skipped
        tally.wall_s = tally.plan_s + time.perf_counter() - self._start
        self._watch.on_change(tally)


@contextmanager
def _spread(job: Job) -> Iterator[None]:
    """Inside, Ray gives each loop to another node, where it would fill one after the other. Dask spreads by itself."""
    if job.runner != "ray":
        yield
        return
    from prefect_ray.context import remote_options

    with remote_options(scheduling_strategy="SPREAD"):
        yield


@contextmanager
def _told_where_prefect_is() -> Iterator[None]:
    """Inside, loops elsewhere hear of the server that this flow has, and start none of their own."""
    with get_client(sync_client=True) as client:
        address = str(client.api_url).rstrip("/")
    with temporary_settings({PREFECT_API_URL: address}):
        yield


def _tell_loops_to_stop() -> None:
    """Say so in the state of the flow run, at which loops look; they finish the shards that they have in hand.

    A name, and not Prefect's Cancelling: at that a worker of Prefect's ends this process.
    """
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(UUID(flow_run.get_id()), Running(name=STOPPING), force=True)
