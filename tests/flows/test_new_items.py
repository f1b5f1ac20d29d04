"""``--new``: what was left is finished first, then only what no run of the recipe has answered is asked about."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zellige.data.ledger import Store
from zellige.flows.pipeline import exit_code, run_job
from zellige.tasks.job import Job, WrongUseError

Draw = Callable[..., Path]
Rows = Callable[[Path, str], list[dict[str, Any]]]


@pytest.fixture
def night(fake: Any, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """One night of captioning ``tmp_path/images``; its summary."""

    def run(**changes: Any) -> dict[str, Any]:
        given = {"inputs": (str(tmp_path / "images"),), "store": str(tmp_path / "store"), "new_only": True}
        return run_job(Job(task="caption", **(given | changes)))

    return run


def names(store: Path, run_id: str, rows: Rows) -> list[str]:
    return [row["uri"].rpartition("/")[2] for row in rows(store, run_id)]


def test_night_asks_about_new_and_changed_files_only_and_an_empty_one_makes_no_run(
    night: Any, draw: Draw, tmp_path: Path, rows: Rows
) -> None:
    store = tmp_path / "store"
    a, b = draw("a.png", (1, 2, 3)), draw("b.png", (4, 5, 6))
    assert night()["items"] == 2
    done = night()
    assert (done["run_id"], done["state"], done["items"]) == (None, "finished", 0)
    os.utime(a)  # another time, and the same content
    assert night()["run_id"] is None
    draw("c.png", (7, 8, 9))
    b.write_bytes(a.read_bytes())
    third = night()
    assert names(store, third["run_id"], rows) == ["b.png", "c.png"]
    assert len(Store(store).run_ids()) == 2
    # Another recipe has answered nothing yet.
    assert night(prompt="What is this?")["items"] == 3


def test_archive_that_grew_gives_its_new_members_only(night: Any, draw: Draw, tmp_path: Path, rows: Rows) -> None:
    import zipfile

    archive = tmp_path / "images" / "all.zip"
    a, b = draw("../a.png", (1, 2, 3)), draw("../b.png", (4, 5, 6))
    archive.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(archive, "w") as file:
        file.write(a, "a.png")
    assert night()["items"] == 1
    with zipfile.ZipFile(archive, "a") as file:
        file.write(b, "b.png")
    done = night()
    assert [row["member"] for row in rows(tmp_path / "store", done["run_id"])] == ["b.png"]


@pytest.mark.parametrize("planning", [False, True])
def test_run_that_was_killed_is_finished_before_the_next_one_begins(
    night: Any, zellige: Any, draw: Draw, tmp_path: Path, rows: Rows, planning: bool
) -> None:
    store, folder = tmp_path / "store", draw("00.png", (0, 0, 0), (16, 16)).parent
    assert night()["items"] == 1
    for i in range(1, 12):
        draw(f"{i:02}.png", (i, 0, 0), (16, 16))
    slow = {"FAKE_LISTING_PAUSE_S": "0.7"} if planning else {"FAKE_ENGINE_DELAY_S": "0.3"}
    arguments = ("caption", folder, "--store", store, "--new", "--shard-items", "2", "--no-prefect", "--quiet")
    process = zellige.start(*arguments, **slow)
    before = set(Store(store).run_ids())
    end = time.monotonic() + 60
    while not (
        set(Store(store).run_ids()) - before if planning else list(store.glob("runs/*/parts/shard-00001.parquet"))
    ):
        assert time.monotonic() < end
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    (killed,) = set(Store(store).run_ids()) - before
    draw("12.png", (12, 0, 0), (16, 16))

    done = night()
    assert done["finished_first"] == {killed: 0}
    listed = [name for run_id in {killed, done["run_id"]} for name in names(store, run_id, rows)]
    assert sorted(listed) == [f"{i:02}.png" for i in range(1, 13)]


def test_failed_rows_of_what_was_finished_first_are_told_by_the_exit_code() -> None:
    done: dict[str, Any] = {"state": "finished", "failed": 0, "finished_first": {"a": 0}}
    assert exit_code(done) == 0
    assert exit_code(done | {"finished_first": {"a": 0, "b": 2}}) == 3


def test_new_run_of_a_name_that_is_there_takes_it_up_again(night: Any, draw: Draw, tmp_path: Path) -> None:
    """What a flow run does that is tried again."""
    draw("a.png")
    first = night(run_id="of-a-flow-run")
    draw("b.png", (9, 9, 9))
    for new_only in (True, False):
        again = night(run_id="of-a-flow-run", new_only=new_only)
        assert (again["run_id"], again["items"]) == ("of-a-flow-run", first["items"])
    assert Store(tmp_path / "store").run_ids() == ["of-a-flow-run"]


def test_new_and_resume_are_not_given_together(night: Any) -> None:
    with pytest.raises(WrongUseError, match="--new"):
        night(resume="x")


def test_command_says_that_nothing_is_new(zellige: Any, draw: Draw, tmp_path: Path) -> None:
    arguments = ("caption", draw("a.png"), "--store", tmp_path / "store", "--new", "--no-prefect")
    assert zellige(*arguments).returncode == 0
    told = zellige(*arguments)
    assert told.returncode == 0
    assert "nothing new in" in told.stderr
    assert zellige.json(*arguments)["run_id"] is None
