"""``--engine URL``: the rows that the engine in this process gives, also through restarts; what is told without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from PIL import Image

from zellige.data.samples import draw_scene, held_out_kit
from zellige.flows.pipeline import run_job
from zellige.tasks.job import Job, WrongUseError

sys.path.insert(0, str(Path(__file__).parent.parent / "engine" / "remote"))

from processes import ServerProcess, free_port

#: What differs between two runs that gave the same answers.
OF_THE_RUN = {"run_id", "created_at", "decode_s", "engine_s"}
LONG = os.environ.get("ZELLIGE_TEST_LONG") == "1"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """``zellige serve`` with the checkpoint that ships."""
    log = tmp_path_factory.mktemp("server") / "log"
    with ServerProcess(
        ["-c", "from zellige.flows.cli import main; main()", "serve", "--port", "{port}"], log
    ) as started:
        yield started


def draw(folder: Path, count: int, large: int = 0) -> Path:
    folder.mkdir()
    kit = held_out_kit("asked of a server")
    for i in range(count + large):
        size = (224, 160) if i < count else (900, 640)
        Image.fromarray(draw_scene(kit, *size).pixels).save(folder / f"{i}.png")
    return folder


def begun(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from zellige.flows.cli import main; main()", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def zellige(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    with begun(*arguments) as process:
        said, problems = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, said, problems)


def rows(store: Path, run_id: str) -> list[dict[str, Any]]:
    table = ds.dataset(store / "runs" / run_id / "parts", format="parquet").to_table()
    return sorted(table.to_pylist(), key=lambda r: str(r["uri"]))


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what is its run's own."""
    return {k: v for k, v in row.items() if k not in OF_THE_RUN}


def near(row: dict[str, Any]) -> dict[str, Any]:
    """Equal to a plain row but for the last digits of probabilities, which the company in a batch moves."""
    tiles = [{**t, "confidence": pytest.approx(t["confidence"], abs=1e-4)} for t in row["tiles"]]
    return plain(row) | {"mean_logprob": pytest.approx(row["mean_logprob"], abs=1e-4), "tiles": tiles}


def test_a_server_gives_the_rows_that_the_engine_in_this_process_gives(server: ServerProcess, tmp_path: Path) -> None:
    images = draw(tmp_path / "images", 4, large=1)
    store = tmp_path / "store"
    done = zellige("caption", images, "--store", store, "--engine", server.url, "--no-prefect", "--json")
    assert done.returncode == 0, done.stderr
    remote = rows(store, json.loads(done.stdout)["run_id"])
    local = rows(store, run_job(Job("caption", str(store), (str(images),)))["run_id"])
    assert [plain(r) for r in remote] == [near(r) for r in local]
    assert len(remote) == 5
    assert all(r["answer"] and r["mean_logprob"] is not None for r in remote)
    assert len(remote[-1]["tiles"]) > 1, "the large one was seen in tiles"


def test_a_run_begun_at_a_server_is_resumed_there_or_in_this_process(server: ServerProcess, tmp_path: Path) -> None:
    images, store = draw(tmp_path / "images", 3), tmp_path / "store"
    run_id = run_job(Job("caption", str(store), (str(images),), engines=(server.url,)))["run_id"]
    for part in (store / "runs" / run_id / "parts").glob("*.parquet"):
        part.unlink()
    again = run_job(Job("caption", str(store), resume=run_id))
    assert (again["state"], again["ok"]) == ("finished", 3)


def test_a_server_killed_and_started_again_in_the_middle_of_a_run_costs_no_item(
    server: ServerProcess, tmp_path: Path
) -> None:
    """``ZELLIGE_TEST_LONG=1``: killed three times."""
    images, store = draw(tmp_path / "images", 48), tmp_path / "store"
    options = ["--store", store, "--engine", server.url, "--shard-items", "4", "--no-prefect", "--json"]
    with begun("caption", images, *options) as run:
        for parts in (1, 3, 5) if LONG else (1,):
            while run.poll() is None and len(list(store.glob("runs/*/parts/*.parquet"))) < parts:
                time.sleep(0.01)
            server.kill()
            assert run.poll() is None, "the run ended before its server was killed"
            server.start()
        said, problems = run.communicate(timeout=180)
    assert run.returncode == 0, problems
    done = json.loads(said)
    assert (done["state"], done["failed"]) == ("finished", 0)
    found = rows(store, done["run_id"])
    assert len(found) == len({r["uri"] for r in found}) == 48
    assert all(r["answer"] for r in found)


def test_an_engine_that_is_not_there_is_told_before_there_is_a_run(tmp_path: Path) -> None:
    images, url = draw(tmp_path / "images", 1), f"http://127.0.0.1:{free_port()}/v1"
    done = zellige("caption", images, "--store", tmp_path / "store", "--engine", url, "--no-prefect")
    assert done.returncode == 1
    assert "no engine answers" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("store/runs/*"))


def test_a_model_that_the_server_lacks_is_wrong_use_and_makes_no_run(server: ServerProcess, tmp_path: Path) -> None:
    images, store = draw(tmp_path / "images", 1), tmp_path / "store"
    done = zellige("caption", images, "--store", store, "--engine", f"{server.url}#another", "--no-prefect")
    assert (done.returncode, "has no model 'another'; it serves " in done.stderr) == (2, True)
    assert not list(store.glob("runs/*"))


@pytest.mark.parametrize("given", ["localhost:8000", "http://key:secret@host/v1"])
def test_what_is_no_url_is_told(tmp_path: Path, given: str) -> None:
    images = draw(tmp_path / "images", 1)
    done = zellige("caption", images, "--store", tmp_path / "store", "--engine", given, "--no-prefect")
    assert done.returncode == 2
    assert "--engine" in done.stderr
    assert "secret" not in done.stderr


def test_device_and_dtype_are_the_servers_to_decide() -> None:
    with pytest.raises(WrongUseError, match="--dtype"):
        Job("caption", "store", ("images",), engines=("http://h/v1",), dtype="float32")
    job = Job("caption", "store", ("images",), engines=("http://a:1/v1,http://b:2/v1", "http://c:3/v1"))
    assert job.engine.urls == ("http://a:1/v1", "http://b:2/v1", "http://c:3/v1")
