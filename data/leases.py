"""Who may answer which shard: a claim is one file, made by whoever comes first.

``leases/shard-00012.0001.lease`` holds the worker's record. Taking over from a worker that is gone makes the file of
the next generation, ``….0002.lease``; the highest generation holds the shard. A claim is only ever created where none
of its name is there (one atomic call), and removed by its maker, so two workers never both believe that they hold a
shard.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from zellige.data.files import usable
from zellige.data.workers import Roster, Worker

_NAME = re.compile(r"(.+)\.(\d{4,})\.lease")
#: A claim is created and filled by two calls; one that is still empty after this time was left by a kill in between.
TORN_S = 2.0


@dataclass(frozen=True)
class Claim:
    """The right to ``what``, as long as no higher generation exists. ``taken_from`` is who held it before, and died."""

    what: str
    generation: int
    path: Path
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
            held = self._generations()
            for what in candidates:
                generation, taken_from = held.get(what, 0), None
                if generation:
                    taken_from = self._gone_holder(self._path(what, generation))
                    if taken_from is None:
                        continue
                path = self._path(what, generation + 1)
                try:
                    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
                except FileExistsError:
                    continue
                try:
                    os.write(descriptor, json.dumps(asdict(me)).encode("ascii"))
                finally:
                    os.close(descriptor)
                return Claim(what, generation + 1, path, me.name, taken_from)
        return None

    def holds(self, claim: Claim) -> bool:
        """Whether nobody has taken ``claim`` over."""
        return self._generations().get(claim.what, 0) == claim.generation and self._is_own(claim)

    def release(self, claim: Claim) -> None:
        """Give ``claim`` back; may be called twice. The files of dead holders before it go first."""
        with usable(claim.path, "remove"):
            if not self._is_own(claim):
                return
            for generation in range(1, claim.generation + 1):
                self._path(claim.what, generation).unlink(missing_ok=True)

    def _is_own(self, claim: Claim) -> bool:
        """Whether the file is still the one we made: after being taken for dead, its name may be somebody else's."""
        try:
            return bool(json.loads(claim.path.read_bytes())["name"] == claim.worker)
        except (FileNotFoundError, ValueError):
            return False

    def _path(self, what: str, generation: int) -> Path:
        return self._folder / f"{what}.{generation:04d}.lease"

    def _generations(self) -> dict[str, int]:
        """The highest generation of everything that is claimed."""
        highest: dict[str, int] = {}
        with usable(self._folder, "list"):
            for path in self._folder.iterdir():
                if match := _NAME.fullmatch(path.name):
                    highest[match[1]] = max(highest.get(match[1], 0), int(match[2]))
        return highest

    def _gone_holder(self, path: Path) -> str | None:
        """The name of the claim's worker if it is gone; None while it lives."""
        try:
            text = path.read_bytes()
            age_s = time.time() - path.stat().st_mtime
        except FileNotFoundError:  # given back this instant: for the next call to take
            return None
        try:
            worker = Worker(**json.loads(text))
        except ValueError:
            return "unknown" if age_s > TORN_S else None
        return worker.name if self._roster.is_gone(worker) else None
