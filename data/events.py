"""What happened in a run: one line an event, appended to a file of each writer's own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from zellige.data.files import usable


class EventLog:
    """``events/<worker>.jsonl``. Lines end in a newline only: text inside may hold any other line separator."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def append(self, worker: str, kind: str, fields: dict[str, Any]) -> None:
        """Add one event; one system call, so a kill leaves a whole line or part of the last one."""
        event = {"at": datetime.now(UTC).isoformat(), "worker": worker, "kind": kind, **fields}
        line = json.dumps(event, ensure_ascii=True, default=str).encode("ascii") + b"\n"
        path = self._folder / f"{worker}.jsonl"
        with usable(path, "write"):
            descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o666)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)

    def read(self) -> list[dict[str, Any]]:
        """All events of all writers, oldest first."""
        return sorted((e for path in self._folder.glob("*.jsonl") for e in _lines(path)), key=lambda e: str(e["at"]))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with usable(path, "read"):
        whole, _, _torn = path.read_bytes().rpartition(b"\n")
    for line in whole.split(b"\n"):
        try:
            yield json.loads(line)
        except ValueError:  # a full disk cut an earlier line short
            if line:
                yield {"at": "", "kind": "unreadable_event", "file": path.name}
