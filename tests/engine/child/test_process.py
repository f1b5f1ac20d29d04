"""The engine in a process of its own is the same engine, and the process neither outlives nor hides anything."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from zellige.engine.api import Delta, EngineError, RequestRejected, Sampling, TokenLogprob, ask
from zellige.engine.checkpoint import CheckpointError
from zellige.engine.child.engine import ProcessEngine
from zellige.engine.child.jobs import Job
from zellige.engine.config import ConfigError, in_child
from zellige.engine.connect import EngineSpec, open_local
from zellige.engine.local import LocalEngine

PICTURE = np.random.default_rng(1).integers(0, 255, (90, 120, 3), dtype=np.uint8)


def opened(model: str | Path, **limits: float) -> ProcessEngine:
    engine = open_local(EngineSpec(model=str(model), limits=tuple({"child": True, **limits}.items())))
    assert isinstance(engine, ProcessEngine)
    return engine


def test_answers_identity_meter_and_errors_are_those_of_the_engine_inside(model_folder: Path) -> None:
    async def work(engine: LocalEngine | ProcessEngine):
        sampling = Sampling(max_tokens=8, ignore_eos=True, logprobs=2)
        request = ask("one", PICTURE, PICTURE[:, ::2], sampling=sampling, run_id="r")
        answer = await engine.answer(request)
        deltas = [d async for d in engine.stream(ask("one", PICTURE, PICTURE[:, ::2], sampling=sampling, run_id="r"))]
        said = (answer.text, answer.token_ids, answer.usage, [t.token_id for t in answer.logprobs])
        pieces = [(d.text, len(d.logprobs)) for d in deltas]
        with pytest.raises(RequestRejected, match="context holds") as rejected:
            await engine.answer(ask("x" * 10**5))
        task = asyncio.create_task(engine.answer(ask("two", sampling=Sampling(max_tokens=2000, ignore_eos=True))))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await engine.answer(ask("three", sampling=Sampling(max_tokens=2), run_id="other"))
        meter, stats = await engine.meter("r"), engine.stats()
        counts = (
            meter.requests,
            meter.images,
            meter.completion_tokens,
            {k.operator for k in meter.kernels if k.launches},  # how many depends on who came into which step
        )
        left = (stats.running, stats.waiting, stats.cache_blocks - stats.cache_blocks_free)
        identity = await engine.identity()
        await engine.close()
        await engine.close()
        with pytest.raises((EngineError, RuntimeError)):
            await engine.answer(ask("four"))
        return said, pieces, str(rejected.value), counts, left, identity

    inside = asyncio.run(work(LocalEngine.load(model_folder)))
    assert asyncio.run(work(opened(model_folder))) == inside


def test_what_is_wrong_at_the_start_is_told_as_without_a_process(tmp_path: Path, model_folder: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError) as without:
        open_local(EngineSpec(model=str(tmp_path)))
    with pytest.raises(CheckpointError) as within:
        opened(tmp_path)
    assert str(within.value) == str(without.value)
    with pytest.raises(ConfigError, match="no such setting"):
        opened(model_folder, no_such_limit=1)


def test_the_process_is_asked_for_by_a_setting_and_needs_no_torch_in_the_parent() -> None:
    assert in_child("cuda:1", {"child": True})
    assert not in_child(None, {})
    assert not in_child("cuda", {})
    check = "import sys, zellige.engine.child.engine, zellige.engine.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


PARENT = """
import sys, time
from zellige.engine.connect import EngineSpec, open_local
engine = open_local(EngineSpec(model=sys.argv[1], limits=(("child", True),)))
try:
    print(engine._hand.child._process.pid, flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    time.sleep(60)
"""


def test_the_process_heeds_no_interrupt_and_ends_with_a_parent_that_is_killed(model_folder: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, model_folder], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    os.killpg(parent.pid, signal.SIGINT)
    os.kill(child, signal.SIGINT)
    assert parent.stdout.readline() == "interrupted\n"
    assert alive(child)
    parent.kill()
    parent.wait()
    end = time.monotonic() + 10
    while alive(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert not alive(child)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class TestAStreamComputedAgain:
    """Its caller gets what is new of it, or is told that there is no going on."""

    def job(self) -> Job:
        job = Job(0, ask("?"), True, None)  # type: ignore[arg-type]
        for piece in ("one ", "two "):
            assert job.passed_on(Delta(piece, logprobs=(TokenLogprob(1, b"", 0.0),)))
        job.rewind()
        return job

    def test_goes_on_behind_what_was_sent(self) -> None:
        job, again = self.job(), [Delta(p, logprobs=(TokenLogprob(1, b"", 0.0),)) for p in ("one ", "two ", "three")]
        assert [job.passed_on(d) for d in again] == [None, None, again[2]]

    def test_goes_on_in_the_middle_of_a_piece(self) -> None:
        assert self.job().passed_on(Delta("one two three")) == Delta("three")

    def test_dies_again_and_still_knows_what_was_sent(self) -> None:
        job = self.job()
        assert job.passed_on(Delta("one ")) is None
        job.rewind()
        assert job.passed_on(Delta("one two three")) == Delta("three")

    def test_fails_where_it_is_another_one(self) -> None:
        assert isinstance(self.job().passed_on(Delta("one three")), EngineError)
