"""What a person reads of runs: the summary at the end, the forecast, and the table of runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from zellige.data.uri import from_uri, is_file_uri
from zellige.flows.progress import duration


def many(count: int, what: str) -> str:
    """``1 item``, ``1,200 items``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """A run's counts, throughput and seconds by stage, and where its rows are."""
    first = [
        f"  finished first: run {run_id}, {many(failed, 'failed row')}"
        for run_id, failed in summary.get("finished_first", {}).items()
        if run_id != summary["run_id"]
    ]
    if summary["run_id"] is None:
        shown = ", ".join(map(readable, summary["inputs"][:3])) + ("" if len(summary["inputs"]) <= 3 else " …")
        return [f"{summary['flow']} · nothing new in {shown}"]
    t = summary["throughput"]
    kinds = ", ".join(f"{n} {kind}" for kind, n in summary["errors"].items())
    counts = f"{summary['ok']} ok, {summary['failed']} failed{f' ({kinds})' if kinds else ''}"
    if summary["skipped"]:
        counts += f", {summary['skipped']} skipped"
    lines = [
        f"{summary['flow']} · run {summary['run_id']} · {summary['state']}",
        f"  model {summary['model']} {summary['model_fingerprint']} in {summary['dtype']}",
        f"  {many(summary['items'], 'item')}, {many(summary['rows'], 'row')}: {counts}",
    ]
    if summary["state"] == "finished" and not summary["items"]:
        lines.append(f"  {_nothing_found(summary)}")
    elif summary["ignored"]:
        lines.append(f"  {_passed_by(summary)}")
    if t.get("wall_s"):
        lines.append(
            f"  {duration(t['wall_s'])} after loading{_by_workers(t)}: "
            f"{t['items_per_s']:.2f} items/s, {t['tokens_per_s']:.1f} tokens/s · "
            f"{many(t['images'], 'image')}, {many(t['tiles'], 'view')}, {many(t['image_tokens'], 'image token')}, "
            f"{many(t['prompt_tokens'], 'prompt token')}, {many(t['completion_tokens'], 'completion token')}"
        )
        lines.append(
            f"  seconds: load {t['load_s']:.1f}, plan {t['plan_s']:.1f}, decode {t['decode_s']:.1f}, "
            f"engine {t['engine_s']:.1f} (preprocess {t['preprocess_s']:.1f}, vision {t['vision_s']:.1f}, "
            f"prefill {t['prefill_s']:.1f}, generate {t['generate_s']:.1f}), commit {t['commit_s']:.1f}"
        )
    if summary.get("index_error") and "?" in summary["store"]:
        lines.append(f"  no index: {summary['index_error']}; nothing is lost")
    elif summary.get("index_error"):
        rebuild = f"zellige runs rebuild --store {shlex.quote(summary['store'])}"
        lines.append(f"  the index lacks this run ({summary['index_error']}); {rebuild} makes it anew, nothing is lost")
    return [*lines, *first, f"  rows: {summary['parts']}", *_kernel_lines(summary)]


def _by_workers(throughput: dict[str, Any]) -> str:
    """That seconds and rates are of one worker after another, whether they worked at the same time or not."""
    workers = throughput.get("workers", 1)
    return f" of {workers} workers, added up" if workers > 1 else ""


def _kernel_lines(summary: dict[str, Any]) -> list[str]:
    """What the meter objected to, and its verdict; nothing of an engine that tells nothing of its kernels."""
    rows = summary["kernels"]
    if not rows:
        return []
    objections = [
        f"  {row['operator']} on {row['device']} {row['verdict']}: {row['launch_errors']} launch errors, "
        f"{row['nonfinite']} values not finite, {row['guard_hits']} bytes beside outputs, "
        f"{row['repeat_mismatches']} not repeated, "
        + (f"error {row['max_rel_l2']} at a tolerance of {row['tolerance']}" if row["checked"] else "nothing compared")
        for row in rows
        if row["verdict"] in ("suspect", "failed")
    ]
    if summary["kernel_verdict"] == "unchecked" and {row["device"] for row in rows} == {"cpu"}:
        return ["  kernels: on a CPU nothing is compared"]
    launches, checked = (sum(row[name] for row in rows) for name in ("launches", "checked"))
    return [*objections, f"  kernels {summary['kernel_verdict']}: {checked:,} of {launches:,} launches checked"]


def next_step(summary: dict[str, Any]) -> str | None:
    """The command that goes on from here, if there is something to go on with."""
    if summary["state"] != "finished":
        return resume_command(summary["flow"], summary["run_id"], summary["store"])
    if summary["failed"]:
        return f"zellige runs show {summary['run_id']} --store {shlex.quote(summary['store'])}"
    return None


def resume_command(flow: str, run_id: str, store: str) -> str:
    """The command that finishes a run, for a shell."""
    return f"zellige {flow} --resume {run_id} --store {shlex.quote(store)}"


def forecast_lines(forecast: dict[str, Any]) -> list[str]:
    """What a dry run found."""
    bad, failed = forecast["unreadable"], forecast["failed"]
    if not forecast["items"]:
        return [_nothing_found(forecast)]
    return [
        f"{many(forecast['items'], 'item')}, {len(bad):,} of them unreadable{_kinds(forecast['kinds'])}",
        ", ".join(many(forecast[f"{what}s"], what.replace("_", " ")) for what in ("view", "call", "vision_token")),
        *_time_lines(forecast),
        *_named(bad),
        *([f"{many(len(failed), 'item')} failed of those tried:", *_named(failed)] if failed else []),
        *([_passed_by(forecast)] if forecast["ignored"] else []),
    ]


def _named(errors: dict[str, str]) -> list[str]:
    more = [f"  … and {len(errors) - 20} more"] if len(errors) > 20 else []
    return [*(f"  {name}: {error}" for name, error in list(errors.items())[:20]), *more]


def _kinds(kinds: dict[str, int]) -> str:
    return ": " + ", ".join(f"{n:,} {kind}" for kind, n in kinds.items()) if kinds else ""


def _time_lines(forecast: dict[str, Any]) -> list[str]:
    if forecast["seconds"] is not None:
        fast, slow = map(duration, forecast["seconds"])
        return [f"{fast} to {slow} of answering, by {many(forecast['answered'], 'item')} answered to see"]
    return [f"how long it takes is not known: {forecast['no_estimate']}"] if forecast["no_estimate"] else []


def _nothing_found(told: dict[str, Any]) -> str:
    inputs = told["inputs"]
    shown = ", ".join(map(readable, inputs[:3])) + (f" and {len(inputs) - 3} more" if len(inputs) > 3 else "")
    return f"no image found in {shown}" + (f"; {_passed_by(told)}" if told["ignored"] else "")


def _passed_by(told: dict[str, Any]) -> str:
    return "passed by: " + ", ".join(f"{n:,} {reason}" for reason, n in sorted(told["ignored"].items()))


def readable(uri: str) -> str:
    """A ``file://`` address as a path, where its bytes are plain printable UTF-8; anything else as it is."""
    if not is_file_uri(uri):
        return uri
    try:
        path = from_uri(uri).decode("utf-8")
    except UnicodeDecodeError:
        return uri
    return path if path.isprintable() else uri


def failure_lines(failures: Iterable[dict[str, Any]]) -> list[str]:
    """One line a failed row."""
    return [f"  {f['uri']} [{f['question_id']}] {f['error_kind']}: {f['error']}" for f in failures]


def table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> list[str]:
    """``rows`` in aligned columns of plain text, with a heading."""
    cells = [list(columns), *([str(row.get(c, "")) for c in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in cells]
