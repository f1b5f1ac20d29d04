"""``zellige runs …``, ``export``, ``report`` and ``review``: what can be done with runs that are there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from zellige.flows.cli_options import (
    PlainJson,
    RunStore,
)

app = typer.Typer()
runs_app = typer.Typer(help="Look at the runs of a store.", no_args_is_help=True)
app.add_typer(runs_app, name="runs")


@runs_app.command("list")
def list_runs(store: RunStore, as_json: PlainJson = False) -> None:
    """Every run of the store, oldest first."""
    from zellige.flows.runs_commands import list_runs

    raise typer.Exit(list_runs(store, as_json))


@runs_app.command("show")
def show_run(run: Annotated[str, typer.Argument(metavar="RUN")], store: RunStore, as_json: PlainJson = False) -> None:
    """One run: its counts, what failed and why, its throughput, and where its rows are."""
    from zellige.flows.runs_commands import show_run

    raise typer.Exit(show_run(run, store, as_json))


@runs_app.command("status")
def run_status(
    run: Annotated[str, typer.Argument(metavar="RUN")],
    store: RunStore,
    watch: Annotated[bool, typer.Option("--watch", help="Look again until the run ends.")] = False,
    as_json: PlainJson = False,
) -> None:
    """How far a run is, how fast it goes and how long it will take; also while it is worked on."""
    from zellige.flows.runs_commands import run_status

    raise typer.Exit(run_status(run, store, watch, as_json))


@runs_app.command("delete")
def delete_run(
    run: Annotated[str, typer.Argument(metavar="RUN")],
    store: RunStore,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: PlainJson = False,
) -> None:
    """Remove a run and its answers for good."""
    from zellige.flows.runs_commands import delete_run

    raise typer.Exit(delete_run(run, store, yes, as_json))


@runs_app.command("compare")
def compare_runs(
    first: Annotated[str, typer.Argument(metavar="A")],
    second: Annotated[str, typer.Argument(metavar="B")],
    store: RunStore,
    agreement: Annotated[
        float, typer.Option(min=0, max=1, metavar="SHARE", help="Of the answers ok in both, how many must be equal.")
    ] = 0.99,
    throughput: Annotated[
        float, typer.Option(min=0, metavar="RATIO", help="What items a second of B over A must reach.")
    ] = 0.8,
    as_json: PlainJson = False,
) -> None:
    """Two runs side by side: counts, answers, kernels, throughput; exit code 3 where B is worse than it may be."""
    from zellige.flows.compare_command import compare_runs
    from zellige.tasks.compare import Limits

    raise typer.Exit(compare_runs(first, second, store, Limits(agreement, throughput), as_json))


@runs_app.command("rebuild")
def rebuild_index(store: RunStore, as_json: PlainJson = False) -> None:
    """Make the store's index anew from its files."""
    from zellige.flows.runs_commands import rebuild_index

    raise typer.Exit(rebuild_index(store, as_json))


@app.command("export")
def export_run(
    run: Annotated[str, typer.Argument(metavar="RUN")],
    store: RunStore,
    to: Annotated[str, typer.Option(metavar="jsonl|txt|webdataset|hf|coco|openai-batch", help="What is written.")],
    dest: Annotated[
        Path | None, typer.Argument(metavar="DEST", help="A new file, or for txt, webdataset and hf a folder.")
    ] = None,
    beside: Annotated[bool, typer.Option("--beside", help="txt: write each text beside its image.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export at DEST.")] = False,
    if_exists: Annotated[
        str | None,
        typer.Option(metavar="skip|overwrite|append|prepend", help="txt: a text that is there. Default: skip."),
    ] = None,
    prefix: Annotated[str | None, typer.Option(help="txt: goes before each answer.")] = None,
    suffix: Annotated[str | None, typer.Option(help="txt: goes after each answer.")] = None,
    shard_bytes: Annotated[
        int | None, typer.Option(min=1, help="webdataset, hf: bytes of images a file, about. Default: 1 GiB.")
    ] = None,
    as_json: PlainJson = False,
) -> None:
    """Write a run's answers for other programs: text files, WebDataset, Hugging Face, COCO, JSON lines."""
    from zellige.flows.export_command import export

    options: dict[str, Any] = {
        "beside": beside,
        "overwrite": overwrite,
        "if_exists": if_exists,
        "prefix": prefix,
        "suffix": suffix,
    }
    raise typer.Exit(export(run, to, dest, store, **options, shard_bytes=shard_bytes, as_json=as_json))


@app.command("report")
def report_run(
    run: Annotated[str, typer.Argument(metavar="RUN")],
    store: RunStore,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The file to write. Default: report-RUN.html.")
    ] = None,
    as_json: PlainJson = False,
) -> None:
    """Write one HTML file about a run: images, tiles, answers, charts, kernels; it opens without a network."""
    from zellige.flows.report_command import report

    raise typer.Exit(report(run, store, out, as_json))


@app.command("review")
def review_run(
    run: Annotated[str, typer.Argument(metavar="RUN")],
    store: RunStore,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = 0,
    reviewer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Stands beside each verdict. Default: the user's name.")
    ] = None,
) -> None:
    """Serve a run's page to this machine, to accept, edit or reject its answers."""
    from zellige.flows.review_command import review

    raise typer.Exit(review(run, store, port, reviewer))
