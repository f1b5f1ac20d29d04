"""What a flow run shows in Prefect's UI: how far it is, and at its end counts, throughput, kernels and a report.

The store is the ledger: an artifact that cannot be written is a line in the log, and the run goes on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from zellige.data.ledger import Store
from zellige.flows.progress import progress_line
from zellige.flows.show import summary_lines
from zellige.tasks.report import write_report
from zellige.tasks.watch import Tally, Watch

#: Seconds between two looks at a run: each is a request to Prefect's API.
EVERY_S = 5.0

log = logging.getLogger(__name__)


@contextmanager
def progress_shown(watch: Watch, flow: str) -> Iterator[None]:
    """Inside, an artifact of the flow run says how far ``watch`` is."""
    over = threading.Event()

    def show() -> None:
        shown: Any = None
        while not over.wait(EVERY_S):
            with _never_failing():
                shown = _progress(shown, watch.tally, flow)
        if shown is not None:
            with _never_failing():
                _progress(shown, watch.tally, flow)

    # In a copy of this context, by which Prefect knows the flow run.
    thread = threading.Thread(target=copy_context().run, args=(show,), name="zellige-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def show_summary(summary: dict[str, Any], reports: str | None) -> None:
    """Artifacts of a run that ended; the report of a finished one goes into the folder ``reports``, if one is named."""
    flow, run_id = summary["flow"], summary["run_id"]
    with _never_failing():
        create_markdown_artifact(_markdown(summary), key=f"{flow}-summary")
        if run_id is not None:
            create_table_artifact(_counts(summary), key=f"{flow}-rows", description=f"Rows of run {run_id}")
        if run_id is not None and reports is not None and summary["state"] == "finished":
            _report(summary, Path(reports))


def _progress(shown: Any, tally: Tally, flow: str) -> Any:
    percent = 100 * tally.items / tally.items_total if tally.items_total else 0.0
    line = progress_line(tally)
    if shown is None:
        return create_progress_artifact(percent, key=f"{flow}-progress", description=line)
    return update_progress_artifact(shown, percent, description=line)


def _counts(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a status, and one a kind of error."""
    plain = [{"status": status, "error_kind": "", "rows": summary[status]} for status in ("ok", "skipped")]
    kinds = [{"status": "failed", "error_kind": kind, "rows": n} for kind, n in summary["errors"].items()]
    return plain + (kinds or [{"status": "failed", "error_kind": "", "rows": 0}])


def _markdown(summary: dict[str, Any]) -> str:
    """The words of the command line, and a table of the kernels."""
    text = "\n".join(("```", *summary_lines(summary), "```"))
    columns = ("operator", "device", "verdict", "launches", "checked", "max_rel_l2", "nonfinite", "launch_errors")
    if not (kernels := summary.get("kernels")):
        return text
    rows = [f"| {' | '.join(str(row[c]) for c in columns)} |" for row in kernels]
    return "\n".join((text, "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *rows))


def _report(summary: dict[str, Any], folder: Path) -> None:
    run_id = summary["run_id"]
    page = folder.absolute() / f"report-{run_id}.html"
    write_report(Store(summary["store"]).open_run(run_id), page)
    key = f"{summary['flow']}-report"
    create_link_artifact(page.as_uri(), link_text=page.name, key=key, description=f"Report of run {run_id}")


@contextmanager
def _never_failing() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        log.warning("an artifact of the flow run could not be made: %s", error)
