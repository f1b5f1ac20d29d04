"""Imports point one way. Held here over the AST, because the folders are mapped to packages only when installed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("flows", "tasks", "engine", "kernels", "data")

#: What a room may import of ours; a prefix allows everything below it.
MAY = {
    "data": ("data",),
    "kernels": ("kernels",),
    "engine": ("engine", "kernels"),
    "tasks": ("tasks", "data", "engine.api", "engine.connect"),
    "flows": ("flows", "tasks", "data", "engine.api"),
}
#: Files that may go further than their room.
MORE = {
    "engine/demo": ("data.samples",),
    "flows/cli_engine.py": ("engine", "kernels"),
}
#: Which files may import a library at all; a folder stands for everything in it.
ONLY_IN = {
    "prefect": ("flows/", "tasks/"),
    "duckdb": ("data/catalog.py",),
    "torch": ("engine/", "kernels/"),
    "transformers": ("engine/bench.py", "engine/bench_shape_peer.py"),
    "llguidance": ("engine/grammar.py",),
    "fastapi": ("engine/server/",),
}
NO_TORCH = ("engine/api.py", "engine/connect.py", "engine/scheduler.py", "engine/cache.py", "engine/remote/")


def files() -> list[Path]:
    return [p for room in ROOMS for p in sorted((ROOT / room).rglob("*.py"))]


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Every module that a file imports, and whether at its top level; ``if TYPE_CHECKING`` does not run."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    top = {id(n) for n in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((a.name, id(node) in top) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            # "from zellige.engine import api" names a module of ours by its last part
            names = [f"{node.module}.{a.name}" for a in node.names] if node.module in _packages() else [node.module]
            yield from ((n or "", id(node) in top) for n in names)


def _packages() -> set[str]:
    return {"zellige"} | {f"zellige.{room}" for room in ROOMS}


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_file_imports_only_what_its_room_may(path: Path) -> None:
    place = path.relative_to(ROOT).as_posix()
    allowed = MAY[place.split("/")[0]] + tuple(
        p for where, extra in MORE.items() if place.startswith(where) for p in extra
    )
    for module, top in imports(path):
        if module.startswith("zellige."):
            ours = module.removeprefix("zellige.")
            assert any(ours == a or ours.startswith(a + ".") for a in allowed), f"{place} may not import {module}"
        library = module.split(".")[0]
        if library in ONLY_IN:
            assert any(place.startswith(where) for where in ONLY_IN[library]), f"{place} may not import {library}"
        if place.startswith(NO_TORCH) and top:
            assert library != "torch", f"{place} must be readable without torch"


def test_the_five_code_folders_have_no_init() -> None:
    """With one, kernels/ would hide another package of that name from whoever runs in this directory."""
    assert not [room for room in ROOMS if (ROOT / room / "__init__.py").exists()]


def test_engine_and_kernels_need_no_prefect_and_no_duckdb() -> None:
    reached = {m.split(".")[0] for p in files() if p.parts[-2] in {"engine", "kernels"} for m, _ in imports(p)}
    assert not reached & {"prefect", "duckdb", "pyarrow"}
