"""Pages that do not lie upright are shown once more, turned; all other images are shown as ever."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from zellige.data import views
from zellige.data.samples import draw_document, draw_scene, held_out_kit
from zellige.data.samples.fonts import package_faces
from zellige.data.turning import turned
from zellige.data.views import View, ViewRule, halved, views_of
from zellige.engine.api import VisionBudget

SMALL, LARGE = (VisionBudget(16, 2, 32 * 32, side * side) for side in (160, 640))


def page(width: int = 600, height: int = 520) -> NDArray[np.uint8]:
    kit = replace(held_out_kit("lying/7"), faces=package_faces())
    return draw_document(kit, width, height, kind="invoice", text_px=(14, 18)).pixels


def shown(pixels: NDArray[np.uint8], budget: VisionBudget, turn_pages: bool = True) -> list[View]:
    return list(views_of(pixels, ViewRule("ask", "auto", budget, turn_pages=turn_pages)))


@pytest.mark.parametrize("budget", [SMALL, LARGE])
@pytest.mark.parametrize("lying", [90, 180, 270])
def test_lying_page_is_shown_as_it_came_and_then_as_it_is_read(lying: int, budget: VisionBudget) -> None:
    upright, came = page(), turned(page(), lying)
    found, as_it_came, as_read = shown(came, budget), shown(came, budget, False), shown(upright, budget, False)
    assert [view.index for view in found] == list(range(len(as_it_came) + len(as_read)))
    for view, wanted in zip(found, as_it_came + as_read, strict=True):
        assert np.array_equal(view.pixels, wanted.pixels)
    assert [view.tile for view in found[: len(as_it_came)]] == [view.tile for view in as_it_came]
    for view, wanted in zip(found[len(as_it_came) :], as_read, strict=True):
        tile, right = view.tile, wanted.tile
        assert (tile.turn, tile.overview, tile.scale) == (360 - lying, right.overview, right.scale)
        box = turned(came[tile.y : tile.y + tile.height, tile.x : tile.x + tile.width], tile.turn)
        assert np.array_equal(box, upright[right.y : right.y + right.height, right.x : right.x + right.width])


def test_large_lying_page_is_told_by_a_smaller_picture_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    came = turned(np.kron(page(), np.ones((2, 2, 1), np.uint8)), 90)
    monkeypatch.setattr(views, "LOOKED_AT_PIXELS", came.shape[0] * came.shape[1] // 3)
    assert {view.tile.turn for view in shown(came, LARGE)} == {0, 270}


def test_upright_pages_and_scenes_are_shown_once() -> None:
    scenes = [draw_scene(replace(held_out_kit(f"views/{n}"), faces=package_faces()), 384, 320).pixels for n in range(6)]
    for pixels in (page(), *scenes):
        assert {view.tile.turn for view in shown(pixels, SMALL)} == {0}


@pytest.mark.parametrize(("size", "half"), [((400, 200), (283, 141)), ((1, 1), (1, 1)), ((1, 64), (1, 45))])
def test_half_the_pixels_keep_their_shape(size: tuple[int, int], half: tuple[int, int]) -> None:
    assert halved(np.zeros((size[1], size[0], 3), np.uint8)).shape == (half[1], half[0], 3)
