"""The command line, put together. Heavy imports happen inside the commands."""

from __future__ import annotations

from typing import Annotated

import typer

from zellige.flows import cli_config, cli_deploy, cli_engine, cli_flows, cli_runs
from zellige.flows.usage import JsonUsage

app = typer.Typer(
    name="zellige",
    cls=JsonUsage,
    help="Captions and questions images by the million on your own GPUs: every image ends as a row.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for part in (cli_flows, cli_runs, cli_deploy, cli_config, cli_engine):
    app.add_typer(part.app)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"zellige {version('zellige')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version.")
    ] = False,
) -> None:
    """What goes before every command."""


def main() -> None:
    """The ``zellige`` command."""
    app()
