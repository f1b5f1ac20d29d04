"""What counts as ink: letters on any ground, and no rules, frames or specks, whole or in bands."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from zellige.data import ink
from zellige.data.ink import band_rows, ink_of, ink_of_bands
from zellige.data.samples.fonts import BUILT_IN, Face
from zellige.data.samples.glyphs import load_font
from zellige.data.samples.ink import Ink

FONT = load_font(Face(BUILT_IN, "Aileron"), 20)


def letters(width: int, height: int) -> NDArray[np.uint8]:
    """Black lines of text on white, (H, W)."""
    sheet = Ink(width, height)
    for y in range(20, height - 40, 34):
        sheet.text(24, y + FONT.ascent, f"the {y} lights of the village", FONT, 255)
    return 255 - sheet.pixels


def rgb(grey: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.repeat(grey[..., None], 3, axis=2)


def in_bands(pixels: NDArray[np.uint8], shrink: int = 1) -> NDArray[np.bool_]:
    height, width = pixels.shape[:2]
    rows = band_rows(width, shrink)
    return ink_of_bands((pixels[y : y + rows] for y in range(0, height, rows)), height, width, shrink)


def test_rules_frames_and_specks_leave_the_letters_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they cross the edges of bands, here every 64 rows."""
    plain = letters(500, 700)
    wanted = ink_of(rgb(plain))
    assert wanted.any()
    marked = plain.copy()
    marked[:, 380:383] = 0
    marked[60:68, 390:] = 0
    marked[664:666, 10:370] = 0
    marked[1:3, :], marked[:, 1:3] = 0, 0
    marked[300, 450] = 0
    assert np.array_equal(ink_of(rgb(marked)), wanted)
    monkeypatch.setattr(ink, "_BAND_PIXELS", 64 * 500)
    assert band_rows(500) == 64
    assert np.array_equal(in_bands(rgb(marked)), wanted)


@pytest.mark.parametrize("shrink", [2, 3, 8])
@pytest.mark.parametrize("size", [(500, 700), (331, 257)])
def test_a_cell_bears_ink_where_one_of_its_pixels_does(size: tuple[int, int], shrink: int) -> None:
    pixels = rgb(letters(*size))
    whole = ink_of(pixels)
    found = in_bands(pixels, shrink)
    assert found.shape == (-(-size[1] // shrink), -(-size[0] // shrink))
    for y, x in np.ndindex(found.shape):
        assert found[y, x] == whole[y * shrink : (y + 1) * shrink, x * shrink : (x + 1) * shrink].any()


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("least", [1, 2, 7, 96, 97])
def test_long_runs_are_those_of_counting(least: int, axis: int) -> None:
    for seed, share in enumerate((0.5, 0.9, 0.99, 1.0)):
        mask = np.random.default_rng(seed).random((110, 130)) < share
        wanted = np.zeros_like(mask)
        for i in range(mask.shape[1 - axis]):
            line = mask[:, i] if axis == 0 else mask[i]
            for start, end in ink.runs(line):
                if end - start >= least:
                    (wanted[:, i] if axis == 0 else wanted[i])[start:end] = True
        assert np.array_equal(ink._long_runs(mask, least, axis), wanted)


def test_the_widest_images_have_bands_of_at_least_one_block() -> None:
    assert band_rows(800) == 1024
    assert band_rows(30_000, 4) == 512
    assert band_rows(40_000_000) == 32
