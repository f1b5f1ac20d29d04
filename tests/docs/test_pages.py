"""The pages tell of everything that they are about, name nothing that there is not, and lead nowhere else."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from doc_snippets import PAGES, ROOT, inline_code, links, snippets
from doc_surface import every_option, unknown

from zellige.data.columns import KERNELS
from zellige.data.schema import ErrorKind

DOCS = ROOT / "docs"
#: Options in the running text that are other programs'.
OTHERS = {"--constraint"}


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_and_options_in_the_running_text_are_there(page: Path) -> None:
    options, wrong = every_option() | OTHERS, []
    for code in inline_code(page):
        if code.startswith("zellige "):
            wrong += [(code, word) for word in unknown(shlex.split(code))]
        elif code.startswith("--") and code != "--":
            wrong += [(code, code)] if code.split()[0].partition("=")[0] not in options else []
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_to_files_of_the_repository(page: Path) -> None:
    relative = [link.partition("#")[0] for link in links(page) if not re.match(r"[a-z]+:|#", link)]
    assert [link for link in relative if not (page.parent / link).exists()] == []


def test_every_kind_of_error_has_its_heading() -> None:
    headings = re.findall(r"^### `(\w+)`$", (DOCS / "trouble.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(headings) == sorted(ErrorKind)


def test_every_column_of_kernel_health_is_told_in_order() -> None:
    text = (DOCS / "kernel-health.md").read_text(encoding="utf-8")
    _, _, table = text.partition("## The columns")
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == KERNELS.names


def test_every_page_is_in_the_menu_of_the_site() -> None:
    menu = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(menu) == sorted(str(page.relative_to(DOCS)) for page in PAGES if page.is_relative_to(DOCS))


def test_a_page_that_tells_to_type_what_is_no_command_is_told(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("    zellige runs list --store STORE\n    (where STORE is a folder)\n")
    with pytest.raises(ValueError, match="is no command"):
        snippets(page)


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("zellige runs list --store S", []),
        ("zellige runs lost --store S", ["lost"]),
        ("zellige caption x --shop S", ["--shop"]),
        ("zellige doctor --sanitize memcheck -- other --option", []),
    ],
)
def test_a_command_that_there_is_not_is_found(line: str, wrong: list[str]) -> None:
    assert unknown(line.split()) == wrong
