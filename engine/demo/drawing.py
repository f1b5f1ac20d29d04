"""Draws training rows: an image of one grid, its marks, and its packed questions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tokenizers import Tokenizer

from zellige.data.samples.documents import blank_sheet, document_sheet, tiny_print_sheet, window_sheet
from zellige.data.samples.ink import MAX_MARKS
from zellige.data.samples.kit import Kit
from zellige.data.samples.lines import draw_text
from zellige.data.samples.posters import poster_sheet, poster_window_sheet
from zellige.data.samples.questions import CAPTION, EMPTY, NO_TEXT, READ, Question, ask
from zellige.data.samples.scene_drawing import draw_scene, draw_scene_window, first_caption
from zellige.data.samples.sheet import Sheet
from zellige.engine.demo.grids import Grid, Kind, native_size
from zellige.engine.demo.packing import SLOTS, pack

#: Share of images that are drawn at another size and resized to the grid, as the image processor does.
_RESIZED = 0.4


@dataclass(frozen=True, eq=False)
class Rows:
    """Room for drawn rows of one kind and grid; scenes have neither marks nor sheet facts."""

    images: NDArray[np.uint8]  # (rows, height, width) ink, or (rows, height, width, 3)
    ids: NDArray[np.int16]  # (rows, slot tokens)
    answers: NDArray[np.uint8]  # (rows, slot tokens), 1 in answers
    marks: NDArray[np.float32]  # (rows, MAX_MARKS, 3), or (rows, 0, 3)
    sheets: NDArray[np.float32]  # (rows, 3): smallest and largest type in pixels, 1 where whole

    def arrays(self) -> tuple[NDArray[np.generic], ...]:
        return (self.images, self.ids, self.answers, self.marks, self.sheets)

    @staticmethod
    def shapes(kind: Kind, grid: Grid, rows: int) -> tuple[tuple[tuple[int, ...], type[np.generic]], ...]:
        """Shape and type of each array, for ``rows`` rows."""
        tokens = sum(SLOTS[kind])
        image = (rows, grid.height, grid.width, 3) if kind == "scene" else (rows, grid.height, grid.width)
        marks = 0 if kind == "scene" else MAX_MARKS
        return (
            (image, np.uint8),
            ((rows, tokens), np.int16),
            ((rows, tokens), np.uint8),
            ((rows, marks, 3), np.float32),
            ((rows, 3), np.float32),
        )


def draw_row(kind: Kind, grid: Grid, kit: Kit, tokenizer: Tokenizer, rows: Rows, index: int) -> None:
    """Draw one image and write it to ``rows`` at ``index``."""
    rows.ids[index], rows.answers[index] = 0, 0
    size = native_size(grid, kit.rng) if kit.chance(_RESIZED) else (grid.width, grid.height)
    if kind == "scene":
        questions = _scene(kit, grid, size, rows, index)
    else:
        questions = _printed(kind, kit, grid, size, rows, index)
    pack(tokenizer, kind, questions, rows.ids[index], rows.answers[index])


def _resized(pixels: NDArray[np.uint8], grid: Grid) -> NDArray[np.uint8]:
    if pixels.shape[:2] == (grid.height, grid.width):
        return pixels
    image = Image.fromarray(pixels).resize((grid.width, grid.height), Image.Resampling.BICUBIC)
    return np.asarray(image)


def _scene(kit: Kit, grid: Grid, size: tuple[int, int], rows: Rows, index: int) -> list[Question | None]:
    shrink = max(size[0] / grid.width, size[1] / grid.height)
    asked = len(SLOTS["scene"]) - 1
    if kit.chance(0.15 * kit.difficulty):
        scene = draw_scene_window(kit, *size, questions=asked)
    else:
        scene = draw_scene(kit, *size, scale=shrink, questions=asked)
    rows.images[index] = _resized(scene.pixels, grid)
    return [first_caption(kit, scene), *scene.questions]


def _printed(kind: Kind, kit: Kit, grid: Grid, size: tuple[int, int], rows: Rows, index: int) -> list[Question | None]:
    shrink = max(1.0, size[0] / grid.width, size[1] / grid.height)
    sheet = _sheet(kind, kit, size, shrink)
    rows.images[index] = _resized(sheet.ink, grid)
    marks = sheet.marks * np.array([grid.width / size[0], grid.height / size[1], 1], np.float32)
    rows.marks[index] = 0
    rows.marks[index, : len(marks)] = marks
    rows.sheets[index] = (sheet.type_px[0] / shrink, sheet.type_px[1] / shrink, float(sheet.whole))
    slots = len(SLOTS[kind])
    about = ask(kit, CAPTION, sheet.caption if sheet.ink.any() else EMPTY)
    if kind != "document":
        # The first question of a line or paragraph reads it.
        return list(sheet.questions) if len(sheet.questions) >= slots or kit.chance(0.7) else [*sheet.questions, about]
    text = sheet.text if sheet.ink.any() else NO_TEXT
    rest = list(sheet.questions[: slots - 1])
    if kit.chance(0.14):
        rest = [*rest[: slots - 2], about]
    return [ask(kit, READ, text) if text else None, *rest]


def _sheet(kind: Kind, kit: Kit, size: tuple[int, int], shrink: float) -> Sheet:
    def type_px(least: float, most: float) -> tuple[int, int]:
        return round(least * shrink), round(most * shrink)

    if kind == "line":
        return draw_text(kit, *size, text_px=type_px(10, 38))
    if kind == "paragraph":
        return draw_text(kit, *size, lines=kit.rng.randint(2, 8), text_px=type_px(10, 26))
    chance = kit.rng.random() / max(0.1, kit.difficulty)
    if chance < 0.09:
        return window_sheet(kit, *size, text_px=type_px(11, 32))
    if chance < 0.21:
        return poster_sheet(kit, *size, text_px=type_px(11, 44))
    if chance < 0.28:
        return poster_window_sheet(kit, *size, text_px=type_px(12, 52))
    if chance < 0.30:
        return blank_sheet(kit, *size)
    if chance < 0.315:
        return tiny_print_sheet(kit, *size, scale=shrink)
    return document_sheet(kit, *size, text_px=type_px(10, 24))
