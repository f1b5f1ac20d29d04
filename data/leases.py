"""Who may answer which shard: a claim is one file, made by whoever comes first.

``leases/shard-00012.0001.lease`` holds the worker's record. Taking over from a worker that is gone makes the file of
the next generation, ``….0002.lease``; the highest generation holds the shard. A claim is only ever created where none
of its name is there (one atomic call), and removed by its maker, so two workers never both believe that they hold a
shard.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache

from zellige.data.files import usable
from zellige.data.workers import Roster, Worker

_NAME = re.compile(r"(.+)\.(\d{4,})\.lease")
#: A claim is created and filled by two calls; one that is still empty after this time was left by a kill in between.
TORN_S = 2.0
_WORKER = tuple(field.name for field in fields(Worker))


@dataclass(frozen=True)
class Claim:
    """The right to ``what``, as long as no higher generation exists. ``taken_from`` is who held it before, and died."""

    what: str
    generation: int
    file: str
    worker: str
    taken_from: str | None = None


class LeaseBook:
    """The claims of one run, in the folder of its workers."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._folder = roster.folder

    def claim(self, candidates: Sequence[str]) -> Claim | None:
        """The first of ``candidates`` that nobody alive holds; None where all are held."""
        with usable(self._folder, "take a lease in"):
            me = self._roster.join()
            held, now = self._generations(), cache(self._roster.now)
            for what in candidates:
                generation, taken_from = held.get(what, 0), None
                if generation:
                    taken_from = self._gone_holder(_file(what, generation), now)
                    if taken_from is None:
                        continue
                file = _file(what, generation + 1)
                # No two claims are alike, so that one who asks an object store again knows its own.
                record = asdict(me) | {"claim": secrets.token_hex(8)}
                if self._folder.create(file, json.dumps(record).encode("ascii")):
                    return Claim(what, generation + 1, file, me.name, taken_from)
        return None

    def holds(self, claim: Claim) -> bool:
        """Whether nobody has taken ``claim`` over."""
        return self._generations().get(claim.what, 0) == claim.generation and self._is_own(claim)

    def release(self, claim: Claim) -> None:
        """Give ``claim`` back; may be called twice. The files of dead holders before it go first."""
        with usable(self._folder.at(claim.file), "remove"):
            if not self._is_own(claim):
                return
            for generation in range(1, claim.generation + 1):
                self._folder.remove(_file(claim.what, generation))

    def _is_own(self, claim: Claim) -> bool:
        """Whether the file is still the one we made: after being taken for dead, its name may be somebody else's."""
        try:
            return bool(json.loads(self._folder.read(claim.file))["name"] == claim.worker)
        except (FileNotFoundError, ValueError):
            return False

    def _generations(self) -> dict[str, int]:
        """The highest generation of everything that is claimed."""
        highest: dict[str, int] = {}
        with usable(self._folder, "list"):
            for name in self._folder.names():
                if match := _NAME.fullmatch(name):
                    highest[match[1]] = max(highest.get(match[1], 0), int(match[2]))
        return highest

    def _gone_holder(self, file: str, now: Callable[[], float]) -> str | None:
        """The name of the claim's worker if it is gone; None while it lives."""
        try:
            record = json.loads(self._folder.read(file))
        except FileNotFoundError:  # given back this instant: for the next call to take
            return None
        except ValueError:
            return "unknown" if self._torn_s(file) > TORN_S else None
        worker = Worker(**{name: record[name] for name in _WORKER})
        return worker.name if self._roster.is_gone(worker, now) else None

    def _torn_s(self, file: str) -> float:
        try:
            return time.time() - self._folder.heard(file)
        except FileNotFoundError:
            return 0.0


def _file(what: str, generation: int) -> str:
    return f"{what}.{generation:04d}.lease"
