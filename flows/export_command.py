"""``zellige export``: a run's rows in a form that other programs read; its exit code."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from zellige.data.exports import FORMATS, Exported, ExportError, ExportOptions, WrongPlace, export_run
from zellige.data.exports.base import REJECTED, IfExists
from zellige.data.ledger import LedgerError, Store, UnknownRun
from zellige.data.sources import SourceError
from zellige.flows.output import put
from zellige.flows.show import resume_command

MODES: tuple[IfExists, ...] = ("skip", "overwrite", "append", "prepend")


class _WrongUse(Exception):
    """Options that do not go together; the message says what to give instead."""


def export(
    run_id: str,
    to: str,
    dest: Path | None,
    store: str,
    *,
    beside: bool,
    overwrite: bool,
    if_exists: str | None,
    prefix: str | None,
    suffix: str | None,
    shard_bytes: int | None,
    as_json: bool,
) -> int:
    """Write the export and say what was written; 0, 1, 2, or 3 where it lacks rows that are ok or not answered yet."""
    try:
        options = _options(to, dest, beside, overwrite, if_exists, prefix, suffix, shard_bytes)
        runs = Store(store)
        if not runs.is_there:
            raise _WrongUse(f"{store} is no folder; give the --store that runs were made with")
        if dest is not None and runs.is_local and Path(os.path.realpath(dest)).is_relative_to(os.path.realpath(store)):
            raise _WrongUse(f"{dest} lies in the store, whose files are the answers; name a place outside of it")
        run = runs.open_run(run_id)
        done = export_run(run, to, dest, options)
    except (_WrongUse, UnknownRun, ExportError, LedgerError, SourceError) as error:
        code = 2 if isinstance(error, (_WrongUse, WrongPlace, UnknownRun)) else 1
        put(f"zellige: {error}", sys.stderr)
        if as_json:
            put(json.dumps({"run_id": run_id, "to": to, "error": str(error), "exit_code": code}), sys.stdout)
        return code
    code = 3 if done.problems or done.items_without_rows else 0
    step = resume_command(run.recipe.task, run_id, run.store) if done.items_without_rows else None
    lines = _lines(run_id, done)
    if step:
        lines.append(f"  not answered yet: {done.items_without_rows:,} items; finish the run and export again: {step}")
    put("\n".join(lines), sys.stderr)
    if as_json:
        put(json.dumps({"run_id": run_id, **vars(done), "exit_code": code, "next": step}), sys.stdout)
    return code


def _options(
    to: str,
    dest: Path | None,
    beside: bool,
    overwrite: bool,
    if_exists: str | None,
    prefix: str | None,
    suffix: str | None,
    shard_bytes: int | None,
) -> ExportOptions:
    """The options of the format; raises _WrongUse for one that it does not have."""
    if to not in FORMATS:
        raise _WrongUse(f"--to {to}: give one of {', '.join(FORMATS)}")
    for_txt = {"--beside": beside or None, "--if-exists": if_exists, "--prefix": prefix, "--suffix": suffix}
    if to != "txt" and (given := [name for name, value in for_txt.items() if value is not None]):
        raise _WrongUse(f"{given[0]} is for --to txt; leave it out")
    if to == "txt" and overwrite:
        raise _WrongUse("--to txt writes many files; use --if-exists overwrite to replace those that exist")
    if to not in ("webdataset", "hf") and shard_bytes is not None:
        raise _WrongUse("--shard-bytes is for --to webdataset and hf; leave it out")
    if beside == (dest is not None):
        wanted = "DEST or --beside, one of them" if to == "txt" else "DEST, the place to write to"
        raise _WrongUse(f"give {wanted}")
    mode = next((m for m in MODES if m == (if_exists or "skip")), None)
    if mode is None:
        raise _WrongUse(f"--if-exists {if_exists}: give one of {', '.join(MODES)}")
    given_size: dict[str, Any] = {} if shard_bytes is None else {"shard_bytes": shard_bytes}
    return ExportOptions(overwrite, mode, prefix or "", suffix or "", **given_size)


def _lines(run_id: str, done: Exported) -> list[str]:
    lines = [f"export of {run_id} to {done.to}: {done.rows:,} rows in {done.files:,} files, {done.dest}"]
    lines += [f"  left out: {count:,}, {reason}" for reason, count in done.left_out.most_common()]
    lines += [f"    {problem}" for problem in done.problems]
    if (more := _problems(done) - len(done.problems)) > 0:
        lines.append(f"    … and {more:,} more")
    return lines


def _problems(done: Exported) -> int:
    quiet = ("failed", "skipped", REJECTED, "its text file exists")
    return sum(count for reason, count in done.left_out.items() if reason not in quiet)
