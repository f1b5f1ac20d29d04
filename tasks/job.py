"""What was asked for, as small plain values: the command line and a Prefect deployment both say it this way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from zellige.data.schema import ErrorKind, storable
from zellige.data.sources.options import SourceOptions
from zellige.engine.connect import EngineSpec, split_urls

Flow = Literal["caption", "ask", "read"]

#: What is said to the model where nothing else was asked for, and the tokens of an answer at most: a page is long.
DEFAULT_PROMPTS = {"caption": "Describe the image.", "ask": "", "read": "Read the text."}
DEFAULT_MAX_TOKENS = {"caption": 256, "ask": 256, "read": 1024}
#: Where the question stands in what is said around it.
QUESTION_PLACE = "{question}"
#: Items a shard: what is leased, answered and committed together, and the most that a crash makes a run do again.
DEFAULT_SHARD_ITEMS = 256
#: More than any run has, and no more than every counter on the way can hold.
MOST_ITEMS = 10**12
#: Processes that decode: each takes tens of megabytes before it has an image.
MOST_WORKERS = 1024


class WrongUseError(Exception):
    """What was asked for makes no sense; the message says what to do instead. Exit code 2."""


class UnreachableError(Exception):
    """No server of the inputs or no engine answers, so no run is made; the message says what to look at."""


@dataclass(frozen=True)
class Job:
    """One job: a new run, or (``resume``) the rest of an old one.

    None stands for what the user left out: the default in a new run, the run's own choice in a resumed one.
    ``inputs`` and ``store`` are paths or ``file://`` addresses.
    """

    task: Flow
    store: str
    inputs: tuple[str, ...] = ()
    prompt: str | None = None
    questions: tuple[str, ...] = ()
    questions_file: str | None = None
    tile: str | None = None
    limit: int | None = None
    resume: str | None = None
    raw: bool | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    model: str | None = None
    engines: tuple[str, ...] = ()
    device: str | None = None
    dtype: str | None = None
    shard_items: int | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    column: str | None = None
    keep: tuple[str, ...] = ()
    workers: int | None = None
    dedupe: bool = True
    retry: tuple[str, ...] = ()
    #: A JSON schema as JSON text, which every answer has to meet; limits of a local engine by name.
    json_schema: str | None = None
    engine_limits: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for option, value in (("--limit", self.limit), ("--shard-items", self.shard_items)):
            if value is not None and not 1 <= value <= MOST_ITEMS:
                raise WrongUseError(f"{option} {value}: give a number from 1 to {MOST_ITEMS:,}")
        if self.workers is not None and not 1 <= self.workers <= MOST_WORKERS:
            raise WrongUseError(f"--workers {self.workers}: give a number from 1 to {MOST_WORKERS:,}")
        if self.retry and not self.resume:
            raise WrongUseError("--retry answers failed rows of a run again; name the run with --resume RUN")
        if unknown := sorted(set(self.retry) - {"failed", *ErrorKind}):
            raise WrongUseError(f"--retry {unknown[0]}: no such kind; there are failed (all), {', '.join(ErrorKind)}")
        if self.engines and (self.device or self.dtype):
            option = "--device" if self.device else "--dtype"
            raise WrongUseError(f"{option} is the server's to decide; leave it out, or leave --engine out")
        if self.task == "ask" and self.prompt and QUESTION_PLACE not in self.prompt:
            raise WrongUseError(f"--prompt {self.prompt!r}: what is said around a question has {QUESTION_PLACE} in it")
        if self.task == "read" and self.json_schema is not None:
            raise WrongUseError("--schema does not go with read, which joins text; use zellige caption or ask")
        if self.prompt is not None and storable(self.prompt) != self.prompt:
            raise WrongUseError(f"--prompt {self.prompt!r} is no valid text; write it in UTF-8")

    @property
    def source_options(self) -> SourceOptions:
        """What was said about the inputs beside their names."""
        return SourceOptions(self.include, self.exclude, self.column, self.keep)

    @property
    def retry_kinds(self) -> frozenset[str]:
        """The kinds of failed rows to answer again."""
        return frozenset(ErrorKind) if "failed" in self.retry else frozenset(self.retry)

    @property
    def engine(self) -> EngineSpec:
        """The engine that was named; the one that ships where none was."""
        urls = split_urls(*self.engines)
        # An engine behind a URL has its own limits.
        limits = () if urls else tuple(sorted(self.engine_limits.items()))
        return EngineSpec(self.model, self.device, self.dtype, urls, limits)
