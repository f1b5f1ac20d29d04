"""Schedules on a real Prefect server with a worker that is killed: every item ends as one row all the same."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pyarrow.dataset as ds
import pytest
import yaml
from prefect.client.orchestration import SyncPrefectClient

from zellige.data.ledger import Store
from zellige.flows.deploy import ZOMBIES, prepare
from zellige.flows.prefect_run import ENGINE_LIMIT

sys.path.insert(0, str(Path(__file__).parent.parent / "engine" / "remote"))

from processes import free_port
from standin import Asked, StandIn, answer

Draw = Callable[..., Path]
SHIPPED = Path(__file__).parents[2] / "prefect.yaml"
LONG = os.environ.get("ZELLIGE_TEST_LONG") == "1"
ITEMS, SHARD = 24, 3
ANSWER_S = 0.4
PREFECT, ZELLIGE = ("-m", "prefect"), ("-c", "from zellige.flows.cli import main; main()")


@dataclass
class Prefect:
    """A server on this machine with a home of its own, and commands that talk to it."""

    home: Path
    port: int

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        mine = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        settings = {
            "PREFECT_HOME": str(self.home),
            "PREFECT_API_URL": self.api,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "OMP_NUM_THREADS": "1",
        }
        with (self.home / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *arguments], env=mine | settings, stdout=log, stderr=log, start_new_session=True
            )

    def do(self, *arguments: str) -> int:
        return self.start(*arguments).wait(timeout=120)

    def log(self) -> str:
        return (self.home / "log").read_text(errors="replace")

    def ask(self, path: str, **body: Any) -> Any:
        return httpx.post(f"{self.api}/{path}", json=body).raise_for_status().json()

    def flow_runs(self) -> dict[str, str]:
        """The states of flow runs that were begun, by their ids."""
        runs = self.ask("flow_runs/filter", sort="EXPECTED_START_TIME_ASC")
        return {run["id"]: run["state_type"] for run in runs if run["state_type"] not in ("SCHEDULED", "PENDING")}

    @contextmanager
    def worker(self, flow_runs: int = 1) -> Iterator[None]:
        """A worker of our pool, which is killed at the end with all that it started, as a machine is."""
        self.start(*PREFECT, "worker", "start", "--pool", "zellige", "--limit", str(flow_runs))
        try:
            yield
        finally:
            while living := self._workers():
                for pid in living:
                    with_it_gone(pid)

    def _workers(self) -> list[int]:
        """The processes of this home that are no part of the server."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                environment, line = (process / "environ").read_bytes(), (process / "cmdline").read_bytes()
            except OSError:
                continue
            mine = f"PREFECT_HOME={self.home}\0".encode() in environment
            if mine and b"server\0start" not in line and b"uvicorn" not in line:
                found.append(int(process.name))
        return found


def with_it_gone(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):  # gone already, or another process's child
        time.sleep(0.05)


def wait_for(condition: Callable[[], Any], prefect: Prefect, seconds: float = 120) -> Any:
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, prefect.log()[-6000:]
        time.sleep(0.1)
    return value


