"""``zellige deploy``: schedules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def deploy(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="Deployments, as Prefect writes them.")] = Path(
        "prefect.yaml"
    ),
) -> None:
    """Register the schedules of a prefect.yaml with a Prefect server."""
    from zellige.flows.deploy import deploy

    raise typer.Exit(deploy(file))
