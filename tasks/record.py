"""Record: the run in the index, and its summary for whoever started it."""

from __future__ import annotations

from typing import Any

from zellige.data.catalog import Catalog
from zellige.data.health import worst
from zellige.data.ledger import Run
from zellige.tasks.job import Job
from zellige.tasks.plan import IGNORED_EVENT, open_store
from zellige.tasks.recipe import local_path


def record(job: Job, run_id: str) -> dict[str, Any]:
    """Put the run in the store's index and say how it stands: what ``--json`` prints.

    ``index_error`` says why it could not be put there: nothing is lost, the files are the truth.
    """
    run = open_store(job).open_run(run_id)
    written = Catalog(local_path(job.store)).record(run)
    reasons = [e["reason"] for e in run.events() if e["kind"] == "index_not_written"]
    return summary(run) | {"index_error": None if written else reasons[-1]}


def summary(run: Run) -> dict[str, Any]:
    """The run in plain values, from its files: counts, kinds of error, throughput, kernels, and where the rows are."""
    progress, kernels = run.progress(), run.kernels()
    return {
        "run_id": run.run_id,
        "flow": run.recipe.task,
        "inputs": list(run.inputs),
        "state": run.state(),
        "items": progress.items,
        "rows": progress.rows,
        "ok": progress.ok,
        "failed": progress.failed,
        "skipped": progress.skipped,
        "errors": run.errors(),
        "ignored": next((e["counts"] for e in reversed(run.events()) if e["kind"] == IGNORED_EVENT), {}),
        "throughput": with_rates(run.throughput()),
        "kernels": kernels,
        "kernel_verdict": worst([row["verdict"] for row in kernels]) if kernels else None,
        "model": run.recipe.model_name,
        "model_fingerprint": run.recipe.model_fingerprint,
        "dtype": run.recipe.model_dtype,
        "store": run.store,
        "parts": str(run.folder / "parts" / "*.parquet"),
    }


def nothing_new(job: Job) -> dict[str, Any]:
    """The summary where only new items were wanted and there were none: of no run, with nothing in it."""
    counts = dict.fromkeys(("items", "rows", "ok", "failed", "skipped"), 0)
    return {
        "run_id": None,
        "flow": job.task,
        "inputs": list(job.inputs),
        "state": "finished",
        **counts,
        "errors": {},
        "store": local_path(job.store),
    }


def with_rates(throughput: dict[str, Any]) -> dict[str, Any]:
    """Throughput sums with ``items_per_s`` and ``tokens_per_s`` (completion tokens) over the answering wall time."""
    wall = throughput.get("wall_s") or 0.0
    items, tokens = throughput.get("items") or 0, throughput.get("completion_tokens") or 0
    return throughput | {"items_per_s": items / wall if wall else 0.0, "tokens_per_s": tokens / wall if wall else 0.0}
