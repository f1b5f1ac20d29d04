"""What flows see of the engine: requests, answers and the protocol. Imports nothing of ours and no torch."""

from __future__ import annotations

import hashlib
import math
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

Role = Literal["system", "user", "assistant"]
FinishReason = Literal["stop", "length", "repetition", "nonfinite", "cancelled", "error"]


class EngineError(Exception):
    """The engine could not answer; the request may be sent again."""


class EngineUnavailable(EngineError):
    """The engine answers nobody for now: its client tried for as long as it may, or is not let in. Not sent again."""


class EngineUnfit(EngineUnavailable):
    """What answers cannot serve: no such model there, the key is wrong, or it is no such API. Waiting does not help."""


class RequestRejected(EngineError):
    """The request itself is wrong (too long, bad parameter, image that cannot be seen); sending it again is useless."""


class RequestFatal(EngineError):
    """Computing this request ended the engine's process twice, the second time alone; it is not to be sent again."""


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


#: Bounds of a request's output settings: what one client asks for must not slow down the others.
MAX_LOGPROBS, MAX_STOPS, MAX_STOP_CHARS, MAX_BIASED = 20, 64, 1000, 1000


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen and where the answer ends; raises RequestRejected for values that make no sense.

    ``temperature`` 0 is greedy. Logits first get ``logit_bias`` (token id, number added) and the penalties (for each
    generated token: ``presence_penalty`` once, ``frequency_penalty`` as often as it came); then they are divided by the
    temperature; then ``top_k`` (0 or -1: all), ``top_p`` and ``min_p`` cut, in this order. A ``seed`` makes a sampled
    answer repeatable. ``stop`` strings are not part of the answer. Nothing but ``max_tokens`` ends it before
    ``min_tokens``. ``logprobs`` asks for the log-probability of every token and of so many of the likeliest in its
    place.
    """

    max_tokens: int = 256
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    repetition_stop: bool = False
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None

    def __post_init__(self) -> None:
        _integer("max_tokens", self.max_tokens, 1)
        _integer("min_tokens", self.min_tokens, 0)
        if self.min_tokens > self.max_tokens:
            raise RequestRejected(f"min_tokens is {self.min_tokens}, more than max_tokens {self.max_tokens}")
        _number("temperature", self.temperature, 0, 10)
        _number("top_p", self.top_p, 0, 1)
        if self.top_p == 0:
            raise RequestRejected("top_p is 0, which leaves no token; give a number above 0, at most 1")
        _integer("top_k", self.top_k, -1)
        _number("min_p", self.min_p, 0, 1)
        if self.seed is not None:
            _integer("seed", self.seed)
        for name in ("frequency_penalty", "presence_penalty"):
            _number(name, getattr(self, name), -2, 2)
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        self._check_stops()
        if len(self.logit_bias) > MAX_BIASED:
            raise RequestRejected(f"logit_bias names {len(self.logit_bias)} tokens; at most {MAX_BIASED} are possible")
        for token, bias in self.logit_bias:
            _integer("a token id in logit_bias", token, 0)
            _number(f"logit_bias of token {token}", bias, -100, 100)
        if len({token for token, _ in self.logit_bias}) < len(self.logit_bias):
            raise RequestRejected("logit_bias names a token twice")

    def _check_stops(self) -> None:
        if isinstance(self.stop, str) or len(self.stop) > MAX_STOPS:
            raise RequestRejected(f"stop takes a list of at most {MAX_STOPS} strings")
        for s in self.stop:
            if not isinstance(s, str):
                raise RequestRejected(f"stop holds {s!r}, which is not a string")
            if not s:
                raise RequestRejected("stop holds an empty string, which would stop every answer before it begins")
            if len(s) > MAX_STOP_CHARS:
                raise RequestRejected(
                    f"stop holds {len(s)} characters in one string; at most {MAX_STOP_CHARS} are read"
                )
        for token in self.stop_token_ids:
            _integer("a token id in stop_token_ids", token, 0)


def _integer(name: str, value: object, low: int | None = None, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestRejected(f"{name} is {value!r}; give a whole number")
    if (low is not None and value < low) or (high is not None and value > high):
        raise RequestRejected(f"{name} is {value}; give {low}{' or more' if high is None else f' to {high}'}")


def _number(name: str, value: object, low: float, high: float) -> None:
    # A NaN compares as false and is refused like any other number out of range.
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise RequestRejected(f"{name} is {value!r}; give a number from {low} to {high}")


GrammarKind = Literal["json_schema", "json_object", "regex", "choice"]


@dataclass(frozen=True)
class Grammar:
    """What the text of an answer has to be, from its first character to its last.

    ``json_schema``: JSON that meets the schema whose JSON text is ``source``. ``json_object``: any JSON object.
    ``regex``: a full match of the pattern ``source`` (Rust's syntax: no look-around, no back-references).
    ``choice``: one of ``choices``. An answer that ends for another reason than ``stop`` may be cut short.
    """

    kind: GrammarKind
    source: str = ""
    choices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in get_args(GrammarKind):
            raise RequestRejected(f"grammar kind {self.kind!r} is not one of {', '.join(get_args(GrammarKind))}")
        if self.kind in ("json_schema", "regex") and not self.source:
            raise RequestRejected(f"a grammar of kind {self.kind} needs its source")
        if self.kind == "choice" and (isinstance(self.choices, str) or not self.choices):
            raise RequestRejected("a grammar of kind choice needs a list of choices")
        for i, choice in enumerate(self.choices):
            if not isinstance(choice, str) or not choice:
                raise RequestRejected(f"choice {i} of the grammar is {choice!r}; give a string that is not empty")
        try:
            "".join((self.source, *self.choices)).encode()
        except UnicodeEncodeError as error:
            raise RequestRejected(f"the grammar holds half a surrogate pair: {error.object[error.start]!r}") from error


def _new_id() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True)
class Request:
    """One question to the model: messages, how to sample, what the answer must be, the run it is counted to.

    Not ``templated``: the texts are the prompt as they stand, without the chat template, for the model to go on.
    """

    messages: tuple[Message, ...]
    sampling: Sampling = Sampling()
    run_id: str = ""
    request_id: str = field(default_factory=_new_id)
    templated: bool = True
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        if self.grammar is not None and (self.sampling.ignore_eos or self.sampling.min_tokens):
            raise RequestRejected(
                "a grammar decides where an answer may end; leave out "
                f"{'ignore_eos' if self.sampling.ignore_eos else 'min_tokens'}"
            )


def alternatives(request: Request, n: int) -> tuple[Request, ...]:
    """The ``n`` requests that answer one with as many draws; the first draws what ``request`` alone would.

    Each of the others has a seed of its own that follows from the request's seed; without one each draws afresh.
    """
    _integer("n", n, 1)
    requests = [request]
    for i in range(1, n):
        seed = request.sampling.seed
        if seed is not None:
            digest = hashlib.blake2b(f"{seed}/{i}".encode(), digest_size=8).digest()
            seed = int.from_bytes(digest, "little")
        sampling = replace(request.sampling, seed=seed)
        requests.append(replace(request, sampling=sampling, request_id=f"{request.request_id}/{i}"))
    return tuple(requests)


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
class TokenLogprob:
    """A token, its bytes (a special token's spelling) and the natural logarithm of its probability.

    The probability is the model's own, before temperature, cuts, penalties and grammar. ``top`` holds the likeliest
    tokens in this place, the likeliest first, as many as were asked for; theirs are empty.
    """

    token_id: int
    token: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What came back: text without stop tokens, why it ended, what it cost.

    ``mean_logprob`` is over the generated tokens (the stop token included), by the model's own distribution;
    ``engine_s`` is seconds from arrival to the last token, ``first_token_s`` to the first one; of these it waited
    ``queue_s`` for its first step, and the prompt took ``prefill_s`` from there on.
    ``logprobs`` has one entry for each of ``token_ids`` where they were asked for.
    """

    text: str
    finish_reason: FinishReason
    usage: Usage
    token_ids: tuple[int, ...] = ()
    mean_logprob: float | None = None
    engine_s: float = 0.0
    first_token_s: float = 0.0
    logprobs: tuple[TokenLogprob, ...] = ()
    queue_s: float = 0.0
    prefill_s: float = 0.0


@dataclass(frozen=True)
class Delta:
    """A piece of a streamed answer and the ``logprobs`` of its tokens; the last one carries the whole ``answer``."""

    text: str
    answer: Answer | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


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
class KernelHealth:
    """How one operator behaved on one device in one run.

    ``max_rel_l2`` is the worst error that a check found, None where none compared; ``nonfinite`` counts values that
    were not finite where the reference's were, ``guard_hits`` bytes written beside an output. ``verdict``: where
    nothing was compared, as on the reference path, ``unchecked``; where a check objected ``suspect``, where a launch
    did ``failed``.
    """

    operator: str
    device: str
    launches: int
    checked: int
    max_rel_l2: float | None
    tolerance: float | None
    nonfinite: int
    guard_hits: int
    repeat_mismatches: int
    launch_errors: int
    device_ms: float
    bytes: int
    verdict: Literal["healthy", "unchecked", "suspect", "failed"]


@dataclass(frozen=True)
class RunMeter:
    """Throughput of one run as the engine saw it, seconds by stage; and its kernels, where the engine knows of them."""

    requests: int = 0
    images: int = 0
    image_tokens: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    preprocess_s: float = 0.0
    vision_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    kernels: tuple[KernelHealth, ...] = ()


@dataclass(frozen=True)
class EngineStats:
    """What an engine is doing now, and what it did since it began (the sums).

    Prefix queries and hits are tokens, image ones are images; ``failure`` says why it answers nothing any more,
    ``pause`` why nothing just now.
    """

    running: int = 0
    waiting: int = 0
    cache_blocks: int = 0
    cache_blocks_free: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    image_queries: int = 0
    image_hits: int = 0
    preemptions: int = 0
    nonfinite_rows: int = 0
    failure: str | None = None
    pause: str | None = None


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


class ObservedEngine(Engine, Protocol):
    """An engine that a server can stand in front of: it says what it is doing."""

    def stats(self) -> EngineStats:
        """Now; from any thread."""
        ...
