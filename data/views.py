"""What the model is shown of an image: one view of the whole, or an overview and then tiles of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from zellige.data.ink import Mask, ink_of
from zellige.data.layout import Box
from zellige.data.reading import Page, cut_piece, plan_pieces
from zellige.data.schema import Task, Tiling
from zellige.data.tiling import Budget, Tile, cut, plan_tiles
from zellige.data.turning import clear_turn, turned, unturned

#: Print is looked for in so many pixels of a page at most: enough to tell which way it is up, and soon done.
LOOKED_AT_PIXELS = 2_000_000


class UnseenShapeError(Exception):
    """The model cannot see an image of this shape."""


@dataclass(frozen=True)
class ViewRule:
    """How images become views: small, so that it can be sent to the processes that decode.

    With ``turn_pages`` the views of a page whose print says that it does not lie upright come once more, turned.
    """

    task: Task
    tiling: Tiling
    budget: Budget
    lines_at_once: int | None = None
    turn_pages: bool = False


@dataclass(frozen=True, eq=False)
class View:
    """One picture for the model: the whole image, its overview or a tile; ``pixels`` are (height, width, 3).

    ``tile`` is in pixels of the upright image, ``pixels`` may be shrunk to what the model sees of it. ``index`` is the
    view's place among the views of its image: large images may give them in another order.
    """

    tile: Tile
    pixels: NDArray[np.uint8]
    index: int = 0


def views_of(pixels: NDArray[np.uint8], rule: ViewRule) -> Iterator[View]:
    """The views of an image that is whole in memory, one after another; raises UnseenShapeError."""
    height, width = pixels.shape[:2]
    if is_cut(rule):
        for index, tile in enumerate(pieces_of(Page(width, height, ink_of(pixels)), rule)):
            if tile.overview:
                yield View(tile, shown(turned(pixels, tile.turn), rule.budget), index)
            else:
                yield View(tile, cut_piece(pixels, tile, rule.budget), index)
        return
    tiles = planned(width, height, rule)
    for index, tile in enumerate(tiles):
        yield View(tile, shown(cut(pixels, tile), rule.budget), index)
    if rule.turn_pages and (turn := clear_turn(_print_of(pixels))):
        page = np.rot90(pixels, -turn // 90)  # no copy: each view makes its own
        height, width = page.shape[:2]
        for index, tile in enumerate(planned(width, height, rule), len(tiles)):
            box = unturned(Box(tile.x, tile.y, tile.x + tile.width, tile.y + tile.height), turn, width, height)
            lying = replace(tile, x=box.left, y=box.top, width=box.width, height=box.height, turn=turn)
            yield View(lying, shown(np.ascontiguousarray(cut(page, tile)), rule.budget), index)


def _print_of(pixels: NDArray[np.uint8]) -> Mask:
    """The mask of a page's ink, shrunk where the page is large."""
    step = math.ceil(math.sqrt(pixels.shape[0] * pixels.shape[1] / LOOKED_AT_PIXELS))
    return ink_of(pixels if step == 1 else np.asarray(Image.fromarray(pixels).reduce(step)))


def is_cut(rule: ViewRule) -> bool:
    """Whether an image is a page that is cut where nothing is printed on it; else its size alone decides the views."""
    return rule.task == "read" and rule.tiling != "off"


def pieces_of(page: Page, rule: ViewRule) -> tuple[Tile, ...]:
    """The boxes of the views of a page, in reading order; raises UnseenShapeError."""
    side = rule.tiling if isinstance(rule.tiling, int) else None
    try:
        return plan_pieces(page, rule.budget, side=side, lines=rule.lines_at_once)
    except ValueError as e:
        raise UnseenShapeError(str(e)) from e


def planned(width: int, height: int, rule: ViewRule) -> tuple[Tile, ...]:
    """The boxes of the views of an image of this size: at least one, an overview first; raises UnseenShapeError."""
    try:
        tiles = plan_tiles(width, height, rule.budget, rule.tiling)
    except ValueError as e:
        raise UnseenShapeError(str(e)) from e
    return tiles or (Tile(0, 0, width, height, 1.0, overview=True),)


def shown(pixels: NDArray[np.uint8], budget: Budget) -> NDArray[np.uint8]:
    """``pixels`` shrunk as the model would shrink them, so that less is carried; as they are where it would not."""
    size = shrunk_size(pixels.shape[1], pixels.shape[0], budget)
    return pixels if size is None else np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC))


def halved(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A picture of about half the pixels of this one (height, width, 3), a pixel each way at least."""
    height, width = (max(1, round(side / math.sqrt(2))) for side in pixels.shape[:2])
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))


def shrunk_size(width: int, height: int, budget: Budget) -> tuple[int, int] | None:
    """(width, height) that the model shrinks such a picture to; None where it does not, or would resize it again."""
    size = budget.resized(width, height)
    if size[0] * size[1] >= width * height:
        return None
    try:
        settled = budget.resized(*size) == size
    except ValueError:
        settled = False
    return size if settled else None
