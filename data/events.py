"""What happened in a run: one line an event, appended to a file of each writer's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from zellige.data.files import usable
from zellige.data.folder import Folder, matching


class EventLog:
    """``events/<worker>.jsonl``. Lines end in a newline only: text inside may hold any other line separator."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def append(self, worker: str, kind: str, fields: dict[str, Any]) -> None:
        """Add one event; one system call, so a kill leaves a whole line or part of the last one."""
        event = {"at": datetime.now(UTC).isoformat(), "worker": worker, "kind": kind, **fields}
        line = json.dumps(event, ensure_ascii=True, default=str).encode("ascii") + b"\n"
        name = f"{worker}.jsonl"
        with usable(self._folder.at(name), "write"):
            self._folder.append(name, line)

    def read(self) -> list[dict[str, Any]]:
        """All events of all writers, oldest first."""
        names = matching(self._folder, "*.jsonl")
        return sorted((e for name in names for e in self._events(name)), key=lambda e: str(e["at"]))

    def _events(self, name: str) -> Iterator[dict[str, Any]]:
        with usable(self._folder.at(name), "read"):
            whole, _, _torn = self._folder.read(name).rpartition(b"\n")
        for line in whole.split(b"\n"):
            try:
                yield json.loads(line)
            except ValueError:  # a full disk cut an earlier line short
                if line:
                    yield {"at": "", "kind": "unreadable_event", "file": name}
