"""Requests on their way through the engine's thread, one by one and together in a step."""

from __future__ import annotations

import time
from dataclasses import dataclass

from zellige.engine.accounts import Share
from zellige.engine.api import EngineError, Request
from zellige.engine.caller import Caller
from zellige.engine.output import Output
from zellige.engine.runner import Launched
from zellige.engine.scheduler import Chunk, Sequence


class EngineStopped(EngineError):
    """The engine's thread ended by ``cause``; ``running`` are the ids of the requests that it was computing."""

    def __init__(self, cause: BaseException, running: frozenset[str]) -> None:
        super().__init__(f"the engine stopped: {cause}")
        self.cause, self.running = cause, running


@dataclass(eq=False)
class Job:
    """One request on its way: what the engine thread needs to finish it and to whom it answers.

    ``arrived`` and ``queued`` are times: when it came, and when it was ready to be computed.
    """

    request: Request
    sequence: Sequence
    output: Output
    caller: Caller
    streams: bool
    arrived: float
    queued: float
    preprocess_s: float
    #: Seconds from ``queued`` to its first step, and from ``arrived`` to its first token.
    queue_s: float | None = None
    first_token_s: float = 0.0

    def begin(self) -> None:
        """It is part of a step: from now on it does not wait any more."""
        if self.queue_s is None:
            self.queue_s = time.perf_counter() - self.queued


@dataclass(frozen=True, eq=False)
class Flight:
    """A step on its way: the job of each chunk, and the rows of those for which it chooses a token."""

    launched: Launched
    chunks: list[Chunk]
    jobs: list[Job]
    ending: list[int]

    def shares(self) -> list[Share]:
        """Whose tokens it computes."""
        return [
            Share(j.request.run_id, c.length, c.start < len(c.sequence.prompt.tokens))
            for c, j in zip(self.chunks, self.jobs, strict=True)
        ]
