"""``zellige read``: pages come back as their text, in reading order, by the checkpoint that ships."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from typer.testing import CliRunner

from zellige.data.samples import held_out_kit
from zellige.data.samples.fonts import BUILT_IN, Face
from zellige.data.samples.glyphs import Font, load_font
from zellige.data.samples.ink import Ink
from zellige.engine.demo.suites import edits
from zellige.flows.cli import app

Rows = Callable[[Path, str], list[dict[str, Any]]]
FONT = load_font(Face(BUILT_IN, "Aileron"), 18)
STEP = 25


def prose(seed: str, count: int, width: int, font: Font = FONT) -> list[str]:
    """Lines of words, each nearly ``width`` pixels long."""
    kit, lines = held_out_kit(seed), []
    while len(lines) < count:
        line = kit.word()
        while font.width(f"{line} {(word := kit.word())}") <= width:
            line += f" {word}"
        lines.append(line)
    return lines


def page(size: tuple[int, int], *columns: tuple[int, int, Sequence[str]]) -> NDArray[np.uint8]:
    """A white page with columns of lines, each from (x, y) down."""
    ink = Ink(*size)
    for x, y, lines in columns:
        for i, line in enumerate(lines):
            ink.text(x, y + i * STEP + FONT.ascent, line, FONT, 255)
    return 255 - np.repeat(ink.pixels[..., None], 3, axis=2)


def read(tmp_path: Path, pages: dict[str, NDArray[np.uint8]], *options: str) -> dict[str, Any]:
    folder = tmp_path / "pages"
    folder.mkdir()
    for name, pixels in pages.items():
        Image.fromarray(pixels).save(folder / name)
    arguments = ["read", str(folder), "--store", str(tmp_path / "store"), "--no-prefect", "--json", "--quiet", *options]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    done: dict[str, Any] = json.loads(result.stdout)
    return done


def test_pages_are_read_in_order(tmp_path: Path, rows: Rows) -> None:
    """Two columns under a title, a page of more than two screens, a line, and nothing at all."""
    left, right, long = prose("left", 11, 300), prose("right", 11, 300), prose("long", 38, 400)
    two = page((760, 400), (60, 20, ["Notes of the river guild"]), (40, 80, left), (400, 86, right))
    two[66:390, 368:370] = 90  # a rule between the columns
    wanted = {
        "blank.png": "",
        "line.png": "Invoice Number: 4711",
        "long.png": "\n".join(long),
        "two.png": "\n".join(("Notes of the river guild", *left, *right)),
    }
    pages = {
        "two.png": two,
        "long.png": 255 - page((460, 1000), (20, 20, long)),
        "line.png": page((260, 40), (10, 8, [wanted["line.png"]])),
        "blank.png": np.full((600, 800, 3), 250, np.uint8),
    }
    done = read(tmp_path, pages)
    assert (done["flow"], done["ok"], done["failed"]) == ("read", 4, 0)
    found = {row["uri"].rsplit("/", 1)[1]: row for row in rows(tmp_path / "store", done["run_id"])}
    assert {row["task"] for row in found.values()} == {row["question_id"] for row in found.values()} == {"read"}
    for name, text in wanted.items():
        answer = found[name]["answer"]
        assert edits(answer, text) <= 0.05 * len(text), f"{name}:\n{answer}\nwanted:\n{text}"
    assert [len(found[name]["tiles"]) for name in wanted] == [0, 0, 38, 23]
    assert " ".join(tile["answer"] for tile in found["long.png"]["tiles"]) == found["long.png"]["answer"].replace(
        "\n", " "
    )


def test_prompt_is_said_for_every_piece_and_pieces_are_counted_as_views(fake: Any, tmp_path: Path, rows: Rows) -> None:
    pixels = page((200, 300), (10, 10, ["one two", "three four"]), (10, 160, ["five", "six", "seven"]))
    done = read(tmp_path, {"a.png": pixels}, "--prompt", "Copy it.")
    (row,) = rows(tmp_path / "store", done["run_id"])
    assert set(fake.opened[0].asked) == {"Copy it."}
    assert len(row["tiles"]) == len(fake.opened[0].asked) == done["throughput"]["tiles"]
    assert row["answer"].split("\n") == [tile["answer"] for tile in row["tiles"]]


@pytest.mark.parametrize("option", ["--raw", "--tile=off"])
def test_whole_page_is_one_request_where_that_is_asked_for(fake: Any, tmp_path: Path, rows: Rows, option: str) -> None:
    done = read(tmp_path, {"a.png": page((500, 300), (10, 10, prose("whole", 9, 300)))}, option)
    (row,) = rows(tmp_path / "store", done["run_id"])
    assert (fake.opened[0].asked, row["tiles"]) == (["Read the text."], [])


def test_empty_answer_is_a_page_without_print(fake: Any, tmp_path: Path, rows: Rows) -> None:
    pixels = np.full((48, 64, 3), 250, np.uint8)
    pixels[0, 0] = fake.module.EMPTY
    done = read(tmp_path, {"a.png": pixels})
    (row,) = rows(tmp_path / "store", done["run_id"])
    assert (row["status"], row["answer"], row["error_kind"]) == ("ok", "", None)


def test_dry_run_writes_nothing(fake: Any, tmp_path: Path) -> None:
    done = read(tmp_path, {"a.png": page((200, 100), (10, 10, ["one"]))}, "--dry-run")
    assert (done["flow"], done["items"], done["answered"]) == ("read", 1, len(fake.opened[0].asked))
    assert not (tmp_path / "store").exists()
