"""``jsonl``: one object a row with every column, failed rows with their error; lines end in a line feed only."""

from __future__ import annotations

from pathlib import Path

from zellige.data.exports.base import Exported, ExportOptions, rows, to_json
from zellige.data.exports.target import new_file
from zellige.data.run import Run


def write(run: Run, dest: Path, options: ExportOptions, done: Exported) -> None:
    """Write the file ``dest``; raises ExportError."""
    with new_file(run, dest, options) as file:
        for row in rows(run):
            file.write(to_json(row).encode() + b"\n")
            done.rows += 1
    done.files = 1
