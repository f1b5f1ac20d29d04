"""``coco``: captions as COCO stores them. ``images`` and ``annotations`` share their order and their ids, from 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from zellige.data.exports.base import Exported, ExportError, ExportOptions, Row, ok_rows, to_json
from zellige.data.exports.names import Names
from zellige.data.exports.target import new_file
from zellige.data.run import Run


def write(run: Run, dest: Path, options: ExportOptions, done: Exported) -> None:
    """Write the file ``dest``; raises ExportError, also for a run that made no captions."""
    if run.recipe.task != "caption":
        raise ExportError(
            f"run {run.run_id} is of {run.recipe.task}, and COCO captions have no place for questions; "
            "use --to jsonl, hf, webdataset or openai-batch"
        )
    names = Names(run)
    info = {"description": f"zellige run {run.run_id}", "model": run.recipe.model_name, "date_created": run.started_at}

    def image(number: int, row: Row) -> dict[str, Any]:
        place = {name: row[name] for name in ("width", "height", "uri", "member", "ordinal", "page", "metadata")}
        return {"id": number, "file_name": names.text(row), **place}

    def caption(number: int, row: Row) -> dict[str, Any]:
        return {"id": number, "image_id": number, "caption": row["answer"]}

    # The parts are read twice rather than held: each of the two lists has to be written as a whole.
    with new_file(run, dest, options) as file:
        file.write(f'{{"info": {to_json(info)}, "licenses": [], "images": ['.encode())
        done.rows = _write_list(file, ok_rows(run, done), image)
        file.write(b'], "annotations": [')
        _write_list(file, ok_rows(run, Exported(done.to, done.dest)), caption)
        file.write(b"]}\n")
    done.files = 1


def _write_list(file: BinaryIO, found: Iterator[Row], of: Callable[[int, Row], dict[str, Any]]) -> int:
    number = 0
    for number, row in enumerate(found, 1):
        file.write((",\n" if number > 1 else "\n").encode() + to_json(of(number, row)).encode())
    return number
