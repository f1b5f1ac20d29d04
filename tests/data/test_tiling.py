"""Tiles cover the image, stay inside it and within what the model sees."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zellige.data.tiling import AUTO_FACTOR, OVERLAP_ACROSS, OVERLAP_DOWN, Tile, cut, plan_tiles
from zellige.engine.api import VisionBudget

SHIPPED = VisionBudget(patch=16, merge=2, min_pixels=32 * 32 * 4, max_pixels=448 * 448)
budgets = st.builds(
    lambda patch, merge, cells: VisionBudget(patch, merge, (patch * merge) ** 2, (patch * merge) ** 2 * cells),
    st.sampled_from([14, 16]),
    st.sampled_from([1, 2, 3]),
    st.integers(4, 600),
)


def covered(length: int, spans: list[tuple[int, int]]) -> bool:
    reached = 0
    for begin, size in sorted(spans):
        if begin > reached:
            return False
        reached = max(reached, begin + size)
    return reached == length


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 3000), st.integers(1, 3000), budgets, st.one_of(st.just("auto"), st.integers(48, 1500)))
def test_tiles_cover_every_pixel_leave_nothing_and_fit_the_model(width, height, budget, mode):
    try:
        budget.resized(width, height)
    except ValueError:
        with pytest.raises(ValueError, match="times the shorter"):
            plan_tiles(width, height, budget, mode)
        return
    tiles = plan_tiles(width, height, budget, mode)
    if not tiles:
        assert mode != "auto" or width * height <= AUTO_FACTOR * budget.max_pixels
        return
    overview, *rest = tiles
    assert overview == Tile(0, 0, width, height, overview.scale, overview=True)
    assert not any(t.overview for t in rest)
    assert covered(width, [(t.x, t.width) for t in rest])
    assert covered(height, [(t.y, t.height) for t in rest])
    # Rows and columns are independent: all pairs are there, so covered sides mean a covered image.
    assert {(t.x, t.y) for t in rest} == {(a.x, b.y) for a in rest for b in rest} if len(rest) < 200 else True
    for tile in rest:
        assert tile.x >= 0
        assert tile.y >= 0
        assert tile.x + tile.width <= width
        assert tile.y + tile.height <= height
        assert tile.width % budget.cell == 0 or tile.width == width
        assert tile.height % budget.cell == 0 or tile.height == height
        seen_width, seen_height = budget.resized(tile.width, tile.height)
        # The model's own rule may pass its limit where a side is a single cell, which cannot shrink.
        assert seen_width * seen_height <= budget.max_pixels or budget.cell in (seen_width, seen_height)
        if mode == "auto":
            assert tile.width * tile.height <= budget.max_pixels


@settings(deadline=None)
@given(st.integers(449, 4000), st.integers(449, 4000), st.integers(0, 10**6), st.integers(0, 10**6))
def test_what_is_smaller_than_the_overlap_is_whole_in_a_tile(width, height, x, y):
    tiles = plan_tiles(width, height, SHIPPED)[1:]
    side = 32  # of an element somewhere in the image; the least overlap is an eighth of 320 or more
    x, y = x % (width - side), y % (height - side)
    inside = [t for t in tiles if t.x <= x and t.y <= y and x + side <= t.x + t.width and y + side <= t.y + t.height]
    assert inside or not tiles


@pytest.mark.parametrize(
    ("size", "grid", "tile"),
    [
        ((2400, 1600), (6, 6), (576, 320)),
        ((3000, 2000), (7, 7), (608, 320)),
        ((1554, 1078), (4, 4), (544, 320)),
        ((3000, 300), (7, 1), (608, 300)),
        ((300, 3000), (1, 6), (300, 576)),
    ],
)
def test_posters_and_scenes_are_tiled_at_full_scale(size, grid, tile):
    tiles = plan_tiles(*size, SHIPPED)[1:]
    assert (len({t.x for t in tiles}), len({t.y for t in tiles})) == grid
    assert {(t.width, t.height) for t in tiles} == {tile}
    assert all(t.scale == pytest.approx(1.0, abs=0.05) for t in tiles)
    columns = sorted({t.x for t in tiles})
    overlaps = [(a + tile[0] - b) / tile[0] for a, b in itertools.pairwise(columns)]
    assert all(0.33 <= overlap <= 0.43 for overlap in overlaps)


def test_small_and_extreme_shapes():
    assert plan_tiles(1, 1, SHIPPED) == ()
    assert plan_tiles(31, 639, SHIPPED) == ()
    assert plan_tiles(633, 634, SHIPPED) == ()  # just under twice the model's most pixels
    assert len(plan_tiles(634, 634, SHIPPED)) == 7
    for mode in ("auto", "off", 64):
        with pytest.raises(ValueError, match="200 times"):
            plan_tiles(1, 5000, SHIPPED, mode)


#: 1,024 tokens at most, patches of 14 pixels merged 3 x 3: a cell of 42.
CAPPED = VisionBudget(patch=14, merge=3, min_pixels=4 * 42 * 42, max_pixels=1024 * 42 * 42)


@settings(deadline=None)
@given(st.integers(1, 12_000), st.integers(1, 12_000), st.sampled_from([SHIPPED, CAPPED]))
def test_tiles_overlap_by_the_rule_and_cost_no_more_tokens_than_the_cap(width, height, budget):
    try:
        tiles = plan_tiles(width, height, budget)[1:]
    except ValueError:
        return
    for tile in tiles:
        seen = budget.resized(tile.width, tile.height)
        assert seen[0] * seen[1] <= budget.max_pixels or budget.cell in seen
    sides = (({(t.x, t.width) for t in tiles}, OVERLAP_ACROSS), ({(t.y, t.height) for t in tiles}, OVERLAP_DOWN))
    for spans, part in sides:
        for (begin, length), (following, _) in itertools.pairwise(sorted(spans)):
            assert begin + length - following >= length // part


def test_tiles_of_a_model_with_cells_of_42_pixels():
    assert plan_tiles(1344, 2688, CAPPED) == ()
    tiles = plan_tiles(3000, 2000, CAPPED)[1:]
    assert {(t.width, t.height) for t in tiles} == {(1848, 756)}
    assert all(CAPPED.tokens(t.width, t.height) <= 1024 and t.scale == 1.0 for t in tiles)


def test_off_never_tiles_and_a_number_is_the_side():
    assert plan_tiles(2400, 1600, SHIPPED, "off") == ()
    assert plan_tiles(200, 200, SHIPPED, 256) == ()
    assert {(t.width, t.height) for t in plan_tiles(512, 512, SHIPPED, 300)[1:]} == {(256, 288)}
    shrunk = plan_tiles(2400, 1600, SHIPPED, 896)[1:]
    assert all(t.scale == pytest.approx(448 / t.width, rel=0.1) for t in shrunk)
    with pytest.raises(ValueError, match="32 or more"):
        plan_tiles(2400, 1600, SHIPPED, 31)


def test_cut_takes_the_box_and_an_overview_is_the_image():
    pixels = np.arange(6 * 8 * 3, dtype=np.uint8).reshape(6, 8, 3)
    piece = cut(pixels, Tile(2, 1, 4, 3, 1.0))
    assert np.array_equal(piece, pixels[1:4, 2:6])
    assert piece.flags.c_contiguous
    assert piece.base is None
    assert cut(pixels, Tile(0, 0, 8, 6, 0.5, overview=True)) is pixels
