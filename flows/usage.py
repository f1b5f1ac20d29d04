"""Wrong options and arguments, as the parser finds them: with ``--json`` one object on stdout like any other error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from typer.core import TyperGroup

from zellige.flows.output import put


class JsonUsage(TyperGroup):
    """The whole command line. What the parser refuses is told in words on stderr, and for machines where they ask."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        given = list(args)  # the parser takes them out one by one
        with _told_in_json(given):
            context = super().make_context(info_name, args, *more, **extra)
        context.meta[__name__] = given
        return context

    def invoke(self, ctx: Any) -> Any:
        with _told_in_json(ctx.meta.get(__name__, ())):
            return super().invoke(ctx)


@contextmanager
def _told_in_json(given: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # By what they can do: which class it is depends on the version of typer.
        if "--json" in given and hasattr(error, "format_message") and hasattr(error, "exit_code"):
            context = getattr(error, "ctx", None)
            advice = "" if context is None else f"; see {context.command_path} --help"
            message = error.format_message().rstrip(".") + advice
            told = {"state": "failed", "error": message, "exit_code": error.exit_code}
            put(json.dumps(told), sys.stdout)
        raise
