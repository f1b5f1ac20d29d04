"""What was asked for, as small plain values: the command line and a Prefect deployment both say it this way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from zellige.data.schema import ErrorKind, storable
from zellige.data.sources.options import SourceOptions
from zellige.engine.connect import EngineSpec, split_urls
from zellige.tasks.language import language_code
from zellige.tasks.second_tries import LADDER
from zellige.tasks.validate import schema_validator

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
#: What starts the lease loops of a flow, and how many a flow may have: each is a task run.
RUNNERS = ("thread", "dask", "ray")
MOST_LOOPS = 200
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
    #: Where the lease loops of a flow run, how many, and the address of the cluster (None: one of its own, here).
    runner: str | None = None
    runner_address: str | None = None
    loops: int | None = None
    dedupe: bool = True
    retry: tuple[str, ...] = ()
    new_only: bool = False
    #: The name of a new run; where there is one of that name, it is taken up again.
    run_id: str | None = None
    #: A JSON schema as JSON text, which every answer has to meet; the language it has to be in; how often a refused one
    #: is asked for again at most; limits of a local engine by name.
    json_schema: str | None = None
    language: str | None = None
    second_tries: int | None = None
    engine_limits: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for option, value in (("--limit", self.limit), ("--shard-items", self.shard_items)):
            if value is not None and not 1 <= value <= MOST_ITEMS:
                raise WrongUseError(f"{option} {value}: give a number from 1 to {MOST_ITEMS:,}")
        if self.workers is not None and not 1 <= self.workers <= MOST_WORKERS:
            raise WrongUseError(f"--workers {self.workers}: give a number from 1 to {MOST_WORKERS:,}")
        self._check_loops()
        if self.retry and not self.resume:
            raise WrongUseError("--retry answers failed rows of a run again; name the run with --resume RUN")
        if self.new_only and self.resume:
            raise WrongUseError("--new looks for new items, and --resume finishes the run as it was begun; give one")
        if unknown := sorted(set(self.retry) - {"failed", *ErrorKind}):
            raise WrongUseError(f"--retry {unknown[0]}: no such kind; there are failed (all), {', '.join(ErrorKind)}")
        if self.engines and (self.device or self.dtype):
            option = "--device" if self.device else "--dtype"
            raise WrongUseError(f"{option} is the server's to decide; leave it out, or leave --engine out")
        if self.task == "ask" and self.prompt and QUESTION_PLACE not in self.prompt:
            raise WrongUseError(f"--prompt {self.prompt!r}: what is said around a question has {QUESTION_PLACE} in it")
        if self.task == "read" and self.json_schema is not None:
            raise WrongUseError("--schema does not go with read, which joins text; use zellige caption or ask")
        if self.task == "read" and self.language is not None:
            raise WrongUseError("--language does not go with read, which gives what is printed in whatever language")
        self._check_answers()
        if self.prompt is not None and storable(self.prompt) != self.prompt:
            raise WrongUseError(f"--prompt {self.prompt!r} is no valid text; write it in UTF-8")

    def _check_loops(self) -> None:
        """Raises WrongUseError for lease loops that cannot be started."""
        if self.runner is not None and self.runner not in RUNNERS:
            raise WrongUseError(f"--runner {self.runner}: no such runner; there are {', '.join(RUNNERS)}")
        if self.loops is not None and not 1 <= self.loops <= MOST_LOOPS:
            raise WrongUseError(f"--loops {self.loops}: give a number from 1 to {MOST_LOOPS}")
        if self.runner_address is not None and self.runner in (None, "thread"):
            raise WrongUseError("--runner-address is of a cluster; name its kind with --runner dask or --runner ray")

    def _check_answers(self) -> None:
        """Raises WrongUseError for what answers cannot be held to."""
        if self.second_tries is not None and not 0 <= self.second_tries <= len(LADDER):
            raise WrongUseError(f"--second-tries {self.second_tries}: give a number from 0 to {len(LADDER)}")
        if self.raw and (self.language is not None or self.second_tries):
            option = "--second-tries" if self.language is None else "--language"
            raise WrongUseError(f"--raw keeps every answer as it came, so {option} does not go with it")
        try:
            if self.language is not None:
                language_code(self.language)
        except ValueError as e:
            raise WrongUseError(f"--language {self.language}: {e}") from e
        try:
            if self.json_schema is not None:
                schema_validator(self.json_schema)
        except ValueError as e:
            raise WrongUseError(f"--schema is no JSON schema: {e}") from e

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
