"""``zellige config …``: settings and presets."""

from __future__ import annotations

from typing import Annotated

import typer

from zellige.flows.cli_options import (
    WHAT,
    Config,
    Device,
    Dtype,
    Engines,
    Language,
    Loops,
    MaxTokens,
    Model,
    PlainJson,
    Preset,
    Runner,
    RunnerAddress,
    Schema,
    SecondTries,
    Seed,
    ShardItems,
    Temperature,
    Tile,
    Workers,
)

app = typer.Typer()
config_app = typer.Typer(help="Look at settings.", no_args_is_help=True)
app.add_typer(config_app, name="config")


@config_app.command("show")
def show_config(
    flow: Annotated[str | None, typer.Argument(metavar="[caption|ask|read]")] = None,
    preset: Preset = None,
    config: Config = None,
    prompt: Annotated[str | None, typer.Option(help="What to say to the model.", rich_help_panel=WHAT)] = None,
    tile: Tile = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    schema: Schema = None,
    language: Language = None,
    second_tries: SecondTries = None,
    model: Model = None,
    engine: Engines = None,
    device: Device = None,
    dtype: Dtype = None,
    shard_items: ShardItems = None,
    workers: Workers = None,
    runner: Runner = None,
    runner_address: RunnerAddress = None,
    loops: Loops = None,
    as_json: PlainJson = False,
) -> None:
    """Every setting of a flow, and whether a flag, the environment, a file, a preset or nothing said it."""
    from zellige.flows.config_command import show
    from zellige.flows.settings import KEYS

    given = {
        **locals(),
        "engines": engine,
        "json_schema": schema,
        "model": None if model is None else str(model.absolute()),
    }
    flags = {key: given[key] for key in KEYS}
    raise typer.Exit(show(flow, preset or [], config, flags, as_json))


@config_app.command("presets")
def list_presets(as_json: PlainJson = False) -> None:
    """The presets that ship, and what each is for."""
    from zellige.flows.config_command import presets

    raise typer.Exit(presets(as_json))
