"""``zellige report``: one HTML file about one run; its exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from zellige.data.ledger import Run
from zellige.flows.commands import existing, logging_to, reported, say
from zellige.flows.output import put
from zellige.tasks.job import WrongUseError
from zellige.tasks.report import write_report


def report(run_id: str, store: str, out: Path | None, as_json: bool) -> int:
    """Write the page and say where it is."""

    def work() -> int:
        run, runs = planned_run(run_id, store), existing(store)
        dest = (Path(f"report-{run_id}.html") if out is None else out).absolute()
        if runs.is_local and dest.resolve().is_relative_to(runs.root.resolve()):
            raise WrongUseError(f"{dest} lies in the store, whose files are the answers; name a place outside of it")
        done = write_report(run, dest)
        more = f" of {done['rows_in_all']:,}" if done["rows"] < done["rows_in_all"] else ""
        say(
            f"report of {run_id}: {done['rows']:,}{more} rows, {done['pictures']:,} pictures, "
            f"{done['bytes'] / 1e6:.1f} MB, {dest}"
        )
        if done["not_drawn"]:
            say(f"  not drawn: {done['not_drawn']:,}; the page says why")
        if as_json:
            put(json.dumps(done | {"exit_code": 0}), sys.stdout)
        return 0

    with logging_to(None):
        return reported(work, as_json)


def planned_run(run_id: str, store: str) -> Run:
    """The run, whose items are known; raises WrongUseError, and UnknownRun as the store does."""
    run = existing(store).open_run(run_id)
    if not run.planned:
        raise WrongUseError(f"run {run_id} has no items yet; resume it first")
    return run