@pytest.fixture(scope="module")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prefect]:
    started = Prefect(tmp_path_factory.mktemp("prefect"), free_port())
    process = started.start(*PREFECT, "server", "start", "--port", str(started.port))

    def is_up() -> bool:
        try:
            return httpx.get(f"{started.api}/health").status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_for(is_up, started)
        yield started
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def engine() -> Iterator[StandIn]:
    """A server of answers, each of which takes its time."""
    loop, stand_in = asyncio.new_event_loop(), StandIn()

    async def slowly(asked: Asked) -> None:
        await asyncio.sleep(ANSWER_S)
        await answer(asked)

    stand_in.otherwise = slowly
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(stand_in.start(), loop).result()
    try:
        yield stand_in
    finally:
        asyncio.run_coroutine_threadsafe(stand_in.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def of_ours(tmp_path: Path, engine: StandIn, inputs: Path, **changes: Any) -> Path:
    """The ``prefect.yaml`` that ships with its nightly deployment alone, over places of ours."""
    whole = yaml.safe_load(SHIPPED.read_text())
    nightly = next(one for one in whole["deployments"] if one["name"] == "nightly")
    places = {"inputs": [str(inputs)], "store": str(tmp_path / "store"), "reports": str(tmp_path / "reports")}
    nightly["parameters"] |= places | {"engines": [engine.url], "shard_items": SHARD}
    file = tmp_path / "prefect.yaml"
    file.write_text(yaml.safe_dump({"pull": [], "deployments": [nightly | changes]}))
    return file


def answered(store: Path) -> list[str]:
    rows = ds.dataset(list(map(str, store.glob("runs/*/parts/*.parquet")))).to_table(columns=["uri", "status"])
    assert set(rows["status"].to_pylist()) == {"ok"}
    return sorted(uri.rpartition("/")[2] for uri in rows["uri"].to_pylist())


@pytest.mark.long
def test_schedule_fires_its_worker_is_killed_and_restarted_and_every_item_has_one_row(
    prefect: Prefect, engine: StandIn, draw: Draw, tmp_path: Path
) -> None:
    """``ZELLIGE_TEST_LONG=1``: with the limits as they ship, and until Prefect knows that the flow run crashed."""
    for i in range(ITEMS):
        images = draw(f"{i:02}.png", (i, 0, 0), (16, 16)).parent
    store = tmp_path / "store"
    changes: dict[str, Any] = {"schedules": [{"interval": 60 if LONG else 8}]}
    if not LONG:  # the slots of what was killed are free again after a minute only
        changes["concurrency_limit"] = None
    assert prefect.do(*ZELLIGE, "deploy", str(of_ours(tmp_path, engine, images, **changes))) == 0, prefect.log()
    httpx.patch(f"{prefect.api}/v2/concurrency_limits/{ENGINE_LIMIT}", json={"limit": 2}).raise_for_status()

    with prefect.worker():
        wait_for(lambda: len(list(store.glob("runs/*/parts/*.parquet"))) >= 2, prefect)
    (run_id,) = Store(store).run_ids()
    assert Store(store).open_run(run_id).state() == "crashed"
    killed = next(iter(prefect.flow_runs()))
    if LONG:
        wait_for(lambda: prefect.flow_runs()[killed] == "CRASHED", prefect, 240)

    with prefect.worker():
        wait_for(lambda: "COMPLETED" in prefect.flow_runs().values(), prefect, 240)
    assert Store(store).open_run(run_id).state() == "finished"
    assert answered(store) == [f"{i:02}.png" for i in range(ITEMS)]
    assert Store(store).run_ids() == [run_id]  # the night after it found nothing new
    assert len(engine.asked) <= ITEMS + 2 * SHARD  # the shard in hand, and the one that was decoded ahead
    assert {"caption-rows", "caption-summary", "caption-report"} <= {a["key"] for a in prefect.ask("artifacts/filter")}


@pytest.mark.long
@pytest.mark.skipif(not LONG, reason="a minute; ZELLIGE_TEST_LONG=1")
def test_cancelled_flow_run_leaves_a_run_that_the_next_night_finishes(
    prefect: Prefect, engine: StandIn, draw: Draw, tmp_path: Path
) -> None:
    for i in range(ITEMS):
        images = draw(f"{i:02}.png", (i, 0, 0), (16, 16)).parent
    store = tmp_path / "store"
    file = of_ours(tmp_path, engine, images, name="cancelled", schedules=[])
    assert prefect.do(*ZELLIGE, "deploy", str(file)) == 0, prefect.log()
    before = prefect.flow_runs()

    def begun() -> dict[str, str]:
        return {run: state for run, state in prefect.flow_runs().items() if run not in before}

    with prefect.worker():
        assert prefect.do(*PREFECT, "deployment", "run", "caption/cancelled") == 0
        wait_for(lambda: len(list(store.glob("runs/*/parts/*.parquet"))) >= 2, prefect)
        (cancelled,) = begun()
        assert prefect.do(*PREFECT, "flow-run", "cancel", cancelled) == 0
        wait_for(lambda: begun()[cancelled] == "CANCELLED", prefect)
        (run_id,) = Store(store).run_ids()
        wait_for(lambda: Store(store).open_run(run_id).state() in ("interrupted", "crashed"), prefect)
        assert prefect.do(*PREFECT, "deployment", "run", "caption/cancelled") == 0
        wait_for(lambda: "COMPLETED" in begun().values(), prefect)
    assert answered(store) == [f"{i:02}.png" for i in range(ITEMS)]


@pytest.mark.long
@pytest.mark.skipif(not LONG, reason="a minute; ZELLIGE_TEST_LONG=1")
def test_night_that_is_due_while_the_last_is_at_work_is_left_out_and_loses_nothing(
    prefect: Prefect, engine: StandIn, draw: Draw, tmp_path: Path
) -> None:
    for i in range(ITEMS):
        images = draw(f"{i:02}.png", (i, 0, 0), (16, 16)).parent
    store = tmp_path / "store"
    file = of_ours(tmp_path, engine, images, name="colliding", schedules=[])
    assert prefect.do(*ZELLIGE, "deploy", str(file)) == 0, prefect.log()
    before = prefect.flow_runs()

    def begun() -> list[str]:
        """The states of ours, the earlier first."""
        return [state for run, state in prefect.flow_runs().items() if run not in before]

    with prefect.worker(flow_runs=2):
        assert prefect.do(*PREFECT, "deployment", "run", "caption/colliding") == 0
        wait_for(lambda: list(store.glob("runs/*/parts/*.parquet")), prefect)
        draw("new.png", (9, 9, 9), (16, 16))  # what the night that is left out would have found
        assert prefect.do(*PREFECT, "deployment", "run", "caption/colliding") == 0
        wait_for(lambda: begun() == ["RUNNING", "CANCELLED"], prefect)
        wait_for(lambda: begun() == ["COMPLETED", "CANCELLED"], prefect)
        assert answered(store) == [f"{i:02}.png" for i in range(ITEMS)]
        assert prefect.do(*PREFECT, "deployment", "run", "caption/colliding") == 0
        wait_for(lambda: begun() == ["COMPLETED", "CANCELLED", "COMPLETED"], prefect)
    assert answered(store) == [*(f"{i:02}.png" for i in range(ITEMS)), "new.png"]
    assert len(Store(store).run_ids()) == 2  # the one that was left out made none


@pytest.mark.long
@pytest.mark.skipif(not LONG, reason="a minute; ZELLIGE_TEST_LONG=1")
def test_flow_runs_of_two_deployments_take_turns_at_an_engine_with_one_slot(
    prefect: Prefect, engine: StandIn, draw: Draw, tmp_path: Path
) -> None:
    for i in range(12):
        images = draw(f"{i:02}.png", (i, 0, 0), (16, 16)).parent
    for name, other in (("early", "early-store"), ("late", "late-store")):
        file = of_ours(tmp_path, engine, images, name=name, schedules=[])
        whole = yaml.safe_load(file.read_text())
        whole["deployments"][0]["parameters"]["store"] = str(tmp_path / other)
        file.write_text(yaml.safe_dump(whole))
        assert prefect.do(*ZELLIGE, "deploy", str(file)) == 0, prefect.log()
    limit = f"{prefect.api}/v2/concurrency_limits/{ENGINE_LIMIT}"
    httpx.patch(limit, json={"limit": 1}).raise_for_status()
    before = prefect.flow_runs()
    with prefect.worker(flow_runs=2):
        for name in ("early", "late"):
            assert prefect.do(*PREFECT, "deployment", "run", f"caption/{name}") == 0
        at_once = set()

        def ended() -> bool:
            states = [state for run, state in prefect.flow_runs().items() if run not in before]
            with_a_slot = httpx.get(limit).json()["active_slots"]
            at_once.add((states.count("RUNNING"), with_a_slot))
            return states == ["COMPLETED", "COMPLETED"]

        wait_for(ended, prefect)
    assert (2, 1) in at_once, "both were under way, one of them waiting"
    assert max(slots for _, slots in at_once) == 1
    times = []
    for store in (tmp_path / "early-store", tmp_path / "late-store"):
        assert answered(store) == [f"{i:02}.png" for i in range(12)]
        events = Store(store).open_run(Store(store).run_ids()[0]).events()
        times.append((min(event["at"] for event in events), max(event["at"] for event in events)))
    first, second = sorted(times)
    assert first[1] <= second[0], "the second lists nothing before the first has ended"


@pytest.mark.long
@pytest.mark.skipif(not LONG, reason="two minutes; ZELLIGE_TEST_LONG=1")
def test_every_deployment_that_ships_does_its_work(
    prefect: Prefect, engine: StandIn, draw: Draw, tmp_path: Path
) -> None:
    for i in range(3):
        images = draw(f"{i:02}.png", (i, 0, 0), (16, 16)).parent
    (tmp_path / "questions.csv").write_text("question_id,question\ntotal,What is the total?\ndate,What is the date?\n")
    whole = yaml.safe_load(SHIPPED.read_text())
    places = {"inputs": [str(images)], "store": str(tmp_path / "store"), "reports": str(tmp_path / "reports")}
    for deployment in whole["deployments"]:
        if deployment["parameters"]:
            deployment["parameters"] |= places | {"engines": [engine.url]}
        if "questions_file" in deployment["parameters"]:
            deployment["parameters"]["questions_file"] = str(tmp_path / "questions.csv")
        deployment.pop("schedules", None)  # each is fired below
    file = tmp_path / "prefect.yaml"
    file.write_text(yaml.safe_dump(whole))
    assert prefect.do(*ZELLIGE, "deploy", str(file)) == 0, prefect.log()

    def fire(name: str, **parameters: Any) -> list[dict[str, Any]]:
        """Run a deployment; the rows that its run adds to the store."""
        before, runs = prefect.flow_runs(), set(Store(tmp_path / "store").run_ids())
        given = [word for key, value in parameters.items() for word in ("--param", f"{key}={json.dumps(value)}")]
        assert prefect.do(*PREFECT, "deployment", "run", name, *given) == 0, prefect.log()
        wait_for(lambda: "COMPLETED" in [s for r, s in prefect.flow_runs().items() if r not in before], prefect)
        made = sorted(set(Store(tmp_path / "store").run_ids()) - runs)
        parts = [str(part) for run in made for part in (tmp_path / "store" / "runs" / run / "parts").glob("*.parquet")]
        return ds.dataset(parts).to_table().to_pylist() if parts else []

    by_hand = {"inputs": [str(images / "00.png")], "store": str(tmp_path / "store"), "engines": [engine.url]}
    with prefect.worker():
        rows = fire("ask/documents")
        assert sorted((row["uri"][-6:], row["question_id"]) for row in rows) == [
            (f"{i:02}.png", question) for i in range(3) for question in ("date", "total")
        ]
        assert {row["status"] for row in rows} == {"ok"}
        assert fire("ask/documents") == []  # nothing is new
        draw("01.png", (99, 0, 0), (16, 16))  # changed under its name
        (images / "02.png").touch()  # written again as it was
        assert {row["uri"][-6:] for row in fire("ask/documents")} == {"01.png"}
        assert len(fire("caption/nightly")) == 3
        assert len(fire("caption/by-hand", **by_hand, prompt="What is it?")) == 1
        assert len(fire("ask/by-hand", **by_hand, questions=["What is the name?"])) == 1
        assert len(fire("read/by-hand", **by_hand)) == 1
    assert len(list((tmp_path / "reports").glob("*.html"))) >= 3


RETRIED = """
import sys
from zellige.flows.caption import caption
from zellige.tasks import lease

commits, commit = [], lease.commit

def failing_once(*given):
    commits.append(given)
    if len(commits) == 2:
        raise RuntimeError("the machine was not well for a moment")
    commit(*given)

lease.commit = failing_once
inputs, store, url = sys.argv[1:]
caption.with_options(retries=1, retry_delay_seconds=0)(
    inputs=[inputs], store=store, engines=[url], shard_items=4
)
"""


def test_flow_run_that_is_tried_again_goes_on_with_its_run(
    prefect: Prefect, engine: StandIn, draw: Draw, tmp_path: Path
) -> None:
    for i in range(12):
        images = draw(f"{i:02}.png", (i, 0, 0), (16, 16)).parent
    store = tmp_path / "store"
    assert prefect.do("-c", RETRIED, str(images), str(store), engine.url) == 0, prefect.log()
    assert len(Store(store).run_ids()) == 1
    assert answered(store) == [f"{i:02}.png" for i in range(12)]


def test_preparing_a_server_again_keeps_what_a_person_changed(prefect: Prefect) -> None:
    with SyncPrefectClient(prefect.api) as client:
        prepare(client)
        httpx.patch(f"{prefect.api}/v2/concurrency_limits/{ENGINE_LIMIT}", json={"limit": 7}).raise_for_status()
        prepare(client)
        assert client.read_global_concurrency_limit_by_name(ENGINE_LIMIT).limit == 7
        assert len(client.read_automations_by_name(ZOMBIES)) == 1
