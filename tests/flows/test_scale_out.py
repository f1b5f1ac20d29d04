"""One run on several workers and engines: some are killed on the way, and there is one row an item all the same.

Quick by default: two workers of Dask, a local store, 100 items. ``ZELLIGE_TEST_LONG=1`` adds the whole of it: a cluster
of Ray in two boxes of their own, a store on a server that speaks S3, 2,000 items; ``-s`` shows what it measured. The
engines say the colour of a picture after a second, and then once more are two of ``zellige serve``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
import httpx
import pyarrow.dataset as ds
import pytest
from PIL import Image

from zellige.data.ledger import Run, Store

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "engine" / "remote"))
sys.path.insert(0, str(Path(__file__).parents[1] / "data"))

import boxes
from colour_server import colour_of
from processes import ServerProcess, free_port
from s3_server import s3_server
from s3_server import why_not as why_no_s3

COLOUR_SERVER = Path(__file__).with_name("colour_server.py")
LONG = os.environ.get("ZELLIGE_TEST_LONG") == "1"
#: Of the long one.
ITEMS, SHARD_ITEMS = 2000, 25
COMMAND = (sys.executable, "-c", "from zellige.flows.cli import main; main()")
#: What an engine takes for an answer; in the long one enough that a loop has a shard in hand most of the time.
DELAY_S = 1.0 if LONG else 0.05


def draw(folder: Path, count: int) -> dict[str, str]:
    """Pictures of one colour each, no two alike; the answer to each by its address."""
    folder.mkdir()
    answers = {}
    for n in range(count):
        image, path = Image.new("RGB", (64, 48), (n % 256, n // 256, 40)), folder / f"{n:05d}.png"
        image.save(path)
        answers[path.as_uri()] = colour_of(image)
    return answers


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "ZELLIGE_", "RAY_"))}
    return mine | {"PREFECT_HOME": str(tmp_path / "prefect"), "OMP_NUM_THREADS": "1"}


def engine(log: Path, host: str = "127.0.0.1") -> ServerProcess:
    return ServerProcess([str(COLOUR_SERVER), "{host}", "{port}", str(DELAY_S)], log, host=host)


def served(log: Path, host: str) -> ServerProcess:
    """``zellige serve`` with the checkpoint that ships."""
    return ServerProcess([*COMMAND[1:], "serve", "--host", "{host}", "--port", "{port}"], log, host=host)


def in_this_life(server: ServerProcess) -> int:
    """How many answers a served engine has given since it was started."""
    text = httpx.get(server.url.replace("/v1", "/metrics")).text
    counts = [line for line in text.splitlines() if line.startswith("vllm:request_success_total")]
    return int(sum(float(line.rpartition(" ")[2]) for line in counts))


def answered(log: Path) -> int:
    """How many answers an engine has given, in all of its lives."""
    return sum(line.startswith("colour") for line in log.read_text().splitlines())


def begun(environment: dict[str, str], *arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "caption", *map(str, arguments), "--json", "--quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def ended(flow: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = flow.communicate(timeout=600)
    assert flow.returncode == 0, out + err
    told: dict[str, Any] = json.loads(out)
    return told


def wait_for(what: Callable[[], Any], flow: subprocess.Popen[str], seconds: float = 120) -> Any:
    """The first value of ``what`` that is one; the flow has to be at work all the while."""
    end = time.monotonic() + seconds
    while not (value := what()):
        assert flow.poll() is None, "".join(flow.communicate())
        assert time.monotonic() < end, what
        time.sleep(0.1)
    return value


def the_run(store: str | Path) -> Run | None:
    """The run of a store, once its items are listed."""
    found = Store(store).run_ids()
    run = Store(store).open_run(found[0]) if found else None
    return run if run is not None and run.planned else None


def rows(store: str | Path, run_id: str) -> list[dict[str, Any]]:
    files, root = fsspec.url_to_fs(str(store))
    table = ds.dataset(f"{root}/runs/{run_id}/parts", format="parquet", filesystem=files).to_table()
    return [dict(row) for row in table.to_pylist()]


def assert_one_row_an_item(told: dict[str, Any], store: str | Path, answers: dict[str, str]) -> None:
    """``answers``: that of each item; "" where any will do."""
    found = rows(store, told["run_id"])
    assert all(row["answer"] for row in found)
    assert {row["uri"]: answers[row["uri"]] and row["answer"] for row in found} == answers
    assert len(found) == len({row["row_id"] for row in found}) == len(answers)
    assert (told["state"], told["ok"], told["failed"]) == ("finished", len(answers), 0)


def holders(store: str | Path, run: Run) -> set[str]:
    """The names of the boxes that have a shard in hand."""
    files, root = fsspec.url_to_fs(str(store), use_listings_cache=False)
    found = files.glob(f"{root}/runs/{run.run_id}/leases/shard-*.lease")
    return {json.loads(text)["host"].partition("/")[0] for text in files.cat(found, on_error="omit").values()}


def workers_at_work(run: Run, flow: int) -> list[int]:
    """The processes that have a lease loop of the run, the flow's own aside."""
    found = [json.loads(path.read_bytes()) for path in (run.path / "leases").glob("worker-*.json")]
    return [worker["pid"] for worker in found if worker["pid"] != flow]


