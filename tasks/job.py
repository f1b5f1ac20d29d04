"""What was asked for, as small plain values: the command line and a Prefect deployment both say it this way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from zellige.data.schema import storable
from zellige.engine.connect import EngineSpec

Flow = Literal["caption", "ask"]

DEFAULT_PROMPT = "Describe the image."
DEFAULT_MAX_TOKENS = 256
#: Items a shard: what is leased, answered and committed together, and the most that a crash makes a run do again.
DEFAULT_SHARD_ITEMS = 256
#: More than any run has, and no more than every counter on the way can hold.
MOST_ITEMS = 10**12


class WrongUseError(Exception):
    """What was asked for makes no sense; the message says what to do instead. Exit code 2."""


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
    device: str | None = None
    dtype: str | None = None
    shard_items: int | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for option, value in (("--limit", self.limit), ("--shard-items", self.shard_items)):
            if value is not None and not 1 <= value <= MOST_ITEMS:
                raise WrongUseError(f"{option} {value}: give a number from 1 to {MOST_ITEMS:,}")
        if self.prompt is not None and storable(self.prompt) != self.prompt:
            raise WrongUseError(f"--prompt {self.prompt!r} is no valid text; write it in UTF-8")

    @property
    def engine(self) -> EngineSpec:
        """The engine that was named; the one that ships where none was."""
        return EngineSpec(model=self.model, device=self.device, dtype=self.dtype)
