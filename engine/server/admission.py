"""Who is let in: one count of the requests and bytes in hand. Belongs to the event loop's thread."""

from __future__ import annotations

import math

from zellige.engine.server.errors import ApiError
from zellige.engine.server.limits import Limits


class Admission:
    """Counts what is being answered; over the limits a request is told when to come back."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.requests = 0
        self.bytes = 0
        self._answer_s = 1.0

    def enter(self, body_bytes: int) -> Ticket:
        """A place for one request whose body may have so many bytes; raises ApiError 429."""
        ticket = Ticket(self)
        ticket.hold(1, body_bytes)
        return ticket

    def answered(self, seconds: float) -> None:
        """A request took so long; what a refused one is told follows it slowly."""
        self._answer_s += 0.1 * (seconds - self._answer_s)

    def hold(self, requests: int, size: int) -> None:
        """So many more (or fewer) of both; raises ApiError 429 and changes nothing where they are too many."""
        if requests > 0 and self.requests + requests > self._limits.requests:
            raise self._busy(f"{self.requests} of {self._limits.requests} places are taken")
        if size > 0 and self.bytes + size > self._limits.bytes_in_hand:
            raise self._busy(f"requests in hand already hold {self.bytes >> 20} MiB of images and bodies")
        self.requests += requests
        self.bytes += size

    def _busy(self, why: str) -> ApiError:
        wait = max(1, min(60, math.ceil(self._answer_s)))
        return ApiError(429, f"{why}; send it again in {wait} s", code="server_busy", retry_after_s=wait)


class Ticket:
    """One sender's share of what is in hand; given back once, by ``leave``."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._requests = 0
        self._bytes = 0

    def hold(self, requests: int, size: int) -> None:
        """From now on this is so many requests and bytes; raises ApiError 429 where there is no room for more."""
        self._admission.hold(requests - self._requests, size - self._bytes)
        self._requests, self._bytes = requests, size

    def leave(self) -> None:
        """Harmless when called again."""
        self.hold(0, 0)
