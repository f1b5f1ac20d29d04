"""The commands and options that there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from zellige.flows.cli import app

_ROOT: Any = typer.main.get_command(app)


def every_option() -> set[str]:
    """The options of all commands, with both dashes."""

    def walk(command: Any) -> Iterator[str]:
        yield from _options(command)
        for child in getattr(command, "commands", {}).values():
            yield from walk(child)

    return set(walk(_ROOT))


def unknown(words: list[str]) -> list[str]:
    """What a line that begins with ``zellige`` names and there is not; what follows ``--`` is another program's."""
    words = words[: words.index("--")] if "--" in words else words
    command, place = _ROOT, 1
    while hasattr(command, "commands") and place < len(words) and not words[place].startswith("-"):
        if words[place] not in command.commands:
            return [words[place]]
        command, place = command.commands[words[place]], place + 1
    options = _options(command)
    return [w for w in words[place:] if w.startswith("--") and w.partition("=")[0] not in options]


def _options(command: Any) -> set[str]:
    return {"--help"} | {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
