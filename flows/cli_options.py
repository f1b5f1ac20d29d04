"""Options that several commands share: their names, words and places in the help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

WHAT, HOW, WHERE, OF_WHAT, RUNNING = "What to do", "How to ask", "Where", "Of what", "How to run"


def _store_address(text: str) -> str:
    """A path, a ``file://`` address or one of an object store, as the flows take it."""
    from zellige.tasks.recipe import local_path

    return local_path(text)


Inputs = Annotated[
    list[str] | None,
    typer.Argument(metavar="INPUT", help="Images, folders, globs, archives, tables and lists; here or at s3://…"),
]
Store = Annotated[
    str | None, typer.Option(metavar="DIR", help="Folder of runs and answers; here or at s3://…", rich_help_panel=WHERE)
]
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
    bool,
    typer.Option("--dry-run", help="Count items and vision tokens, time a few; write nothing.", rich_help_panel=WHAT),
]
Resume = Annotated[str | None, typer.Option(metavar="RUN", help="Finish this run.", rich_help_panel=WHAT)]
Retry = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KIND", help="With --resume: answer rows that failed so again; failed: all.", rich_help_panel=WHAT
    ),
]
New = Annotated[
    bool,
    typer.Option(
        "--new",
        help="Finish earlier runs of this, then take only items that none of them has answered.",
        rich_help_panel=WHAT,
    ),
]
Raw = Annotated[
    bool,
    typer.Option(
        "--raw",
        help="One request an item, and the answer as the engine gave it: no tiles, no second tries, nothing refused.",
        rich_help_panel=WHAT,
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens of one answer at most. Default: 256, to read 1024.", rich_help_panel=HOW),
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
Engines = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL",
        help="Ask the OpenAI-compatible server at http://HOST:PORT/v1 instead; of several (given often, or with "
        "commas), the one with the least to do.",
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
Column = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Column of a table or list that holds the images.", rich_help_panel=OF_WHAT),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN", help="Keep this column beside the answers; may be given often.", rich_help_panel=OF_WHAT
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, max=1024, help="Processes that decode images. Default: one a CPU.", rich_help_panel=RUNNING),
]
Runner = Annotated[
    str | None,
    typer.Option(
        metavar="thread|dask|ray",
        help="Where lease loops run: in this process, or on workers of Dask or Ray (extras dask and ray).",
        rich_help_panel=RUNNING,
    ),
]
RunnerAddress = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="The cluster: tcp://HOST:8786 of Dask, HOST:6379 or ray://HOST:10001 of Ray. Default: its own, here.",
        rich_help_panel=RUNNING,
    ),
]
Loops = Annotated[
    int | None,
    typer.Option(min=1, max=200, help="Lease loops that share the run. Default: 1.", rich_help_panel=RUNNING),
]
NoDedupe = Annotated[
    bool, typer.Option("--no-dedupe", help="Ask about each copy of an image anew.", rich_help_panel=RUNNING)
]
NoPrefect = Annotated[
    bool, typer.Option("--no-prefect", help="Run the same steps without Prefect.", rich_help_panel=RUNNING)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.", rich_help_panel=RUNNING)]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="No progress and no summary; errors are still told.", rich_help_panel=RUNNING)
]
Preset = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Settings that ship (zellige config presets); may be given often, and every flag counts more.",
        rich_help_panel=HOW,
    ),
]
Config = Annotated[Path | None, typer.Option(metavar="FILE", help="Settings from this TOML file.", rich_help_panel=HOW)]
Schema = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="JSON schema that every answer has to meet.", rich_help_panel=HOW),
]
Language = Annotated[
    str | None,
    typer.Option(metavar="CODE", help="Refuse answers in another language than this: en, de, …", rich_help_panel=HOW),
]
SecondTries = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=2,
        help="Ask again so often at most where an answer is refused: sampled warmer, at half the pixels. Default: 2.",
        rich_help_panel=HOW,
    ),
]
LogFile = Annotated[Path | None, typer.Option(help="Write a log of the run here.", rich_help_panel=RUNNING)]
RunStore = Annotated[
    str,
    typer.Option("--store", metavar="DIR", help="Folder of runs and answers; here or at s3://…", parser=_store_address),
]
PlainJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
