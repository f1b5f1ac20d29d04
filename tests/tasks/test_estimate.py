"""How long a run will take, told by a few answers of an engine whose speed is known."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from zellige.data.schema import Item
from zellige.engine import connect
from zellige.engine.api import Answer, EngineError, ImagePart, ModelIdentity, Request, RunMeter, Usage, VisionBudget
from zellige.tasks import answer, estimate
from zellige.tasks.estimate import MOST_CALLS, Reservoir, Sample
from zellige.tasks.forecast import forecast
from zellige.tasks.host import close_engines
from zellige.tasks.job import Job

BUDGET = VisionBudget(patch=16, merge=2, min_pixels=32 * 32, max_pixels=128 * 128)
ITEMS = 40
SECONDS = 0.05


class OneByOne:
    """Takes ``SECONDS`` a vision token, one request after another; ``broken`` answers nothing."""

    def __init__(self, broken: bool = False) -> None:
        self.broken, self.asked = broken, 0
        self._turn = asyncio.Lock()

    async def answer(self, request: Request) -> Answer:
        if self.broken:
            raise EngineError("the device is gone")
        image = request.messages[-1].parts[0]
        assert isinstance(image, ImagePart)
        assert image.pixels is not None
        tokens = BUDGET.tokens(image.pixels.shape[1], image.pixels.shape[0])
        async with self._turn:
            await asyncio.sleep(SECONDS * tokens)
        self.asked += 1
        return Answer("a square", "stop", Usage(tokens, tokens, 2), mean_logprob=-0.1, engine_s=0.0)

    async def meter(self, run_id: str) -> RunMeter:
        return RunMeter()

    async def identity(self) -> ModelIdentity:
        return ModelIdentity("steady", "f", "float32", BUDGET, 4096)

    async def close(self) -> None:
        pass


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[OneByOne]:
    one = OneByOne()
    monkeypatch.setattr(connect, "open_engine", lambda _: one)
    monkeypatch.setattr(answer, "FIRST_PAUSE_S", 0.001)
    yield one
    close_engines()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for n in range(ITEMS):
        side = (32, 64)[n % 2]
        Image.fromarray(np.full((side, side, 3), n, np.uint8)).save(tmp_path / f"{n:02}.png")
    (tmp_path / "bad.png").write_bytes(b"no picture")
    return tmp_path


def told(folder: Path, **more: Any) -> Any:
    return forecast(Job("caption", "", (str(folder),), **more))


def test_time_that_a_steady_engine_takes_lies_in_the_range(
    engine: OneByOne, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "ENOUGH_S", 1.5)
    found = told(folder, workers=1)
    assert found.vision_tokens == ITEMS / 2 * (1 + 4)
    assert found.seconds is not None
    fast, slow = found.seconds
    assert found.vision_tokens * SECONDS < slow
    assert fast < found.vision_tokens * SECONDS * 3  # a machine that is busy elsewhere decodes slowly
    assert 2 <= found.answered == engine.asked < ITEMS
    assert (found.kinds, len(found.unreadable)) == ({"image/png": ITEMS}, 1)


def test_engine_that_answers_nothing_gives_no_estimate_and_says_why(engine: OneByOne, folder: Path) -> None:
    engine.broken = True
    found = told(folder)
    assert (found.seconds, "the device is gone" in (found.no_estimate or "")) == (None, True)


def test_single_item_and_none_at_all(engine: OneByOne, folder: Path, tmp_path: Path) -> None:
    assert told(folder, limit=1).seconds is not None
    asked = engine.asked
    found = told(folder / "bad.png")
    assert (found.seconds, found.no_estimate, found.calls, engine.asked) == (None, None, 0, asked)


def test_items_of_too_many_calls_are_no_samples(
    engine: OneByOne, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "MOST_CALLS", 1)
    found = forecast(Job("ask", "", (str(folder),), questions=("a?", "b?")))
    assert found.seconds is None
    assert "no item takes" in (found.no_estimate or "")
    assert engine.asked == 0


def test_samples_are_spread_over_all_that_is_offered() -> None:
    reservoir = Reservoir()
    for n in range(10_000):
        reservoir.offer(Sample(Item(f"file:///{n}"), 1 if n % 2 else MOST_CALLS + 1, n))
    kept = [sample.tokens for sample in reservoir.kept]
    assert len(set(kept)) == len(kept) == sum(estimate.GROUPS)
    assert all(n % 2 for n in kept)
    assert 3500 < sum(kept) / len(kept) < 6500
