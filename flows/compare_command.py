"""``zellige runs compare``: two runs side by side; the exit code says whether the second is worse than it may be."""

from __future__ import annotations

import json
import sys
from typing import Any

from zellige.data.catalog import Catalog
from zellige.flows.commands import existing, logging_to, reported
from zellige.flows.output import put
from zellige.flows.show import many, readable, table
from zellige.tasks.compare import JUDGED_S, Limits, compare

#: Like a run with failed rows: done, and not all is well.
DRIFTED = 3


def compare_runs(first: str, second: str, store: str, limits: Limits, as_json: bool) -> int:
    """Print how ``second`` differs from ``first``; DRIFTED where it is worse than ``limits`` allow."""

    def work() -> int:
        runs = existing(store)
        report = compare(runs.open_run(first), runs.open_run(second), Catalog(store), limits)
        code = DRIFTED if report["drift"] else 0
        if as_json:
            put(json.dumps(report | {"exit_code": code}, default=str), sys.stdout)
        else:
            put("\n".join(_lines(report)), sys.stdout)
        return code

    with logging_to(None):
        return reported(work, as_json)


def _lines(report: dict[str, Any]) -> list[str]:
    counts = ("run_id", "state", "items", "rows", "ok", "failed", "skipped", "kernel_verdict", "model", "dtype")
    answers, drift = report["answers"], report["drift"]
    return [
        *table([{name: run[name] for name in counts} for run in report["runs"]], counts),
        *([] if report["same_model"] else ["two models, or one in two dtypes"]),
        *([] if report["same_recipe"] else ["asked by two recipes"]),
        _agreement(answers),
        *map(_difference, answers["different"]),
        *_kernel_lines(report["kernels"]),
        _throughput(report),
        *([f"drifted: {'; '.join(drift)}"] if drift else ["no drift"]),
    ]


def _throughput(report: dict[str, Any]) -> str:
    rates = (f"{_times(ratio)} {name.replace('_per_', '/')}" for name, ratio in report["throughput"].items())
    short = "" if report["throughput_judged"] else f" (under {JUDGED_S:g} s: too short to judge)"
    return f"throughput: {', '.join(rates)}{short}"


def _agreement(answers: dict[str, Any]) -> str:
    if answers["agreement"] is None:
        return (
            f"no row is ok in both; {answers['only_a']:,} only in the first, {answers['only_b']:,} only in the second"
        )
    return (
        f"answers: {answers['same']:,} of {answers['both_ok']:,} equal ({answers['agreement']:.2%}); "
        f"{answers['failed_since']:,} failed since, {answers['ok_since']:,} ok since; "
        f"{answers['only_a']:,} only in the first, {answers['only_b']:,} only in the second"
    )


def _difference(row: dict[str, Any]) -> str:
    place = "".join(f"/{part}" for part in (row["member"], row["page"]) if part is not None)
    said = (f"{row[f'status_{side}']} {(row[f'said_{side}'] or '')[:80]!r}" for side in "ab")
    return f"  {readable(row['uri'])}{place} [{row['question_id']}] {' → '.join(said)}"


def _kernel_lines(kernels: list[dict[str, Any]]) -> list[str]:
    silent = [
        row for row in kernels if row["device"] == "cpu" and {row["verdict_a"], row["verdict_b"]} <= {"unchecked", None}
    ]
    shown = [
        {
            "operator": row["operator"],
            "device": row["device"],
            "verdict": f"{row['verdict_a'] or 'not used'} → {row['verdict_b'] or 'not used'}",
            "error": " → ".join("-" if e is None else f"{e:.1e}" for e in (row["error_a"], row["error_b"])),
            "ms a launch": " → ".join(
                "-" if ms is None else f"{ms:.4f}" for ms in (row["ms_a_launch_a"], row["ms_a_launch_b"])
            ),
            "": row["drifted"] or "",
        }
        for row in kernels
        if row not in silent
    ]
    said = f"kernels: of {many(len(silent), 'operator')} nothing was compared, as ever on a CPU"
    return [*(table(shown, list(shown[0])) if shown else []), *([said] if silent else [])]


def _times(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{ratio:.2f} ×"
