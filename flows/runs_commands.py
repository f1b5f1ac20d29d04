"""``zellige runs``: what the files of a store say of its runs; each command gives back its exit code."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from zellige.data.catalog import Catalog
from zellige.data.ledger import Run, Store
from zellige.flows.commands import existing, logging_to, reported, say
from zellige.flows.output import put
from zellige.flows.progress import duration
from zellige.flows.show import failure_lines, readable, resume_command, summary_lines, table
from zellige.tasks.job import WrongUseError
from zellige.tasks.record import summary

FAILURES_SHOWN = 20
#: Seconds between two looks at a run that is watched.
WATCH_EVERY_S = 2.0
#: Terminal codes: one line up, and what stands there away.
_UP_AND_CLEAR = "\x1b[A\x1b[2K"


def list_runs(store: str, as_json: bool) -> int:
    """Print the runs of a store, oldest first."""

    def work() -> int:
        opened, damaged = _existing(store).open_all()
        runs = Catalog(store).runs(opened)
        if as_json:
            put(json.dumps(runs, default=str), sys.stdout)
        elif not runs:
            say(f"no run in {store} yet")
        else:
            columns = ("run_id", "flow", "state", "items", "rows", "ok", "failed", "skipped", "started_at")
            shown = [run | {"started_at": run["started_at"][:16].replace("T", " ")} for run in runs]
            put("\n".join(table(shown, columns)), sys.stdout)
        _say_damaged(damaged)
        return 0

    return _told(work, as_json)


def show_run(run_id: str, store: str, as_json: bool) -> int:
    """Print one run as its files say it stands; the exit code of the command, not of the run."""

    def work() -> int:
        run = _existing(store).open_run(run_id)
        shown = summary(run)
        failures = Catalog(store).query(
            "SELECT uri, member, page, question_id, error_kind, error, answer FROM answers "
            "WHERE run_id = ? AND status = 'failed' ORDER BY uri, member, page, question_id LIMIT ?",
            [run.run_id, FAILURES_SHOWN],
            run_id=run.run_id,
        )
        if as_json:
            put(json.dumps(shown | {"failures": failures}, default=str), sys.stdout)
            return 0
        more, step = shown["failed"] - len(failures), _next(run, shown["state"])
        lines = [
            *summary_lines(shown),
            *failure_lines([f | {"uri": readable(f["uri"])} for f in failures]),
            *([f"  … and {more} more failed"] if more > 0 else []),
            *([f"  next: {step}"] if step else []),
            *([f"  to answer again what failed: {_retry(run)}"] if shown["failed"] and not step else []),
        ]
        put("\n".join(lines), sys.stdout)
        return 0

    return _told(work, as_json)


def run_status(run_id: str, store: str, watch: bool, as_json: bool) -> int:
    """Print how far a run is, from its files alone, while others write them; with ``watch`` until it ends.

    While it is watched there is one JSON object a line and a look; on a terminal the words are written over.
    """

    def work() -> int:
        run = _existing(store).open_run(run_id)
        status, written = run_standing(run), 0
        while True:
            text = json.dumps(status) if as_json else "\n".join(_status_lines(run, status))
            put(("" if as_json or not sys.stdout.isatty() else _UP_AND_CLEAR * written) + text, sys.stdout)
            if not watch or status["state"] not in ("planning", "running"):
                return 0
            written = text.count("\n") + 1
            time.sleep(WATCH_EVERY_S)
            status = run_standing(run)

    return _told(work, as_json)


def _status_lines(run: Run, status: dict[str, Any]) -> list[str]:
    counts = ", ".join(f"{status[name]} {name}" for name in ("ok", "failed", "skipped"))
    lines = [
        f"{status['flow']} · run {run.run_id} · {status['state']}",
        f"  {status['items_done']} of {status['items']} items, {counts}",
    ]
    if status["items_per_s"] is not None:
        lines.append(f"  {status['items_per_s']:.2f} items/s, {duration(status['left_s'])} left")
    if status["next"]:
        lines.append(f"  next: {status['next']}")
    return lines


def run_standing(run: Run) -> dict[str, Any]:
    """State and counts of a run; ``items_per_s`` and ``left_s`` where it is worked on and shards were committed."""
    standing = run.standing()
    rate = run.rate() if standing["state"] == "running" else None
    return {
        **standing,
        "items_per_s": rate,
        "left_s": (standing["items"] - standing["items_done"]) / rate if rate else None,
        "next": _next(run, standing["state"]),
    }


def delete_run(run_id: str, store: str, yes: bool, as_json: bool) -> int:
    """Remove a run for good, asked for once more on a terminal."""

    def work() -> int:
        runs = _existing(store)
        if not yes:
            progress = runs.open_run(run_id).progress()
            if not sys.stdin.isatty() or as_json:
                raise WrongUseError(f"deleting {run_id} takes its answers with it; say --yes")
            rows = progress.ok + progress.failed + progress.skipped
            print(f"Delete run {run_id} and its {rows:,} rows? [y/N] ", end="", file=sys.stderr, flush=True)
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                say("nothing was deleted")
                return 1
        runs.delete_run(run_id)
        if _indexable(store):
            Catalog(store).rebuild()
        if as_json:
            put(json.dumps({"run_id": run_id, "deleted": True}), sys.stdout)
        else:
            say(f"run {run_id} is deleted")
        return 0

    return _told(work, as_json)


def rebuild_index(store: str, as_json: bool) -> int:
    """Make the index anew from the files, and say what it holds."""

    def work() -> int:
        opened, damaged = _existing(store).open_all()
        catalog = Catalog(store)
        if not _indexable(store):
            raise WrongUseError(
                f"DuckDB keeps no index below a folder with a '?' in its name, as {store} has; every command works "
                "without one, more slowly"
            )
        count = catalog.rebuild(opened)
        rows = sum(run["ok"] + run["failed"] + run["skipped"] for run in catalog.runs(opened))
        bad = [str(path) for run in opened for path in run.bad_parts()]
        if as_json:
            put(json.dumps({"runs": count, "rows": rows, "left_out": bad}), sys.stdout)
        else:
            left = [f"  left out, damaged or not whole: {path}; --resume answers its items again" for path in bad]
            say(f"{count} runs, {rows} rows in {catalog.path}", *left)
        _say_damaged(damaged)
        return 0

    return _told(work, as_json)


def _indexable(store: str) -> bool:
    return "?" not in str(Catalog(store).path)


def _say_damaged(damaged: dict[str, str]) -> None:
    advice = "move the run away, or give it up with zellige runs delete"
    for run_id, reason in damaged.items():
        say(f"left out: {reason}; {advice} {run_id}")


def _next(run: Run, state: str) -> str | None:
    """The command that goes on with a run that nobody works on and that is not done."""
    if state in ("finished", "running"):
        return None
    return resume_command(run.recipe.task, run.run_id, run.store)


def _retry(run: Run) -> str:
    return resume_command(run.recipe.task, run.run_id, run.store) + " --retry failed"


def _told(work: Callable[[], int], as_json: bool) -> int:
    with logging_to(None):
        return reported(work, as_json)


def _existing(store: str) -> Store:
    found = existing(store)
    found.sweep()
    return found
