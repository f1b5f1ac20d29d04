"""When a request is sent again: exponential backoff with full jitter, what the server asks for, and one deadline."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from zellige.engine.api import EngineUnavailable
from zellige.engine.remote.config import RemoteConfig
from zellige.engine.remote.errors import TryAgainError


class Tries:
    """The tries of one request: says how long to wait before the next one, or that there is none."""

    def __init__(self, config: RemoteConfig) -> None:
        self._config = config
        self.deadline = time.monotonic() + config.deadline_s
        self._failures = self._counted = 0

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def too_late(self, url: str) -> EngineUnavailable:
        """What is raised where an answer has begun, or is awaited, when the deadline comes."""
        return EngineUnavailable(f"{url}: no whole answer within {self._config.deadline_s:g} s")

    def wait_s(self, error: TryAgainError, free_in_s: float = 0.0) -> float:
        """Seconds to wait after ``error``, where the first engine asks to be left alone for ``free_in_s`` from now.

        Raises EngineUnavailable where the tries or the time are used up.
        """
        self._failures += 1
        self._counted += error.counted
        if self._counted >= self._config.tries:
            raise EngineUnavailable(f"given up after {self._counted} tries: {error}") from error
        wait = random.uniform(0, min(self._config.most_s, self._config.first_s * 2 ** min(self._failures - 1, 30)))
        # On top of what the engine asked for, so that not all who were sent away come back at the same moment.
        wait += free_in_s
        if wait >= self.left_s:
            raise EngineUnavailable(f"not answered within {self._config.deadline_s:g} s: {error}") from error
        return wait


def retry_after_s(value: str | None) -> float | None:
    """Seconds that a Retry-After header asks for, as a number or a date; None where it says nothing usable."""
    if not value:
        return None
    try:
        return max(0.0, float(int(value)))
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
