"""Which way up a page lies is told by its print, and only where that is clear."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from zellige.data.ink import ink_of
from zellige.data.samples import held_out_kit
from zellige.data.samples.documents import document_sheet
from zellige.data.samples.fonts import BUILT_IN, Face
from zellige.data.samples.glyphs import load_font
from zellige.data.samples.ink import Ink
from zellige.data.samples.light import photographed, print_in_colour
from zellige.data.turning import turned, ways_up

TURNS = (0, 90, 180, 270)
FONT = load_font(Face(BUILT_IN, "Aileron"), 16)
PROSE = "The night was dark and all the lights of the village had been put out by the wind"


def page(lines: Sequence[str], width: int = 620, step: int = 23) -> NDArray[np.uint8]:
    ink = Ink(width, 40 + step * len(lines))
    for i, line in enumerate(lines):
        ink.text(20, 20 + i * step + FONT.ascent, line, FONT, 255)
    return 255 - np.repeat(ink.pixels[..., None], 3, axis=2)


def prose(count: int) -> list[str]:
    words = PROSE.split()
    return [" ".join(words[(i * 5 + k) % len(words)] for k in range(12)) for i in range(count)]


def found(pixels: NDArray[np.uint8]) -> tuple[int, ...]:
    """The turns that may make a page upright."""
    return tuple(way.turn for way in ways_up(ink_of(pixels)))


@pytest.mark.parametrize("lying", TURNS)
@pytest.mark.parametrize("lines", [5, 12, 40])
def test_prose_is_turned_upright(lines: int, lying: int) -> None:
    pixels = page(prose(lines))
    mask = ink_of(pixels)
    (way,) = ways_up(turned(mask, lying))
    assert way.turn == -lying % 360
    assert np.array_equal(way.mask, mask)
    assert len(way.layout.lines) == lines


@pytest.mark.parametrize("lying", TURNS)
def test_two_columns_in_white_on_black_with_noise_are_turned_upright(lying: int) -> None:
    left, right = page(prose(14), 560), page(prose(14)[::-1], 560)
    pixels = 255 - np.concatenate((left, np.full((left.shape[0], 60, 3), 255, np.uint8), right), axis=1)
    noise = np.random.default_rng(0).normal(0, 8, pixels.shape)
    pixels = np.clip(pixels * 0.9 + 12 + noise, 0, 255).astype(np.uint8)
    assert found(turned(pixels, lying)) == (-lying % 360,)


def test_no_upright_document_is_turned_and_those_on_a_side_mostly_are() -> None:
    """Drawn forms, receipts and lists as they are photographed, many of them with figures and capitals mostly."""
    count, righted = 60 if os.environ.get("ZELLIGE_TEST_LONG") else 9, 0
    for i in range(count):
        kit, rng = held_out_kit(f"turning/{i}"), random.Random(i)
        sheet = document_sheet(kit, *((600, 800), (900, 700), (300, 700))[i % 3])
        pixels = photographed(print_in_colour(sheet.ink, rng), rng)
        assert found(pixels) == (0,), i
        lying = (90, 270)[i % 2]
        turns = found(turned(pixels, lying))
        assert turns in ((360 - lying,), (0, 90, 270), (0,)), i
        righted += turns == (360 - lying,)
    assert righted >= 0.7 * count


@pytest.mark.parametrize("line", ["4711 0815 2041 993 18.50 7000", "NO EXIT - DOOR CLOSED AT ALL TIMES"])
def test_figures_and_capitals_do_not_tell_which_edge_is_the_top(line: str) -> None:
    words = line.split()
    pixels = page([" ".join(words[i % 5 :] + words[: i % 5]) for i in range(8)])
    assert [found(turned(pixels, lying)) for lying in TURNS] == [(0,), (0, 90, 270), (0,), (0, 90, 270)]


@pytest.mark.parametrize("count", [6, 20, 60])
def test_figures_that_stand_below_each_other_are_no_vertical_lines(count: int) -> None:
    numbers = random.Random(0)
    pixels = page([" ".join(str(numbers.randint(10**5, 10**6 - 1)) for _ in range(5)) for _ in range(count)])
    assert found(pixels) == (0,)
    assert found(turned(pixels, 90)) == (0, 90, 270)


@pytest.mark.parametrize("lying", TURNS)
@pytest.mark.parametrize("count", [6, 70])
def test_letters_that_stand_below_each_other_are_no_vertical_lines(count: int, lying: int) -> None:
    """As in a typescript: here every line is the same."""
    pixels = page([prose(1)[0]] * count)
    assert found(turned(pixels, lying)) == (-lying % 360,)


def test_print_that_hangs_from_a_line_is_left_as_it_is() -> None:
    """As Devanagari does: a bar along the top of each word, strokes below it."""
    pixels = np.full((400, 600, 3), 255, np.uint8)
    for y in range(20, 380, 30):
        for x in range(20, 560, 70):
            pixels[y : y + 2, x : x + 60] = 0
            for stroke in range(x + 4, x + 56, 11):
                pixels[y : y + 14 + stroke % 3, stroke : stroke + 2] = 0
    assert found(pixels) == (0,)


@pytest.mark.parametrize("size", [(1, 1), (40, 30), (300, 900)])
def test_blank_pages_and_noise_are_left_as_they_are(size: tuple[int, int]) -> None:
    assert found(np.full((*size, 3), 240, np.uint8)) == (0,)
    assert found(np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)) == (0,)
