"""The command line: what can be started, and with what. Heavy imports happen inside the commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from zellige.tasks.job import Flow

app = typer.Typer(
    name="zellige",
    help="Captions and questions images by the million on your own GPUs: every image ends as a row.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
runs_app = typer.Typer(help="Look at the runs of a store.", no_args_is_help=True)
app.add_typer(runs_app, name="runs")

WHAT, HOW, WHERE, OF_WHAT, RUNNING = "What to do", "How to ask", "Where", "Of what", "How to run"

Inputs = Annotated[list[str] | None, typer.Argument(metavar="INPUT", help="Image files, and folders of them.")]
Store = Annotated[Path | None, typer.Option(help="Folder of runs and answers.", rich_help_panel=WHERE)]
Tile = Annotated[
    str | None,
    typer.Option(
        metavar="auto|off|PIXELS",
        help="Cut large images into tiles of the model's own size (auto), of PIXELS, or not. Default: auto.",
        rich_help_panel=WHAT,
    ),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Take the first N items.", rich_help_panel=WHAT)]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Count items, calls and vision tokens; write nothing.", rich_help_panel=WHAT)
]
Resume = Annotated[str | None, typer.Option(metavar="RUN", help="Finish this run.", rich_help_panel=WHAT)]
Raw = Annotated[
    bool,
    typer.Option(
        "--raw",
        help="One request an item, and the answer as the engine gave it: no tiles, no second tries, nothing refused.",
        rich_help_panel=WHAT,
    ),
]
MaxTokens = Annotated[
    int | None, typer.Option(min=1, help="Tokens of one answer at most. Default: 256.", rich_help_panel=HOW)
]
Temperature = Annotated[float | None, typer.Option(min=0, max=10, help="0 is greedy. Default: 0.", rich_help_panel=HOW)]
Seed = Annotated[int | None, typer.Option(help="Makes sampled answers repeatable.", rich_help_panel=HOW)]
Model = Annotated[
    Path | None,
    typer.Option(
        help="Checkpoint folder in Hugging Face layout. Default: the small one that ships; it knows shapes and "
        "printed text.",
        rich_help_panel=WHERE,
    ),
]
Device = Annotated[
    str | None, typer.Option(metavar="cpu|cuda[:N]", help="Where the model runs.", rich_help_panel=WHERE)
]
Dtype = Annotated[
    str | None, typer.Option(metavar="float32|bfloat16|float16", help="Type of the weights.", rich_help_panel=WHERE)
]
ShardItems = Annotated[
    int | None,
    typer.Option(min=1, help="Items answered and committed together. Default: 256.", rich_help_panel=WHERE),
]
Include = Annotated[
    list[str] | None, typer.Option(metavar="GLOB", help="Take only files like this.", rich_help_panel=OF_WHAT)
]
Exclude = Annotated[
    list[str] | None, typer.Option(metavar="GLOB", help="Leave files like this out.", rich_help_panel=OF_WHAT)
]
NoPrefect = Annotated[
    bool, typer.Option("--no-prefect", help="Run the same steps without Prefect.", rich_help_panel=RUNNING)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.", rich_help_panel=RUNNING)]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="No progress and no summary; errors are still told.", rich_help_panel=RUNNING)
]
LogFile = Annotated[Path | None, typer.Option(help="Write a log of the run here.", rich_help_panel=RUNNING)]
RunStore = Annotated[Path, typer.Option("--store", help="Folder of runs and answers.")]
PlainJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


@app.command()
def caption(
    inputs: Inputs = None,
    store: Store = None,
    prompt: Annotated[
        str | None, typer.Option(help="What to say to the model. Default: Describe the image.", rich_help_panel=WHAT)
    ] = None,
    tile: Tile = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    resume: Resume = None,
    raw: Raw = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    shard_items: ShardItems = None,
    include: Include = None,
    exclude: Exclude = None,
    no_prefect: NoPrefect = False,
    as_json: Json = False,
    quiet: Quiet = False,
    log_file: LogFile = None,
) -> None:
    """Caption every image."""
    parameters = _parameters(locals()) | {"prompt": prompt}
    _start(
        "caption", parameters, dry_run=dry_run, prefect=not no_prefect, as_json=as_json, quiet=quiet, log_file=log_file
    )


@app.command()
def ask(
    inputs: Inputs = None,
    store: Store = None,
    question: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="A question about every image; may be given often.", rich_help_panel=WHAT),
    ] = None,
    questions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Questions from a JSONL, CSV or Parquet file: question, and question_id where wanted.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    tile: Tile = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    resume: Resume = None,
    raw: Raw = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    shard_items: ShardItems = None,
    include: Include = None,
    exclude: Exclude = None,
    no_prefect: NoPrefect = False,
    as_json: Json = False,
    quiet: Quiet = False,
    log_file: LogFile = None,
) -> None:
    """Ask questions about every image."""
    asked = {"questions": question or [], "questions_file": None if questions is None else _address(questions)}
    parameters = _parameters(locals()) | asked
    _start("ask", parameters, dry_run=dry_run, prefect=not no_prefect, as_json=as_json, quiet=quiet, log_file=log_file)


@runs_app.command("list")
def list_runs(store: RunStore, as_json: PlainJson = False) -> None:
    """Every run of the store, oldest first."""
    from zellige.flows.commands import list_runs

    raise typer.Exit(list_runs(store, as_json))


@runs_app.command("show")
def show_run(run: Annotated[str, typer.Argument(metavar="RUN")], store: RunStore, as_json: PlainJson = False) -> None:
    """One run: its counts, what failed and why, its throughput, and where its rows are."""
    from zellige.flows.commands import show_run

    raise typer.Exit(show_run(run, store, as_json))


def _parameters(given: dict[str, Any]) -> dict[str, Any]:
    """What both flows are started with, as small plain values: None for what was left out."""
    plain = ("tile", "limit", "resume", "max_tokens", "temperature", "seed", "device", "dtype", "shard_items")
    return {
        "inputs": given["inputs"] or [],
        "store": None if given["store"] is None else _address(given["store"]),
        "model": None if given["model"] is None else str(given["model"].absolute()),
        "raw": given["raw"] or None,
        "include": given["include"] or [],
        "exclude": given["exclude"] or [],
        **{name: given[name] for name in plain},
    }


def _address(path: Path) -> str:
    from zellige.data.uri import to_uri

    return to_uri(path)


def _start(task: Flow, parameters: dict[str, Any], **how: Any) -> None:
    from zellige.flows.commands import start

    raise typer.Exit(start(task, parameters, **how))


def main() -> None:
    """The ``zellige`` command."""
    app()
