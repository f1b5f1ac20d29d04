"""A request that kills the engine's process fails by name; those that were computed with it get their answers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from zellige.engine.api import (
    Answer,
    EngineError,
    EngineUnavailable,
    Request,
    RequestFatal,
    Sampling,
    ask,
)
from zellige.engine.child import keeper, process
from zellige.engine.child.engine import ProcessEngine
from zellige.engine.connect import EngineSpec, open_local
from zellige.engine.local import LocalEngine

T = TypeVar("T")
PLANTED = str(Path(__file__).parent / "planted.py")


def question(number: int, request_id: str = "", run_id: str = "run", **sampling: object) -> Request:
    rng = np.random.default_rng(number)
    image = rng.integers(0, 255, (64 + 8 * number, 96, 3), dtype=np.uint8)
    wanted = Sampling(**{"max_tokens": 24, "ignore_eos": True, **sampling})
    request = ask(f"the thing {number}", image, sampling=wanted, run_id=run_id)
    return Request(request.messages, request.sampling, run_id, request_id or f"innocent{number}")


def run(work: Callable[[ProcessEngine], Awaitable[T]], folder: Path) -> T:
    async def inside() -> T:
        engine = open_local(EngineSpec(model=str(folder), limits=(("child", True),)))
        assert isinstance(engine, ProcessEngine)
        try:
            return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(asyncio.wait_for(inside(), 120))


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Start processes with this fault from now on; the file that names those in which it struck."""

    def planted(what: str) -> Path:
        monkeypatch.setattr(process, "COMMAND", (sys.executable, PLANTED, what, str(tmp_path / "struck")))
        return tmp_path / "struck"

    return planted


@pytest.fixture(scope="module")
def expected(model_folder: Path) -> dict[int, tuple[int, ...]]:
    """The tokens of each question, from an engine in this process."""

    async def work() -> dict[int, tuple[int, ...]]:
        engine = LocalEngine.load(model_folder)
        answers = await asyncio.gather(*(engine.answer(question(i)) for i in range(9)))
        await engine.close()
        return {i: a.token_ids for i, a in enumerate(answers)}

    return asyncio.run(work())


@pytest.mark.parametrize("what", ["raises", "segfault", "hang"])
def test_of_eight_requests_seven_are_answered_and_the_guilty_one_fails_by_name(
    what: str, model_folder: Path, plant: Callable[[str], Path], expected: dict[int, tuple[int, ...]], monkeypatch
) -> None:
    struck = plant(what)
    monkeypatch.setattr(process, "STALL_S", 5.0)
    monkeypatch.setattr(keeper, "LOOK_S", 0.1)

    async def work(engine: ProcessEngine):
        async def streamed(request: Request) -> tuple[str, Answer]:
            deltas = [d async for d in engine.stream(request)]
            assert deltas[-1].answer is not None
            return "".join(d.text for d in deltas), deltas[-1].answer

        innocent = [streamed(question(i)) if i % 2 else engine.answer(question(i)) for i in range(7)]
        guilty = engine.answer(question(7, "guilty late", run_id="guilty run"))
        got = await asyncio.gather(*innocent, guilty, return_exceptions=True)
        after = await engine.answer(question(8))
        return got, after, await engine.meter("run"), await engine.meter("guilty run"), engine.stats()

    got, after, meter, guilty_meter, stats = run(work, model_folder)
    fatal = got.pop()
    assert isinstance(fatal, RequestFatal)
    assert "planted_norm" in str(fatal)
    assert "float32 [3, 64]" in str(fatal)
    for i, answer in enumerate(got):
        if i % 2:
            text, answer = answer
            assert text == answer.text, "what was streamed before its process died is not sent twice"
        assert answer.token_ids == expected[i]
    assert after.token_ids == expected[8]
    assert len(set(struck.read_text().split())) == 2, "once among the others, once alone"
    assert meter.requests == 8
    (row,) = [k for k in guilty_meter.kernels if k.operator == "planted_norm"]
    assert (row.verdict, row.launch_errors, row.device) == ("failed", 1, "cpu")
    assert {k.verdict for k in meter.kernels} == {"unchecked"}, "nothing is said against what the others computed"
    assert stats.failure is None
    assert stats.pause is None


def test_a_death_that_does_not_come_again_costs_only_a_stream_that_cannot_be_taken_up(
    model_folder: Path, plant: Callable[[str], Path], expected: dict[int, tuple[int, ...]]
) -> None:
    plant("fails once")

    async def work(engine: ProcessEngine):
        async def streamed() -> str:
            return "".join([d.text async for d in engine.stream(question(3, temperature=2.0))])

        requests = [question(0), question(1), question(2, "guilty late")]
        got = await asyncio.gather(*map(engine.answer, requests), streamed(), return_exceptions=True)
        return got, await engine.meter("run")

    got, meter = run(work, model_folder)
    error = got.pop()
    assert isinstance(error, EngineError), "without a seed it came out otherwise, and pieces of it had gone out"
    assert "came out otherwise" in str(error)
    assert [a.token_ids for a in got] == [expected[i] for i in range(3)]
    (row,) = [k for k in meter.kernels if k.operator == "planted_norm"]
    assert (row.verdict, row.launch_errors) == ("failed", 1), "the run's record tells of it all the same"


def test_an_engine_whose_every_step_kills_it_is_given_up_after_some_deaths(
    model_folder: Path, plant: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    struck = plant("always")
    monkeypatch.setattr(keeper, "MOST_DEATHS", 2)

    async def work(engine: ProcessEngine):
        requests = [question(0), question(1, "guilty"), question(2)]
        got = await asyncio.gather(*map(engine.answer, requests), return_exceptions=True)
        with pytest.raises(EngineUnavailable, match="died 2 times"):
            await engine.answer(question(3))
        return got, engine.stats().failure

    got, failure = run(work, model_folder)
    assert all(isinstance(error, EngineError) for error in got), got
    assert failure is not None
    assert "zellige doctor" in failure
    assert len(set(struck.read_text().split())) == 2
