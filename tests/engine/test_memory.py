"""What is left of a card's memory for keys and values."""

from __future__ import annotations

import pytest

from zellige.engine.api import VisionBudget
from zellige.engine.memory import MemoryPlan, NotEnoughMemory
from zellige.engine.profile import largest_image

GB = 10**9


def plan(**changed: int) -> MemoryPlan:
    sizes = {"in_use": 10 * GB, "work": 2 * GB, "encoded": GB, "remembered_images": GB, "graphs": GB} | changed
    return MemoryPlan(total=24 * GB, fraction=0.9, **sizes)


def test_the_cache_gets_what_the_rest_leaves_and_one_block_that_nobody_owns():
    assert plan().cache == int(24 * GB * 0.9) - 15 * GB
    assert plan().blocks(100 * 10**6, needed=10) == 65


def test_a_model_that_does_not_fit_is_refused_with_the_bytes_it_lacks():
    with pytest.raises(NotEnoughMemory, match=r"needs 4\.5 GB more .*gpu_memory_fraction"):
        plan(in_use=20 * GB).blocks(100 * 10**6, needed=10)


@pytest.mark.parametrize(("pixels", "patches"), [(200_704, 1024), (16_777_216, 16_384), (1024, 4)])
def test_the_image_that_is_tried_is_no_smaller_than_any_that_may_come(pixels: int, patches: int):
    budget = VisionBudget(patch=16, merge=2, min_pixels=1024, max_pixels=pixels)
    image = largest_image(budget, patches)
    assert image.pixels.shape[0] * image.pixels.shape[1] >= pixels
    assert image.grid[0] * image.grid[1] >= patches
    assert image.tokens * budget.merge**2 == image.grid[0] * image.grid[1]
