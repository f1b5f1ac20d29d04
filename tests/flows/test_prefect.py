"""The same runs with Prefect around them, on its temporary server."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect import Flow
from prefect.flows import load_flow_from_entrypoint

Draw = Callable[..., Path]
FLOWS = Path(__file__).parents[2] / "flows"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One Prefect home for the tests here: making its database takes longer than a run."""
    return tmp_path_factory.mktemp("prefect")


@pytest.fixture
def zellige(zellige: Any, home: Path) -> Any:
    zellige.home = home
    return zellige


def recorded(home: Path, query: str) -> list[tuple[Any, ...]]:
    """What Prefect's own database says."""
    with sqlite3.connect(home / "prefect.db") as db:
        return db.execute(query).fetchall()


def servers(home: Path) -> list[int]:
    """The Prefect servers that live with this home."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment, line = (process / "environ").read_bytes(), (process / "cmdline").read_bytes()
        except OSError:
            continue
        if f"PREFECT_HOME={home}\0".encode() in environment and b"uvicorn" in line:
            found.append(int(process.name))
    return found


def wait_for(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + 90
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return value


def test_flow_run_is_completed_though_rows_failed_and_leaves_no_server(
    zellige: Any, draw: Draw, tmp_path: Path
) -> None:
    draw("a.png", (1, 2, 3))
    folder = draw("b.png").parent
    done = zellige.json("caption", folder, tmp_path / "none.png", "--store", tmp_path / "store", code=3)
    assert (done["ok"], done["failed"], done["state"]) == (2, 1, "finished")
    assert done["throughput"]["items"] == 3
    assert done["throughput"]["load_s"] > 0
    ((state, parameters),) = recorded(
        zellige.home, "SELECT state_type, parameters FROM flow_run WHERE parameters LIKE '%none.png%'"
    )
    assert state == "COMPLETED"
    assert json.loads(parameters)["inputs"] == [folder.as_uri(), (tmp_path / "none.png").as_uri()]
    tasks = recorded(zellige.home, "SELECT name, state_type FROM task_run ORDER BY start_time")
    assert [(name.split("-")[0], state) for name, state in tasks] == [
        ("plan", "COMPLETED"),
        ("lease", "COMPLETED"),
        ("record", "COMPLETED"),
    ]
    assert servers(zellige.home) == []


def test_interrupted_flow_run_is_cancelled_and_a_killed_one_leaves_no_server(
    zellige: Any, draw: Draw, tmp_path: Path
) -> None:
    for i in range(30):
        folder = draw(f"{i:02}.png", (i, 0, 0), (16, 16)).parent
    store = tmp_path / "store"
    arguments = ("ask", folder, "--question", "Which?", "--store", store, "--shard-items", "2", "--json", "--quiet")
    process = zellige.start(*arguments, FAKE_ENGINE_DELAY_S="0.2")
    wait_for(lambda: list(store.glob("runs/*/parts/*.parquet")))
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    told = json.loads(out)
    assert told["state"] == "interrupted"
    assert ("CANCELLED",) in recorded(zellige.home, "SELECT state_type FROM flow_run")
    assert servers(zellige.home) == []

    process = zellige.start("ask", "--resume", told["run_id"], "--store", store, FAKE_ENGINE_DELAY_S="60")
    wait_for(lambda: list(store.glob("runs/*/leases/shard*")))
    assert len(servers(zellige.home)) == 1
    process.kill()
    process.communicate()
    wait_for(lambda: servers(zellige.home) == [])


def test_server_that_does_not_start_names_the_way_without_it(zellige: Any, draw: Draw, tmp_path: Path) -> None:
    told = zellige(
        *("caption", draw("a.png"), "--store", tmp_path / "store"), PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS="1"
    )
    assert told.returncode == 1
    assert "--no-prefect" in told.stderr
    assert "Traceback" not in told.stderr
    assert servers(zellige.home) == []
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("name", ["caption", "ask"])
def test_flow_is_found_by_its_path_as_a_deployment_names_it(name: str) -> None:
    flow: Flow[..., Any] = load_flow_from_entrypoint(f"{FLOWS / name}.py:{name}")
    assert (flow.name, flow.persist_result) == (name, False)
    assert {"inputs", "store", "resume", "model", "limit"} <= set(flow.parameters.properties)


def test_job_too_large_for_prefect_is_refused_by_name(zellige: Any, draw: Draw, tmp_path: Path) -> None:
    told = zellige(
        "ask", draw("a.png"), "--question", "x" * 100_000, *["--question", "y" * 120_000] * 3, "--store", "s"
    )
    assert told.returncode == 2
    assert "questions" in told.stderr
    assert "--no-prefect" in told.stderr
