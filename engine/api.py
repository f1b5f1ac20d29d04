"""What flows see of the engine: requests, answers and the protocol. Imports nothing of ours and no torch."""

from __future__ import annotations

import math
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Role = Literal["system", "user", "assistant"]
FinishReason = Literal["stop", "length", "repetition", "nonfinite", "cancelled", "error"]


class EngineError(Exception):
    """The engine could not answer; the request may be sent again."""


class RequestRejected(EngineError):
    """The request itself is wrong (too long, bad parameter, image that cannot be seen); sending it again is useless."""


class NonFiniteLogits(EngineError):
    """The model produced NaN or infinity for this request; its answer was thrown away."""


@dataclass(frozen=True)
class VisionBudget:
    """What one image may cost a model, and the resize rule that decides it.

    Sides are rounded to multiples of ``patch * merge`` pixels (one cell, one image token) and the area is held
    between ``min_pixels`` and ``max_pixels``: the rule of the Qwen2-VL family of image processors.
    """

    patch: int
    merge: int
    min_pixels: int
    max_pixels: int
    max_aspect: float = 200.0

    @property
    def cell(self) -> int:
        """Side in pixels of the square that becomes one image token."""
        return self.patch * self.merge

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) in pixels that the model sees; raises ValueError for a shape it cannot see."""
        if width < 1 or height < 1:
            raise ValueError(f"an image of {width} x {height} pixels has no area")
        if max(width, height) / min(width, height) > self.max_aspect:
            raise ValueError(f"{width} x {height}: the longer side is over {self.max_aspect:g} times the shorter one")
        cell = self.cell
        # Python's round (half to even) is part of the rule, not an accident.
        h_bar, w_bar = round(height / cell) * cell, round(width / cell) * cell
        if h_bar * w_bar > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            h_bar = max(cell, math.floor(height / shrink / cell) * cell)
            w_bar = max(cell, math.floor(width / shrink / cell) * cell)
        elif h_bar * w_bar < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            h_bar = math.ceil(height * grow / cell) * cell
            w_bar = math.ceil(width * grow / cell) * cell
        return w_bar, h_bar

    def tokens(self, width: int, height: int) -> int:
        """Image tokens of an image of this size; raises ValueError for a shape the model cannot see."""
        w, h = self.resized(width, height)
        return (w // self.cell) * (h // self.cell)


@dataclass(frozen=True)
class TextPart:
    text: str


@dataclass(frozen=True, eq=False)
class ImagePart:
    """One image of a message: upright 8-bit RGB ``pixels`` (height, width, 3)."""

    pixels: NDArray[np.uint8]

    def __post_init__(self) -> None:
        if self.pixels.dtype != np.uint8 or self.pixels.ndim != 3 or self.pixels.shape[2] != 3:
            raise RequestRejected(
                f"an image is {self.pixels.dtype} {self.pixels.shape}; give upright uint8 (height, width, 3)"
            )


Part = TextPart | ImagePart


@dataclass(frozen=True)
class Message:
    role: Role
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen; temperature 0 is greedy. A seed makes a sampled answer repeatable."""

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    repetition_stop: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise RequestRejected(f"max_tokens is {self.max_tokens}; give at least 1")
        if not (math.isfinite(self.temperature) and 0 <= self.temperature <= 10):
            raise RequestRejected(f"temperature is {self.temperature}; give 0 (greedy) to 10")
        if not 0 < self.top_p <= 1:
            raise RequestRejected(f"top_p is {self.top_p}; give a number above 0, at most 1")
        if not 0 <= self.min_p <= 1:
            raise RequestRejected(f"min_p is {self.min_p}; give a number from 0 to 1")
        if any(not s for s in self.stop):
            raise RequestRejected("an empty stop string would stop every answer before it begins")


def _new_id() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True)
class Request:
    """One question to the model: messages, how to sample, and the run it is counted to."""

    messages: tuple[Message, ...]
    sampling: Sampling = Sampling()
    run_id: str = ""
    request_id: str = field(default_factory=_new_id)


def ask(
    prompt: str, *images: NDArray[np.uint8], sampling: Sampling | None = None, run_id: str = "", system: str = ""
) -> Request:
    """The usual request: one user message, the images first and then the text."""
    user = Message("user", (*(ImagePart(i) for i in images), TextPart(prompt)))
    head = (Message("system", (TextPart(system),)),) if system else ()
    return Request(messages=(*head, user), sampling=sampling or Sampling(), run_id=run_id)


@dataclass(frozen=True)
class Usage:
    """Token counts of one answer; ``prompt_tokens`` includes ``image_tokens``."""

    image_tokens: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True)
class Answer:
    """What came back: text without stop tokens, why it ended, what it cost.

    ``mean_logprob`` is over the generated tokens (the stop token included), by the model's own distribution;
    ``engine_s`` is seconds from arrival to the last token.
    """

    text: str
    finish_reason: FinishReason
    usage: Usage
    token_ids: tuple[int, ...] = ()
    mean_logprob: float | None = None
    engine_s: float = 0.0


@dataclass(frozen=True)
class Delta:
    """A piece of a streamed answer; the last one carries the whole ``answer``."""

    text: str
    answer: Answer | None = None


@dataclass(frozen=True)
class ModelIdentity:
    """Which model answers: what a recipe must name so that two models never mix in one run.

    A model that does not ``follow instructions`` knows fixed wordings and is asked nothing else; ``lines_at_once`` is
    how many lines of print it reads in one picture (None: as many as it sees).
    """

    name: str
    fingerprint: str
    dtype: str
    vision: VisionBudget
    max_context: int
    follows_instructions: bool = True
    lines_at_once: int | None = None


@dataclass(frozen=True)
class RunMeter:
    """Throughput of one run as the engine saw it; seconds are the engine's own, by stage."""

    requests: int = 0
    images: int = 0
    image_tokens: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    preprocess_s: float = 0.0
    vision_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


class Engine(Protocol):
    """One engine, in this process or behind a URL."""

    async def answer(self, request: Request) -> Answer:
        """Answer once; raises RequestRejected, NonFiniteLogits or EngineError. Cancel the task to cancel."""
        ...

    def stream(self, request: Request) -> AsyncIterator[Delta]:
        """Answer in pieces of whole characters."""
        ...

    async def meter(self, run_id: str) -> RunMeter:
        """Throughput of the requests that carried this run id."""
        ...

    async def identity(self) -> ModelIdentity: ...

    async def close(self) -> None: ...
