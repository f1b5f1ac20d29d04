"""``zellige deploy``: what flows need of a Prefect server, and the deployments of a ``prefect.yaml``; its exit code."""

# ruff: noqa: E402  (settings are read when Prefect is imported)
from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from zellige.flows.ephemeral import DEFAULTS, prefer

prefer(DEFAULTS)

import httpx
from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate, WorkPoolCreate
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.exceptions import ObjectNotFound
from prefect.flows import load_flow_from_entrypoint
from prefect.settings import PREFECT_API_URL
from prefect.workers.process import ProcessWorker

from zellige.flows.commands import logging_to, reported, say
from zellige.flows.ephemeral import PrefectUnavailableError
from zellige.flows.prefect_run import ENGINE_LIMIT
from zellige.tasks.job import WrongUseError

WORK_POOL = "zellige"
#: The tag of the deployments whose heartbeats are watched: other flows of the same server may beat more slowly.
TAG = "zellige"
#: Flow runs that use an engine at once, until a person says otherwise.
ENGINE_SLOTS = 1
ZOMBIES = "zellige: flow runs whose heartbeat stopped are crashed"
#: Three beats of the 30 seconds that ``prefect.yaml`` sets.
SILENT_FOR = timedelta(seconds=90)
_SILENT = "its heartbeat stopped: the worker was killed, or lost the server"
_BEAT = "prefect.flow-run.heartbeat"
_ENDS = ("Completed", "Failed", "Cancelled", "Crashed")


def deploy(file: Path) -> int:
    """Register the deployments of ``file`` with the server at PREFECT_API_URL; what is there already is updated."""

    def work() -> int:
        check(file)
        if not PREFECT_API_URL.value():
            raise WrongUseError(
                "no Prefect server is named: start one with `prefect server start`, and say where it is with "
                "PREFECT_API_URL=http://127.0.0.1:4200/api"
            )
        try:
            with get_client(sync_client=True) as client:
                prepare(client)
        except httpx.TransportError as error:
            raise PrefectUnavailableError(
                f"no Prefect server answers at {PREFECT_API_URL.value()} ({error}); start it with `prefect server "
                "start`, or set PREFECT_API_URL to one that runs"
            ) from error
        command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise WrongUseError(f"prefect deploy does not take {file}: {(done.stderr or done.stdout).strip()}")
        say(*(f"deployed {name}" for name in names(file)))
        say(f"  next: prefect worker start --pool {WORK_POOL}")
        return 0

    with logging_to(None):
        return reported(work, as_json=False)


def prepare(client: SyncPrefectClient) -> None:
    """Make the work pool, the engine's concurrency limit and the watch over heartbeats, where they are not there.

    What a person changed of them since stays as it is.
    """
    try:
        client.read_work_pool(WORK_POOL)
    except ObjectNotFound:
        template = ProcessWorker.get_default_base_job_template()
        client.create_work_pool(WorkPoolCreate(name=WORK_POOL, type="process", base_job_template=template))
    try:
        client.read_global_concurrency_limit_by_name(ENGINE_LIMIT)
    except ObjectNotFound:
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=ENGINE_LIMIT, limit=ENGINE_SLOTS))
    if not client.read_automations_by_name(ZOMBIES):
        client.create_automation(_zombies())


def check(file: Path) -> None:
    """Raises WrongUseError for what would fail in the night only: flows, parameters and places that there are not."""
    for name, about in _deployments(file):
        where = f"{file}, deployment {name}"
        try:
            flow: Flow[..., Any] = load_flow_from_entrypoint(str(about.get("entrypoint")))
        except Exception as error:
            raise WrongUseError(f"{where}: no flow at entrypoint {about.get('entrypoint')!r}: {error}") from error
        known, given = flow.parameters.properties, about.get("parameters") or {}
        if unknown := sorted(given.keys() - known.keys()):
            raise WrongUseError(f"{where}: {flow.name} has no parameter {unknown[0]}; it has {', '.join(known)}")
        for parameter in ("inputs", "store", "reports", "questions_file", "model"):
            for place in _texts(given.get(parameter)):
                if "://" not in place and not Path(place).is_absolute():
                    raise WrongUseError(
                        f"{where}: {parameter} is {place!r}; give an absolute path or an address, for a worker starts "
                        "flows in a folder of its own"
                    )


def names(file: Path) -> list[str]:
    """What each deployment is called for ``prefect deployment run``."""
    return [f"{load_flow_from_entrypoint(about['entrypoint']).name}/{name}" for name, about in _deployments(file)]


def _deployments(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        whole = yaml.safe_load(file.read_text(encoding="utf-8"))
        found = whole["deployments"]
    except OSError as error:
        raise WrongUseError(
            f"{file}: {error.strerror}; name a file of deployments (docs/scheduling.md has one to begin with)"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise WrongUseError(f"{file} is no prefect.yaml with deployments in it: {error!r}") from error
    if not isinstance(found, list) or not all(isinstance(about, dict) for about in found):
        raise WrongUseError(f"{file} is no prefect.yaml: its deployments are to be a list of mappings")
    for about in found:
        yield str(about.get("name")), about


def _texts(value: object) -> list[str]:
    return [value] if isinstance(value, str) else [str(one) for one in value] if isinstance(value, list) else []


def _zombies() -> AutomationCore:
    """After its first heartbeat a flow run of ours is expected to beat on, or to end."""
    return AutomationCore(
        name=ZOMBIES,
        trigger=EventTrigger(
            after={_BEAT},
            expect={_BEAT, *(f"prefect.flow-run.{end}" for end in _ENDS)},
            match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
            match_related=ResourceSpecification({"prefect.resource.id": [f"prefect.tag.{TAG}"]}),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=SILENT_FOR,
        ),
        actions=[ChangeFlowRunState(name="Crashed", state=StateType.CRASHED, message=_SILENT, force=False)],
    )
