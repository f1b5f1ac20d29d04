"""One lease loop of several, in whatever process a task runner puts it: beside the flow, or on another machine."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from uuid import UUID

import httpx
from prefect import get_client, task
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import PrefectException
from prefect.runtime import flow_run

from zellige.tasks.host import closing_engines
from zellige.tasks.job import Job
from zellige.tasks.lease import lease_loop
from zellige.tasks.watch import Tally, Watch, current_watch, watched_by

#: Seconds between looks at whether the flow run still wants answers: a hundred loops ask its server ten times a second.
LOOK_AT_FLOW_S = 10.0
#: What a flow run's state is called while it wants no further shard begun.
STOPPING = "Stopping"

log = logging.getLogger(__name__)


@task(name="lease-loop", cache_policy=NO_CACHE, persist_result=False)
def shared_loop_task(job: Job, run_id: str, plan_s: float) -> None:
    """Answer and commit shards beside other loops, until none is left or the flow run is stopping, cancelled or over.

    Counts apart from the others; ``plan_s`` are the seconds of planning that are put down to this one.
    """
    watch = Watch(Tally(plan_s=plan_s), current_watch().stop)
    with watched_by(watch), closing_engines(), _stopped_with_flow(watch.stop):
        lease_loop(job, run_id)


@contextmanager
def _stopped_with_flow(stop: threading.Event) -> Iterator[None]:
    """Inside, ``stop`` is set once the flow run wants no more: its process may be far away."""
    left = threading.Event()
    # In a copy of this context, which says where Prefect's server is.
    looking = (copy_context().run, (_look_at_flow, UUID(flow_run.get_id()), stop, left))
    thread = threading.Thread(target=looking[0], args=looking[1], name="zellige-flow-look", daemon=True)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()


def _look_at_flow(flow_run_id: UUID, stop: threading.Event, left: threading.Event) -> None:
    with get_client(sync_client=True) as client:
        while not left.wait(LOOK_AT_FLOW_S):
            try:
                state = client.read_flow_run(flow_run_id).state
            except (httpx.HTTPError, PrefectException) as error:
                log.warning("Prefect's server does not say whether this run is still wanted, so it is: %s", error)
                continue
            if state is not None and (state.name == STOPPING or state.is_final() or state.is_cancelling()):
                stop.set()
                return
