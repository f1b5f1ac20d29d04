"""What the pages tell a reader to type: shell commands and Python, with where they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Fences that hold what is shown and not typed.
SHOWN = {"json", "text", "toml", "yaml"}
#: A line that begins with a plain word is a command, but for a formula: "cache = fraction · total − …".
_COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*[a-z.][a-z0-9_./-]*(?: (?!=)|$)")
_SAID = re.compile(r" +# .*")
_LOOP = re.compile(r"for (\w+) in (\w+)[^;]*; do (.+?) & done")


@dataclass(frozen=True)
class Snippet:
    """One command line, or one block of Python; ``line`` counts from 1 in the page."""

    page: Path
    line: int
    kind: Literal["shell", "python"]
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}: {self.text}"


def snippets(page: Path) -> list[Snippet]:
    """Everything on ``page`` that is typed, in order; raises ValueError for a block that may be either."""
    return [snippet for token in _tokens(page) for snippet in _of(page, token)]


def inline_code(page: Path) -> list[str]:
    """The code that stands in the running text of ``page``, and in its tables."""
    return [part.content for part in _running(page) if part.type == "code_inline"]


def links(page: Path) -> list[str]:
    """Where the links and the pictures of ``page`` lead."""
    found = [part.attrGet({"link_open": "href", "image": "src"}.get(part.type, "")) for part in _running(page)]
    return [str(link) for link in found if link]


def _running(page: Path) -> Iterator[Token]:
    for token in _tokens(page):
        yield from token.children or ()


def _tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def _of(page: Path, token: Token) -> Iterator[Snippet]:
    if token.type not in ("fence", "code_block") or token.info in SHOWN:
        return
    assert token.map is not None
    begin = token.map[0] + (2 if token.type == "fence" else 1)
    if token.info == "python":
        yield Snippet(page, begin, "python", token.content)
        return
    lines = token.content.rstrip("\n").split("\n")
    if token.info not in ("", "bash"):
        raise ValueError(f"{page}:{begin}: a fence of {token.info!r}; take bash, python or one of {sorted(SHOWN)}")
    if token.info == "" and not _COMMAND.match(lines[0]):
        return
    for number, line in enumerate(lines, begin):
        if line and not line.lstrip().startswith("#"):
            if not _COMMAND.match(line):
                raise ValueError(f"{page}:{number}: {line!r} is no command; put # before what is only said")
            yield Snippet(page, number, "shell", _once(line))


def _once(line: str) -> str:
    """``line`` without what is said behind it; of a loop over servers the first of what it starts."""
    line = _SAID.sub("", line)
    loop = _LOOP.fullmatch(line)
    return line if loop is None else loop[3].replace(f"${loop[1]}", loop[2])
