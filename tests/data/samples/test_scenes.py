"""Scenes are what their captions say: the same from the same seed, in one grammar, at the places and sizes named."""

from __future__ import annotations

import re

import numpy as np
import pytest

from zellige.data.samples import (
    Scene,
    SceneObject,
    caption,
    draw_scene,
    held_out_kit,
    parse_caption,
    scene_from,
    training_kit,
)
from zellige.data.samples.scene_drawing import draw_scene_window
from zellige.data.samples.scenes import COLOURS, PLACES, SHAPES, SIZES, place_of, size_of

COUNTS = ("zero", "one", "two", "three", "four")


def scenes(count: int, width: int = 200, height: int = 160) -> list[Scene]:
    kit = held_out_kit("scenes under test")
    return [draw_scene(kit, width, height) for _ in range(count)]


def box_of(pixels: np.ndarray) -> tuple[int, int, int, int]:
    """Left, top, right, bottom of all that is not background (the colour of the corner pixel)."""
    drawn = np.abs(pixels.astype(int) - pixels[0, 0].astype(int)).sum(2) > 60
    rows, columns = np.flatnonzero(drawn.any(1)), np.flatnonzero(drawn.any(0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def test_the_same_seed_draws_the_same_scene() -> None:
    one, same, other = (draw_scene(held_out_kit(seed), 224, 160) for seed in ("a", "a", "b"))
    assert np.array_equal(one.pixels, same.pixels)
    assert (one.caption, one.questions) == (same.caption, same.questions)
    assert not np.array_equal(one.pixels, other.pixels)
    assert not np.array_equal(one.pixels, draw_scene(training_kit("a"), 224, 160).pixels)


@pytest.mark.parametrize("draw", [draw_scene, draw_scene_window])
def test_every_caption_is_of_the_grammar_and_says_what_was_drawn(draw) -> None:
    kit = held_out_kit("captions")
    drawn = [draw(kit, 120, 96) for _ in range(200)]
    for scene in drawn:
        assert parse_caption(scene.caption) == scene.objects
        assert caption(scene.objects) == scene.caption
    assert {len(scene.objects) for scene in drawn} >= {0, 1, 2, 3}


def test_every_object_can_be_named_and_read_back() -> None:
    for colour in COLOURS:
        for shape in SHAPES:
            for place in range(9):
                for size in SIZES:
                    item = SceneObject(colour, shape, place, size)
                    assert parse_caption(caption([item])) == (item,)
    assert parse_caption(caption([])) == ()


@pytest.mark.parametrize(
    "text",
    [
        "a red circle",
        "red circle at the top",
        "a orange star at the top",
        "a large small red circle at the top",
        "a red circle at the bottom and a red circle at the top",  # not in reading order
        "a red circle at the top and a blue star on the left and a pink star on the right",
        "a red circle at the top, a blue star on the left",
        "An empty image",
        "",
    ],
)
def test_what_is_not_of_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="caption grammar"):
        parse_caption(text)


def test_a_shape_lies_in_the_cell_that_its_caption_names_and_is_as_large_as_it_says() -> None:
    single = [scene for scene in scenes(400) if len(scene.objects) == 1]
    assert len(single) > 40
    for scene in single:
        (item,) = scene.objects
        height, width = scene.pixels.shape[:2]
        left, top, right, bottom = box_of(scene.pixels)
        # All of the shape is in its cell, but for the corners of a large one that is turned.
        for x, y in ((left + width / 60, top + height / 60), (right - width / 60, bottom - height / 60)):
            assert place_of(x, y, width, height) == item.place, scene.caption
        assert size_of(max(right - left, bottom - top), width, height) == item.size, scene.caption


def test_a_scene_to_order_stands_in_the_middle_of_its_places() -> None:
    for place in range(9):
        for size in SIZES:
            item = SceneObject("red", "rectangle", place, size)
            pixels = scene_from([item], 300, 240).pixels
            left, top, right, bottom = box_of(pixels)
            row, column = divmod(place, 3)
            assert abs((left + right) / 2 - (column + 0.5) * 100) <= 1
            assert abs((top + bottom) / 2 - (row + 0.5) * 80) <= 1
            assert size_of(right - left, 300, 240) == size


def test_a_shape_has_the_colour_that_it_is_named_by() -> None:
    for scene in scenes(200):
        for item in scene.objects:
            height, width = scene.pixels.shape[:2]
            row, column = divmod(item.place, 3)
            cell = scene.pixels[
                row * height // 3 : (row + 1) * height // 3, column * width // 3 : (column + 1) * width // 3
            ]
            near = np.linalg.norm(cell.astype(float) - COLOURS[item.colour], axis=2) < 26
            assert near.sum() >= 20, scene.caption


def test_answers_about_scenes_follow_from_their_objects() -> None:
    seen = set()
    for scene in scenes(300, 96, 96):
        for question in scene.questions:
            asked = question.text.lower().rstrip("?.")
            seen.add(asked.split()[0])
            if asked.startswith("how many"):
                assert question.answer == COUNTS[len(scene.objects)]
            elif match := re.fullmatch(r"is there an? (\w+) (\w+)", asked):
                there = any((o.colour, o.shape) == match.groups() for o in scene.objects)
                assert question.answer == ("yes" if there else "no")
            elif match := re.fullmatch(r"where is the (\w+)", asked):
                where = [PLACES[o.place] for o in scene.objects if o.shape == match[1]]
                assert [question.answer] == (where or ["not shown"])
            elif match := re.fullmatch(r"what colour is the (\w+)", asked):
                colours = [o.colour for o in scene.objects if o.shape == match[1]]
                assert [question.answer] == (colours or ["not shown"])
            elif match := re.fullmatch(r"which shape is (\w+)", asked):
                shapes = [f"the {o.shape}" for o in scene.objects if o.colour == match[1]]
                assert [question.answer] == (shapes or ["not shown"])
            elif asked.startswith("what is ") and asked.removeprefix("what is ") in PLACES:
                place = PLACES.index(asked.removeprefix("what is "))
                named = [SceneObject(o.colour, o.shape, o.place).name() for o in scene.objects if o.place == place]
                assert [question.answer] == (named or ["nothing"])
            else:
                assert question.answer in ("not shown", "no text"), question
    assert seen >= {"how", "is", "where", "what", "which"}
