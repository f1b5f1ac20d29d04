"""How an earlier export is told from what somebody else wrote: the only thing that ``--overwrite`` may replace.

A file is known by what is in it: each of its lines has exactly the fields that this export writes. A folder holds
``.zellige-export.json``, which names the files of the export and their sizes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from zellige.data.columns import ANSWERS
from zellige.data.schema import ErrorKind

MARK = ".zellige-export.json"
_ROW = [*ANSWERS.names, "review", "model_answer"]
_CODES = {"rejected", *(kind.value for kind in ErrorKind)}
_BATCH = ["id", "custom_id", "response", "error"]
_COCO_HEAD = re.compile(rb'(\{"info": \{.*\}), "licenses": \[\], "images": \[(\], "annotations": \[\]\})?\n')


def is_export_file(path: Path) -> bool:
    """Whether every line of a file is one that an export of one file writes; raises OSError."""
    with path.open("rb") as file:
        first = file.readline()
        if _COCO_HEAD.fullmatch(first):
            return _is_coco(first, file)
        known = next((check for check in (_is_row, _is_batch_line) if _holds(first, check)), None)
        return known is not None and all(_holds(line, known) for line in file)


def write_mark(folder: Path, run_id: str) -> None:
    """Name in ``folder`` all the files that it holds now."""
    files = {p.relative_to(folder).as_posix(): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}
    (folder / MARK).write_text(json.dumps({"zellige_export": 1, "run_id": run_id, "files": files}, indent=1) + "\n")


def foreign(folder: Path, found: list[Path]) -> str | None:
    """Why ``folder``, which holds ``found``, is not as an export left it; None where it is."""
    mark = folder / MARK
    try:
        if mark.is_symlink() or not mark.is_file():
            return f"has no {MARK}, by which exports are known"
        said = json.loads(mark.read_bytes())
        files = {MARK: mark.stat().st_size} | said["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"has a {MARK} that cannot be read"
    folders = {parent.as_posix() for name in files for parent in Path(name).parents}
    for path in found:
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            return f"holds {name!r}, which is no plain file"
        if name not in (folders if path.is_dir() else files):
            return f"holds {name!r}, which no export wrote"
        if path.is_file() and path.stat().st_size != files[name]:
            return f"holds {name!r}, which was changed since it was exported"
    return None


def _holds(line: bytes, check: Callable[[dict[str, Any]], bool]) -> bool:
    try:
        value = json.loads(line)
        return line.endswith(b"\n") and isinstance(value, dict) and check(value)
    except (ValueError, RecursionError):
        return False


def _is_row(value: dict[str, Any]) -> bool:
    return list(value) == _ROW


def _is_batch_line(value: dict[str, Any]) -> bool:
    """An answer of OpenAI has the same fields: ours are told by the row in their id and what they say of it."""
    if list(value) != _BATCH or not re.fullmatch(r"batch_req_[0-9a-f]{32}", str(value["id"])):
        return False
    if value["response"] is None:
        error = value["error"]
        return isinstance(error, dict) and list(error) == ["code", "message"] and error["code"] in _CODES
    response, name = value["response"], value["id"].removeprefix("batch_req_")
    if not isinstance(response, dict) or response.get("request_id") != name or not isinstance(response["body"], dict):
        return False
    return isinstance(response["body"].get("zellige"), dict)


def _is_coco(first: bytes, file: BinaryIO) -> bool:
    found = _COCO_HEAD.fullmatch(first)
    try:
        info = json.loads(found[1] + b"}")["info"] if found else {}
    except (ValueError, RecursionError):
        return False
    if list(info) != ["description", "model", "date_created"]:
        return False
    last = first
    for line in file:
        last = line
    return str(info["description"]).startswith("zellige run ") and last.endswith(b"}\n")
