"""``zellige caption``, ``ask`` and ``read``: what starts a flow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zellige.flows.cli_options import (
    WHAT,
    Column,
    Config,
    Device,
    DryRun,
    Dtype,
    Engines,
    Exclude,
    Include,
    Inputs,
    Json,
    Keep,
    Language,
    Limit,
    LogFile,
    Loops,
    MaxTokens,
    Model,
    New,
    NoDedupe,
    NoPrefect,
    Preset,
    Quiet,
    Raw,
    Resume,
    Retry,
    Runner,
    RunnerAddress,
    Schema,
    SecondTries,
    Seed,
    ShardItems,
    Store,
    Temperature,
    Tile,
    Workers,
)

if TYPE_CHECKING:
    from zellige.tasks.job import Flow

app = typer.Typer()


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
    retry: Retry = None,
    new: New = False,
    raw: Raw = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    model: Model = None,
    engine: Engines = None,
    device: Device = None,
    dtype: Dtype = None,
    shard_items: ShardItems = None,
    include: Include = None,
    exclude: Exclude = None,
    column: Column = None,
    keep: Keep = None,
    workers: Workers = None,
    runner: Runner = None,
    runner_address: RunnerAddress = None,
    loops: Loops = None,
    no_dedupe: NoDedupe = False,
    no_prefect: NoPrefect = False,
    as_json: Json = False,
    quiet: Quiet = False,
    log_file: LogFile = None,
    preset: Preset = None,
    config: Config = None,
    schema: Schema = None,
    language: Language = None,
    second_tries: SecondTries = None,
) -> None:
    """Caption every image."""
    parameters = _parameters(locals()) | {"prompt": prompt, "json_schema": schema, "language": language}
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
    prompt: Annotated[
        str | None,
        typer.Option(help="What to say around each question, with {question} in it.", rich_help_panel=WHAT),
    ] = None,
    tile: Tile = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    resume: Resume = None,
    retry: Retry = None,
    new: New = False,
    raw: Raw = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    model: Model = None,
    engine: Engines = None,
    device: Device = None,
    dtype: Dtype = None,
    shard_items: ShardItems = None,
    include: Include = None,
    exclude: Exclude = None,
    column: Column = None,
    keep: Keep = None,
    workers: Workers = None,
    runner: Runner = None,
    runner_address: RunnerAddress = None,
    loops: Loops = None,
    no_dedupe: NoDedupe = False,
    no_prefect: NoPrefect = False,
    as_json: Json = False,
    quiet: Quiet = False,
    log_file: LogFile = None,
    preset: Preset = None,
    config: Config = None,
    schema: Schema = None,
    language: Language = None,
    second_tries: SecondTries = None,
) -> None:
    """Ask questions about every image."""
    asked = {"questions": question or [], "questions_file": None if questions is None else _address(questions)}
    parameters = _parameters(locals()) | asked | {"prompt": prompt, "json_schema": schema, "language": language}
    _start("ask", parameters, dry_run=dry_run, prefect=not no_prefect, as_json=as_json, quiet=quiet, log_file=log_file)


@app.command()
def read(
    inputs: Inputs = None,
    store: Store = None,
    prompt: Annotated[
        str | None, typer.Option(help="What to say to the model. Default: Read the text.", rich_help_panel=WHAT)
    ] = None,
    tile: Tile = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    resume: Resume = None,
    retry: Retry = None,
    new: New = False,
    raw: Raw = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    model: Model = None,
    engine: Engines = None,
    device: Device = None,
    dtype: Dtype = None,
    shard_items: ShardItems = None,
    include: Include = None,
    exclude: Exclude = None,
    column: Column = None,
    keep: Keep = None,
    workers: Workers = None,
    runner: Runner = None,
    runner_address: RunnerAddress = None,
    loops: Loops = None,
    no_dedupe: NoDedupe = False,
    no_prefect: NoPrefect = False,
    as_json: Json = False,
    quiet: Quiet = False,
    log_file: LogFile = None,
    preset: Preset = None,
    config: Config = None,
    second_tries: SecondTries = None,
) -> None:
    """Read all text of every image, in reading order."""
    parameters = _parameters(locals()) | {"prompt": prompt}
    _start("read", parameters, dry_run=dry_run, prefect=not no_prefect, as_json=as_json, quiet=quiet, log_file=log_file)


def _parameters(given: dict[str, Any]) -> dict[str, Any]:
    """What every flow is started with, as small plain values: None for what was left out."""
    plain = (
        *("tile", "limit", "resume", "max_tokens", "temperature", "seed", "second_tries"),
        *("device", "dtype", "shard_items", "column", "workers", "runner", "runner_address", "loops"),
    )
    return {
        "inputs": given["inputs"] or [],
        "store": given["store"] and (given["store"] if "://" in given["store"] else _address(Path(given["store"]))),
        "model": None if given["model"] is None else str(given["model"].absolute()),
        "engines": given["engine"] or [],
        "raw": given["raw"] or None,
        "include": given["include"] or [],
        "exclude": given["exclude"] or [],
        "keep": given["keep"] or [],
        "retry": given["retry"] or [],
        "presets": given["preset"] or [],
        "config": given["config"],
        "dedupe": not given["no_dedupe"],
        "new_only": given["new"],
        **{name: given[name] for name in plain},
    }


def _address(path: Path) -> str:
    from zellige.data.uri import to_uri

    return to_uri(path)


def _start(task: Flow, parameters: dict[str, Any], **how: Any) -> None:
    from zellige.flows.commands import start

    raise typer.Exit(start(task, parameters, **how))
