"""Where pages are cut to be read: in reading order, through no line, whatever the ground and the frames."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from zellige.data import reading
from zellige.data.ink import ink_of
from zellige.data.reading import cut_piece
from zellige.data.samples.fonts import BUILT_IN, Face
from zellige.data.samples.glyphs import load_font
from zellige.data.samples.ink import Box, Ink
from zellige.data.samples.light import tilted
from zellige.data.tiling import Tile
from zellige.engine.api import VisionBudget

SHIPPED = VisionBudget(patch=16, merge=2, min_pixels=32 * 32 * 4, max_pixels=448 * 448)
LARGE = VisionBudget(patch=16, merge=2, min_pixels=256 * 256, max_pixels=2048 * 2048)
FONT = load_font(Face(BUILT_IN, "Aileron"), 16)
PROSE = "It rained all night and the river rose over the road"
STEP = 22


def plan_pieces(pixels: NDArray[np.uint8], budget: VisionBudget, **rule: int) -> tuple[Tile, ...]:
    """The pieces of a page; () where it is seen whole."""
    tiles = reading.plan_pieces(reading.Page(pixels.shape[1], pixels.shape[0], ink_of(pixels)), budget, **rule)
    return () if tiles[0].overview else tiles


class Page:
    """Ink on a page, and the box of each line in the order in which it is to be read."""

    def __init__(self, width: int, height: int) -> None:
        self.ink = Ink(width, height)
        self.boxes: list[Box] = []

    def column(self, x: int, y: int, lines: Sequence[str], step: int = STEP) -> None:
        for i, line in enumerate(lines):
            self.boxes.append(self.ink.text(x, y + i * step + FONT.ascent, line, FONT, 255))

    @property
    def pixels(self) -> NDArray[np.uint8]:
        return 255 - np.repeat(self.ink.pixels[..., None], 3, axis=2)

    def owners(self, tiles: Sequence[Tile]) -> list[int]:
        """The line that each piece shows: the one whose middle is in it."""
        return [
            next(
                i
                for i, box in enumerate(self.boxes)
                if tile.y <= (box.top + box.bottom) / 2 < tile.y + tile.height
                and max(tile.x, box.left) < min(tile.x + tile.width, box.right)
            )
            for tile in tiles
        ]


def prose(count: int, seed: int = 0) -> list[str]:
    """Lines of about one length, none like the next."""
    words = PROSE.split()
    return [" ".join(words[(i + seed + k) % len(words)] for k in range(9)) for i in range(count)]


def two_columns(ragged: int = 0) -> Page:
    """A title across, then two columns of 12 lines; the right one ``ragged`` pixels lower."""
    page = Page(1000, 420)
    page.column(200, 20, [f"{PROSE} by morning"])
    page.column(40, 80, prose(12))
    page.column(520, 80 + ragged, prose(12, 3))
    return page


@pytest.mark.parametrize("ragged", [0, 9])
def test_lines_of_two_columns_come_in_order_each_in_a_piece_of_its_own(ragged: int) -> None:
    page = two_columns(ragged)
    assert page.owners(plan_pieces(page.pixels, SHIPPED, lines=1)) == list(range(25))


def test_dark_ground_frames_and_rules_do_not_matter() -> None:
    page = two_columns()
    wanted = plan_pieces(page.pixels, SHIPPED, lines=1)
    assert plan_pieces(255 - page.pixels, SHIPPED, lines=1) == wanted
    page.ink.frame(255)
    page.ink.pixels[70:410, 500:502] = 255
    page.ink.rule(10, 66, 990, 255, 2)
    assert plan_pieces(page.pixels, SHIPPED, lines=1) == wanted


def test_noise_and_uneven_light_do_not_matter() -> None:
    page = two_columns()
    noise = np.random.default_rng(0).normal(0, 8, page.pixels.shape)
    light = np.linspace(0.75, 1, page.pixels.shape[1])[None, :, None]
    pixels = np.clip(page.pixels * 0.9 * light + noise, 0, 255).astype(np.uint8)
    assert page.owners(plan_pieces(pixels, SHIPPED, lines=1)) == list(range(25))


def test_a_form_is_read_across() -> None:
    page = Page(900, 300)
    rows = [
        ("Name", "Olga Rivers"),
        ("Town", "Nantes"),
        ("Telephone number", "02 40 11"),
        ("Total", "7.10"),
        ("Day", "4"),
    ]
    for i, (label, value) in enumerate(rows):
        page.column(40, 30 + i * 40, [label])
        page.column(500, 30 + i * 40, [value])
    tiles = plan_pieces(page.pixels, SHIPPED, lines=1)
    assert page.owners(tiles) == list(range(10))
    assert all((a.y, a.height) == (b.y, b.height) for a, b in zip(tiles[::2], tiles[1::2], strict=True))


def test_a_large_model_gets_as_many_lines_as_it_sees() -> None:
    page = Page(900, 2 * 2300)
    page.column(40, 30, prose(200))
    assert plan_pieces(page.pixels[:1000], LARGE) == ()
    tiles = plan_pieces(page.pixels, LARGE)
    assert 2 <= len(tiles) <= 3
    assert all(tile.scale == pytest.approx(1, abs=0.02) for tile in tiles)
    inside = [sum(t.y <= b.top + 4 and b.bottom - 4 <= t.y + t.height for t in tiles) for b in page.boxes]
    assert inside == [1] * 200


def test_a_wide_line_is_cut_between_words_and_its_parts_share_top_and_bottom() -> None:
    page = Page(1500, 60)
    page.column(20, 20, [" ".join([PROSE] * 3)])
    tiles = plan_pieces(page.pixels, SHIPPED, lines=1)
    assert len(tiles) == 3
    assert len({(t.y, t.height) for t in tiles}) == 1
    columns = np.flatnonzero(ink_of(page.pixels).any(0))
    for left, right in itertools.pairwise(tiles):
        middle = (left.x + left.width + right.x) // 2
        assert not np.isin(np.arange(middle - 1, middle + 2), columns).any()


def test_where_there_is_no_gap_as_on_a_page_that_was_turned_tiles_overlap() -> None:
    page = Page(1000, 800)
    page.column(60, 60, [" ".join([line, line, line])[:110] for line in prose(30)])
    pixels = 255 - np.repeat(tilted(page.ink.pixels, 6)[..., None], 3, axis=2)
    tiles = plan_pieces(pixels, SHIPPED, lines=1)
    assert len(tiles) > 3
    assert all(t.width * t.height <= 448 * 448 for t in tiles)
    seen = np.zeros(pixels.shape[:2], np.int64)
    for t in tiles:
        seen[t.y : t.y + t.height, t.x : t.x + t.width] += 1
    assert seen[ink_of(pixels)].min() == 1
    assert (seen >= 2).mean() > 0.1


@pytest.mark.parametrize("size", [(1, 1), (40, 30), (3000, 200)])
def test_blank_pages_are_seen_whole(size: tuple[int, int]) -> None:
    assert plan_pieces(np.full((size[1], size[0], 3), 240, np.uint8), SHIPPED, lines=1) == ()


def test_a_line_that_fits_is_seen_whole_and_a_shape_that_none_can_see_is_an_error() -> None:
    page = Page(420, 40)
    page.column(10, 8, [PROSE])
    assert plan_pieces(page.pixels, SHIPPED, lines=1) == ()
    with pytest.raises(ValueError, match="200 times"):
        plan_pieces(np.zeros((2, 5000, 3), np.uint8), SHIPPED)


def test_a_piece_lies_on_whole_cells_of_its_own_ground() -> None:
    page = two_columns()
    pixels = np.where(page.pixels < 128, page.pixels, np.uint8(201))
    tile = plan_pieces(pixels, SHIPPED, lines=1)[3]
    piece = cut_piece(pixels, tile, SHIPPED)
    height, width = piece.shape[:2]
    assert (height % 32, width % 32) == (0, 0)
    assert tile.scale == 1
    assert (piece[0] == 201).all()
    assert (piece[:, -1] == 201).all()
    assert (piece < 128).sum() == (pixels[tile.y : tile.y + tile.height, tile.x : tile.x + tile.width] < 128).sum()


def test_a_number_of_pixels_is_the_side_of_the_largest_piece() -> None:
    page = Page(400, 460)
    page.column(10, 10, prose(20))
    pieces = plan_pieces(page.pixels, LARGE, side=320)
    assert len(pieces) > 1
    assert all(t.width * t.height <= 320 * 320 for t in pieces)
