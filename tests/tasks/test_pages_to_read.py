"""Pages as scanners give them, read by the checkpoint that ships: on a side, on their head, too large for memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pytest
from numpy.typing import NDArray
from PIL import Image

from zellige.data import decode_worker
from zellige.data.samples import held_out_kit
from zellige.data.samples.fonts import BUILT_IN, Face
from zellige.data.samples.glyphs import load_font
from zellige.data.samples.ink import Ink
from zellige.data.turning import turned
from zellige.engine.demo.suites import edits
from zellige.flows.pipeline import run_job
from zellige.tasks.job import Job

Pixels = NDArray[np.uint8]
FONT = load_font(Face(BUILT_IN, "Aileron"), 18)
STEP = 25
LONG = os.environ.get("ZELLIGE_TEST_LONG") == "1"


def prose(seed: str, count: int, width: int) -> list[str]:
    """Lines of words, each nearly ``width`` pixels long."""
    kit = held_out_kit(seed)
    lines: list[str] = []
    while len(lines) < count:
        line = kit.word()
        while FONT.width(f"{line} {(word := kit.word())}") <= width:
            line += f" {word}"
        lines.append(line)
    return lines


def figures(seed: str, count: int) -> list[str]:
    """Lines that do not tell which way up they are."""
    kit = held_out_kit(seed)
    return [" ".join(str(kit.rng.randint(10, 10**6)) for _ in range(4 + i % 3)) for i in range(count)]


def page(size: tuple[int, int], *columns: tuple[int, int, list[str]]) -> Pixels:
    """A white page with columns of lines, each from (x, y) down."""
    ink = Ink(*size)
    for x, y, lines in columns:
        for i, line in enumerate(lines):
            ink.text(x, y + i * STEP + FONT.ascent, line, FONT, 255)
    return 255 - np.repeat(ink.pixels[..., None], 3, axis=2)


def read(folder: Path, pages: dict[str, Pixels]) -> dict[str, Any]:
    """The row of each page."""
    (images := folder / "pages").mkdir()
    for name, pixels in pages.items():
        Image.fromarray(pixels).save(images / f"{name}.png", compress_level=1)
    run = run_job(Job(task="read", store=str(folder / "store"), inputs=(str(images),), workers=1))
    parts = folder / "store" / "runs" / run["run_id"] / "parts"
    rows = ds.dataset(parts, format="parquet").to_table().to_pylist()
    return {Path(row["uri"]).stem: row for row in rows}


def error_rate(row: Any, lines: list[str]) -> float:
    """Characters read wrong, of those on the page."""
    wanted = "\n".join(lines)
    return edits(row["answer"], wanted) / len(wanted)


def covers(row: Any, pixels: Pixels) -> bool:
    """Whether the row's tiles hold all the ink of the page as it was given."""
    seen = np.zeros(pixels.shape[:2], np.bool_)
    for tile in row["tiles"]:
        assert 0 <= tile["x"] <= tile["x"] + tile["width"] <= pixels.shape[1]
        assert 0 <= tile["y"] <= tile["y"] + tile["height"] <= pixels.shape[0]
        seen[tile["y"] : tile["y"] + tile["height"], tile["x"] : tile["x"] + tile["width"]] = True
    return bool(seen[pixels[..., 0] < 100].all())


def test_pages_that_were_turned_are_read_as_those_that_were_not(tmp_path: Path) -> None:
    """Two dense columns under a title, each way up; its rows say how they were read and where each line is."""
    rows = 24 if LONG else 7
    left, right = prose("left", rows, 300), prose("right", rows, 300)
    title = ["Notes of the river guild"]
    upright = page((760, 110 + STEP * rows), (60, 20, title), (40, 80, left), (400, 86, right))
    pages = {str(lying): turned(upright, lying) for lying in (0, 90, 180, 270)}
    found = read(tmp_path, pages)
    for name, row in found.items():
        lying = int(name)
        assert error_rate(row, [*title, *left, *right]) <= 0.03, f"{name}:\n{row['answer']}"
        assert row["error"] == (f"the page was read turned by {360 - lying} degrees clockwise" if lying else None)
        assert len(row["tiles"]) == 1 + 2 * rows
        assert covers(row, pages[name])


def test_a_page_of_figures_on_its_side_is_read_the_way_that_the_model_is_surest_of(tmp_path: Path) -> None:
    lines = figures("figures", 4)
    upright = page((440, 40 + STEP * 4), (20, 20, lines))
    found = read(tmp_path, {str(lying): turned(upright, lying) for lying in (0, 270)})
    for name, row in found.items():
        assert error_rate(row, lines) <= 0.03, f"{name}:\n{row['answer']}"
        assert len(row["tiles"]) == 4
    assert found["270"]["error"] == "the page was read turned by 90 degrees clockwise"
    # All three readings were paid for.
    assert found["270"]["image_tokens"] > 2 * found["0"]["image_tokens"]


@pytest.mark.long
def test_a_page_too_large_to_be_whole_in_memory_is_read_by_strips(tmp_path: Path) -> None:
    """Two columns on a sheet on its side, with a title far above them and another line far below."""
    left, right, across = prose("left", 6, 300), prose("right", 6, 300), prose("across", 2, 300)
    width, height = 8300, 8000
    assert width * height > decode_worker.WHOLE.max_pixels
    upright = page(
        (width, height), (2200, 40, across[:1]), (2000, 3000, left), (2400, 3006, right), (2200, 7900, across[1:])
    )
    pages = {"large": turned(upright, 90)}
    (row,) = read(tmp_path, pages).values()
    assert (row["width"], row["height"], row["status"]) == (height, width, "ok")
    assert error_rate(row, [across[0], *left, *right, across[1]]) <= 0.03, row["answer"]
    assert covers(row, pages["large"])
