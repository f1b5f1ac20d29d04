"""An engine without a model: it answers with the colour it sees and fails where a picture tells it to.

As a script it is the ``zellige`` command with this engine in place of the real one.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from zellige.data.schema import Item
from zellige.engine import connect
from zellige.engine.api import (
    Answer,
    Delta,
    EngineError,
    FinishReason,
    ImagePart,
    ModelIdentity,
    NonFiniteLogits,
    Request,
    RequestRejected,
    RunMeter,
    TextPart,
    Usage,
    VisionBudget,
)

#: What the picture's first pixel tells the engine to do.
REJECT, FAIL, FAIL_ONCE, NONFINITE, LOOP, CUT, EMPTY, LOOP_IF_GREEDY, CRASH = ((255, 0, n) for n in range(1, 10))
BUDGET = VisionBudget(patch=16, merge=2, min_pixels=32 * 32, max_pixels=128 * 128)
LOOP_TEXT = "a red circle, " * 40


class FakeEngine:
    """Sees the mean colour; ``asked`` are the prompts in the order they came, ``most_at_once`` how many overlapped."""

    def __init__(self, model: str = "fake", delay_s: float = 0.002) -> None:
        self.model, self.delay_s = model, delay_s
        self.asked: list[str] = []
        self.most_at_once = 0
        self.closed = False
        self._at_once = 0
        self._failed: Counter[bytes] = Counter()
        self._meter = RunMeter()
        self._random = random.Random(0)

    async def answer(self, request: Request) -> Answer:
        image, text = request.messages[-1].parts
        assert isinstance(image, ImagePart)
        assert image.pixels is not None
        assert isinstance(text, TextPart)
        self.asked.append(text.text)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await asyncio.sleep(self.delay_s * self._random.random() * 2)
            said, finish = self._say(image.pixels, request)
        finally:
            self._at_once -= 1
        height, width = image.pixels.shape[:2]
        usage = Usage(BUDGET.tokens(width, height), BUDGET.tokens(width, height) + 5, len(said.split()))
        self._meter = replace(self._meter, requests=self._meter.requests + 1, vision_s=self._meter.vision_s + 0.001)
        return Answer(said, finish, usage, mean_logprob=-0.1, engine_s=0.01)

    def _say(self, pixels: NDArray[np.uint8], request: Request) -> tuple[str, FinishReason]:
        first = tuple(int(v) for v in pixels[0, 0])
        if first == REJECT:
            raise RequestRejected("the prompt is too long")
        if first == NONFINITE:
            raise NonFiniteLogits("layer 3 produced NaN")
        if first == CRASH:
            raise ZeroDivisionError("a fault of the engine's own")
        if first == FAIL:
            raise EngineError("the device is gone")
        if first == FAIL_ONCE and not self._failed[pixels.tobytes()]:
            self._failed[pixels.tobytes()] += 1
            raise EngineError("the device was gone for a moment")
        if first == LOOP or (first == LOOP_IF_GREEDY and request.sampling.temperature == 0):
            return LOOP_TEXT, "repetition"
        if first == CUT:
            return "a red", "length"
        if first == EMPTY:
            return "  ", "stop"
        red, green, blue = pixels.reshape(-1, 3).mean(axis=0)
        return f"colour {red:.0f} {green:.0f} {blue:.0f}", "stop"

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        answer = await self.answer(request)
        yield Delta(answer.text, answer)

    async def meter(self, run_id: str) -> RunMeter:
        return self._meter

    async def identity(self) -> ModelIdentity:
        return ModelIdentity(self.model, f"fingerprint-of-{self.model}", "float32", BUDGET, 4096)

    async def close(self) -> None:
        self.closed = True


def list_slowly(pause_s: float) -> None:
    """Let planning take as long as it does with storage that is far away."""
    from zellige.data.sources.inputs import InputSource

    def items(self: InputSource) -> Iterator[Item]:
        for item in listed(self):
            time.sleep(pause_s)
            yield item

    listed = InputSource.items
    InputSource.items = items  # type: ignore[method-assign]


if __name__ == "__main__":
    from zellige.flows.cli import main

    list_slowly(float(os.environ.get("FAKE_LISTING_PAUSE_S", "0")))

    delay_s = float(os.environ.get("FAKE_ENGINE_DELAY_S", "0.002"))
    connect.open_engine = lambda spec: FakeEngine(spec.model or "fake", delay_s)
    main()
