"""What a flow makes of lease loops that die, fail or are stopped, whatever runner they have; what is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from zellige.flows import runners
from zellige.flows.prefect_run import loops_of
from zellige.flows.settings import resolve
from zellige.tasks.answer import EngineDownError
from zellige.tasks.job import Job, WrongUseError
from zellige.tasks.lease import lease_loop
from zellige.tasks.plan import open_store, plan
from zellige.tasks.prefect_steps import lease_loop_task
from zellige.tasks.watch import Tally, Watch, watched_by

DEPLOYMENTS = Path(__file__).parents[2] / "configs" / "deployments"
Loop = Callable[[Job, str], object]


class Runner:
    """Runs each loop by the next of ``script``: what it gives back is the loop's end, what it raises the runner's."""

    def __init__(self, *script: Loop) -> None:
        self.script, self.started = list(script), 0

    def submit(self, _task: Any, parameters: dict[str, Any]) -> Any:
        self.started += 1
        loop = self.script.pop(0)

        class Future:
            def result(self, raise_on_failure: bool) -> object:
                return loop(parameters["job"], parameters["run_id"])

        return Future()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def answers(job: Job, run_id: str) -> None:
    lease_loop(job, run_id)


def dies(_job: Job, _run_id: str) -> None:
    raise RuntimeError("the worker is gone")


def fails(_job: Job, _run_id: str) -> Exception:
    return EngineDownError("the engine is gone")


@pytest.fixture
def job(fake: Any, draw: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(runners, "_told_where_prefect_is", nullcontext)
    for n in range(6):
        folder = draw(f"{n}.png", (n, 0, 0)).parent
    return Job("caption", str(tmp_path / "store"), (str(folder),), shard_items=2, loops=2, workers=1)


def answered(job: Job, runner: Any, watch: Watch | None = None) -> str:
    """The state of the run after its loops."""
    with watched_by(watch or Watch()):
        run_id = plan(job)
        assert run_id is not None
        runners._answer(runner, job, run_id)
    return open_store(job).open_run(run_id).state()


def test_a_loop_that_dies_or_fails_costs_nothing_while_another_answers(job: Job) -> None:
    for bad in (dies, fails):
        runner = Runner(bad, answers)
        assert (answered(job, runner), runner.started) == ("finished", 2)


def test_what_dead_loops_leave_is_taken_up_by_one_more(job: Job) -> None:
    runner = Runner(dies, dies, answers)
    assert (answered(job, runner), runner.started) == ("finished", 3)


def test_where_every_loop_failed_its_error_is_the_flows(job: Job) -> None:
    runner = Runner(fails, fails)
    with pytest.raises(EngineDownError, match="the engine is gone"):
        answered(job, runner)
    with pytest.raises(runners.LoopGone, match="the worker is gone"):
        answered(job, Runner(dies, fails, dies))


def test_a_stopped_run_starts_no_further_loop(job: Job) -> None:
    watch = Watch()
    watch.stop.set()
    runner = Runner(dies, dies)
    assert (answered(job, runner, watch), runner.started) == ("interrupted", 2)


def test_progress_is_what_all_loops_have_committed(job: Job) -> None:
    told: list[tuple[int, int]] = []

    def hear(tally: Tally) -> None:
        told.append((tally.items, tally.items_total))

    answered(job, Runner(answers, answers), Watch(on_change=hear))
    assert told[-1] == (6, 6)


def test_one_loop_in_the_flows_own_process_is_the_plain_step() -> None:
    assert loops_of(Job("caption", "store", runner="thread", loops=1)) is lease_loop_task


@pytest.mark.parametrize("name", ["dask", "ray"])
def test_a_runner_that_is_not_installed_names_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, f"prefect_{name}", None)
    with pytest.raises(WrongUseError, match=rf"pip install 'zellige\[{name}\]'"):
        loops_of(Job("caption", "store", runner=name))


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        ({"runner": "slurm"}, "there are thread, dask, ray"),
        ({"loops": 0}, "from 1 to 200"),
        ({"runner_address": "box:6379"}, "--runner dask or --runner ray"),
    ],
)
def test_loops_that_cannot_be_are_refused(wrong: dict[str, Any], advice: str) -> None:
    with pytest.raises(WrongUseError, match=advice):
        Job("caption", "store", **wrong)


def test_loops_without_prefect_are_refused(zellige: Any, draw: Any, tmp_path: Path) -> None:
    told = zellige("caption", draw("a.png"), "--store", tmp_path / "store", "--no-prefect", "--loops", "2")
    assert (told.returncode, "leave --no-prefect out" in told.stderr) == (2, True)


@pytest.mark.parametrize("name", ["dask", "ray"])
def test_a_deployment_that_ships_is_a_job(name: str) -> None:
    found = {key: setting.value for key, setting in resolve({}, [], DEPLOYMENTS / f"{name}.toml", {}).items()}
    job = Job("caption", "store", **found | {"engines": tuple(found["engines"])})
    assert (job.runner, job.loops, len(job.engine.urls)) == (name, 4, 4)