def test_a_worker_of_dask_and_an_engine_killed_on_the_way_cost_no_item(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    pytest.importorskip("prefect_dask", reason="prefect-dask is not installed (pip install 'zellige[dask]')")
    answers, store = draw(tmp_path / "images", 100), tmp_path / "store"
    with engine(tmp_path / "engine-1.log") as first, engine(tmp_path / "engine-2.log") as second:
        flow = begun(
            environment,
            *(tmp_path / "images", "--store", store, "--shard-items", "4", "--workers", "1"),
            *("--engine", first.url, "--engine", second.url, "--runner", "dask", "--loops", "2"),
        )
        run = wait_for(lambda: the_run(store), flow)
        pids = wait_for(lambda: len(found := workers_at_work(run, flow.pid)) == 2 and found, flow)
        wait_for(lambda: len(run.done_shards()) >= 3, flow)
        os.kill(pids[0], signal.SIGKILL)
        first.kill()
        wait_for(lambda: len(run.done_shards()) >= 6, flow)
        first.start()
        before = answered(tmp_path / "engine-1.log")
        told = ended(flow)
    assert_one_row_an_item(told, store, answers)
    assert answered(tmp_path / "engine-1.log") > before > 0, "it is asked again once it is back"
    assert {event["kind"] for event in run.events()} & {"worker_gone", "lease_taken_over"}


class Cluster:
    """Two boxes of Ray with room for one loop each, a head without any, and what they need: engines, Prefect, a bucket.

    All of it is reached at the machine's own address on the boxes' network; ``environment`` says so to every process.
    """

    def __init__(self, folder: Path, environment: dict[str, str], within: ExitStack) -> None:
        (folder / "s3").mkdir()
        bucket = within.enter_context(s3_server(folder / "s3", boxes.HERE))
        prefect = ["-m", "prefect", "server", "start", "--host", "{host}", "--port", "{port}"]
        server = ServerProcess(prefect, folder / "prefect.log", "/api/health", boxes.HERE)
        ray = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
        self.environment = environment | bucket.variables | ray
        self.environment["PREFECT_API_URL"] = f"http://{boxes.HERE}:{server.port}/api"
        self._folder, self.address = folder, f"{boxes.HERE}:{free_port(boxes.HERE)}"
        with patched_environment(self.environment):
            within.enter_context(server)
            files, _ = fsspec.url_to_fs("s3://answers")
            files.mkdir("answers")
        port = self.address.rpartition(":")[2]
        head = subprocess.Popen(
            self._ray("--head", "--port", port, "--node-ip-address", boxes.HERE, "--num-cpus", "0"),
            stdout=(folder / "head.log").open("wb"),
            stderr=subprocess.STDOUT,
            env=self.environment,
        )
        within.callback(stop, head)
        wait_for_port(port)

    def join(self, box: Any) -> None:
        """Let a box take one lease loop."""
        command = self._ray("--address", self.address, "--node-ip-address", box.address, "--num-cpus", "1")
        box.start(shlex.join(command), self._folder / f"{box.name}.log", self.environment)

    def _ray(self, *arguments: str) -> list[str]:
        plain = ("--block", "--disable-usage-stats", "--object-store-memory", "100000000")
        return [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments, *plain]


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_for_port(port: str) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            socket.create_connection((boxes.HERE, int(port)), 1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise AssertionError("the head of Ray's cluster did not come up")


@contextmanager
def patched_environment(variables: dict[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@pytest.mark.long
@pytest.mark.skipif(not LONG, reason="minutes long; ZELLIGE_TEST_LONG=1 runs it")
@pytest.mark.skipif(importlib.util.find_spec("prefect_ray") is None, reason="pip install 'zellige[ray]' for this")
@pytest.mark.skipif(boxes.why_not() is not None, reason=str(boxes.why_not()))
@pytest.mark.parametrize("start_engine", [engine, served], ids=["colours", "served"])
def test_a_box_of_ray_and_an_engine_killed_on_the_way_cost_no_item_of_two_thousand(
    tmp_path: Path, environment: dict[str, str], start_engine: Callable[[Path, str], ServerProcess]
) -> None:
    if problem := why_no_s3(tmp_path):
        pytest.skip(problem)
    answers, store, real = draw(tmp_path / "images", ITEMS), "s3://answers/store", start_engine is served
    if real:
        answers = dict.fromkeys(answers, "") | alone(tmp_path, environment, list(answers)[::50])
    with ExitStack() as within:
        first, second = within.enter_context(boxes.boxes(2))
        cluster = Cluster(tmp_path, environment, within)
        cluster.join(first)
        cluster.join(second)
        logs = [tmp_path / f"engine-{n}.log" for n in (1, 2)]
        one, other = (within.enter_context(start_engine(log, boxes.HERE)) for log in logs)

        def counts() -> list[int]:
            return [in_this_life(server) for server in (one, other)] if real else [answered(log) for log in logs]

        within.enter_context(patched_environment(cluster.environment))
        start = time.monotonic()
        flow = begun(
            cluster.environment,
            *(tmp_path / "images", "--store", store, "--shard-items", str(SHARD_ITEMS), "--workers", "1"),
            *("--engine", one.url, "--engine", other.url, "--log-file", tmp_path / "flow.log"),
            *("--runner", "ray", "--runner-address", cluster.address, "--loops", "2"),
        )
        run = wait_for(lambda: the_run(store), flow)
        shards = ITEMS // SHARD_ITEMS
        wait_for(lambda: len(run.done_shards()) >= shards // 4 and first.name in holders(store, run), flow, 600)
        first.kill()
        wait_for(lambda: len(run.done_shards()) >= shards // 2, flow, 600)
        before = counts()[0]
        one.kill()
        wait_for(lambda: len(run.done_shards()) >= shards * 5 // 8, flow, 600)
        one.start()
        told = ended(flow)
        seconds = time.monotonic() - start
        by_engine = counts()
        if real:  # what it counted before it was killed is forgotten
            by_engine[0] += before
        assert_one_row_an_item(told, store, answers)
        kinds = Counter(event["kind"] for event in run.events())
    assert by_engine[0] > before > 0, "it is asked again once it is back"
    assert kinds["lease_taken_over"] >= 1
    assert kinds["committed"] - kinds["late_commit_dropped"] >= shards
    print(
        json.dumps(
            {
                "measure": "scale-out",
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                "cpus": os.cpu_count(),
                "engines": "zellige serve" if real else "colours",
                "items": ITEMS,
                "shard_items": SHARD_ITEMS,
                "seconds": round(seconds, 1),
                "workers": kinds["environment"],
                "rows": told["ok"],
                "answered_by_engine": by_engine,
                "events": dict(sorted(kinds.items())),
            }
        )
    )


def alone(folder: Path, environment: dict[str, str], uris: list[str]) -> dict[str, str]:
    """What the engine says to some of the pictures by itself, without workers or servers."""
    (folder / "few.txt").write_text("\n".join(uris))
    told = ended(begun(environment, folder / "few.txt", "--store", folder / "alone", "--no-prefect"))
    return {row["uri"]: row["answer"] for row in rows(folder / "alone", told["run_id"])}
