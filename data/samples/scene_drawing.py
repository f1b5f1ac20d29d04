"""Random scenes: shapes in the nine places of an image, and windows into larger scenes as tiles see them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from zellige.data.samples.kit import Kit
from zellige.data.samples.questions import CAPTION, NO_TEXT, NOT_SHOWN, READ, Question, ask, ask_field, cased
from zellige.data.samples.scenes import (
    COLOURS,
    EXTENTS,
    PLACES,
    SHAPES,
    SIZES,
    Figure,
    Rgb,
    SceneObject,
    article,
    caption,
    figure_for,
    place_of,
    render,
    size_of,
)

#: Least distance of a shape's colour from the background, in RGB.
_CONTRAST = 85.0
_GREYS = ("black", "grey", "white")
#: Least extent in pixels of a shape that must be told from others.
_LEAST_PX = 11.0


@dataclass(frozen=True, eq=False)
class Scene:
    """A scene: pixels (height, width, 3), what is in it in reading order, its caption, and questions."""

    pixels: NDArray[np.uint8]
    objects: tuple[SceneObject, ...]
    caption: str
    questions: tuple[Question, ...]


def _background(kit: Kit, grey: bool) -> tuple[Rgb, tuple[str, ...]]:
    """A background and the colours that stand out against it."""
    rng = kit.rng
    while True:
        chance = rng.random()
        low, high = (175, 255) if chance < 0.7 else (0, 110) if chance < 0.86 else (40, 235)
        background = (rng.randint(low, high), rng.randint(low, high), rng.randint(low, high))
        if grey:
            background = (background[0],) * 3
        elif chance < 0.12:
            background = (255, 255, 255)
        names = _GREYS if grey else tuple(COLOURS)
        clear = tuple(c for c in names if math.dist(COLOURS[c], background) > _CONTRAST)
        if len(clear) >= (2 if grey else 5):
            return background, clear


def _tinted(kit: Kit, colour: str, grey: bool) -> Rgb:
    shift = kit.rng.randint(-14, 14)
    r, g, b = (
        min(255, max(0, v + (shift if grey or colour in _GREYS else kit.rng.randint(-14, 14)))) for v in COLOURS[colour]
    )
    return r, g, b


def _turn(kit: Kit, shape: str) -> float:
    reach = 12 if shape == "star" else 6
    return math.radians(kit.rng.uniform(-reach, reach)) if kit.chance(0.75) else 0.0


def draw_scene(kit: Kit, width: int, height: int, *, scale: float = 1.0, questions: int = 3) -> Scene:
    """A scene of 0 to 4 shapes; ``scale`` says how much the image will be shrunk before a model sees it."""
    rng = kit.rng
    grey = kit.chance(0.07)
    background, clear = _background(kit, grey)
    number = rng.choices((0, 1, 2, 3, 4), (0.03, 0.21, 0.26, 0.27, 0.23))[0]
    objects, figures = [], []
    cell = min(width, height) / 3
    for place in sorted(rng.sample(range(9), number)):
        item = SceneObject(kit.pick(clear), kit.pick(SHAPES), place, kit.pick(SIZES))
        low, high = EXTENTS[item.size]
        share = max(rng.uniform(low, high), min(0.42, _LEAST_PX * scale / cell) if item.size == "small" else 0)
        figure = figure_for(item, width, height, share, rng.uniform(0.45, 0.62), kit.chance(0.4))
        reach_x, reach_y = max(0.0, (width / 3 - figure.width) / 2), max(0.0, (height / 3 - figure.height) / 2)
        figure = replace(
            figure,
            x=figure.x + rng.uniform(-0.65, 0.65) * reach_x,
            y=figure.y + rng.uniform(-0.65, 0.65) * reach_y,
            colour=_tinted(kit, item.colour, grey),
            turn=_turn(kit, item.shape),
        )
        objects.append(item)
        figures.append(figure)
    pixels = render(figures, width, height, background, smooth=not kit.chance(0.15))
    return Scene(pixels, tuple(objects), caption(objects), scene_questions(kit, objects, questions))


def draw_scene_window(kit: Kit, width: int, height: int, *, questions: int = 3) -> Scene:
    """A window into a larger scene: up to three shapes of any size at any place, perhaps cut a little at the edges."""
    rng = kit.rng
    background, clear = _background(kit, False)
    objects: dict[int, SceneObject] = {}
    figures: list[Figure] = []
    for _ in range(rng.choices((0, 1, 2, 3), (0.12, 0.5, 0.28, 0.1))[0]):
        for _ in range(12):
            shape, colour = kit.pick(SHAPES), kit.pick(clear)
            extent = min(width, height) * rng.uniform(0.12, 1.0)
            short = extent * (rng.uniform(0.45, 0.62) if shape in ("ellipse", "rectangle") else 1.0)
            w, h = (extent, short) if kit.chance(0.5) else (short, extent)
            figure = Figure(
                shape,
                rng.uniform(0, width),
                rng.uniform(0, height),
                w,
                h,
                _tinted(kit, colour, False),
                _turn(kit, shape),
            )
            item = _seen(figure, colour, width, height)
            if item and item.place not in objects and not any(_near(figure, other) for other in figures):
                objects[item.place] = item
                figures.append(figure)
                break
    found = [objects[place] for place in sorted(objects)]
    pixels = render(figures, width, height, background, smooth=not kit.chance(0.15))
    return Scene(pixels, tuple(found), caption(found), scene_questions(kit, found, questions))


def _near(one: Figure, other: Figure) -> bool:
    across = abs(one.x - other.x) < (one.width + other.width) / 2 + 4
    return across and abs(one.y - other.y) < (one.height + other.height) / 2 + 4


def _seen(figure: Figure, colour: str, width: int, height: int) -> SceneObject | None:
    """What a window shows of a figure; None where its shape, place or size could be doubted."""
    left, right = max(0.0, figure.x - figure.width / 2), min(float(width), figure.x + figure.width / 2)
    top, bottom = max(0.0, figure.y - figure.height / 2), min(float(height), figure.y + figure.height / 2)
    cut_x, cut_y = figure.width - (right - left), figure.height - (bottom - top)
    if cut_x > 0.12 * figure.width or cut_y > 0.12 * figure.height:
        return None
    x, y = (left + right) / 2, (top + bottom) / 2
    for share in (3 * x / width, 3 * y / height):
        if min(abs(share - 1), abs(share - 2)) < 0.12:
            return None
    share = figure.extent / (min(width, height) / 3)
    if 0.41 < share < 0.51 or 0.64 < share < 0.78:
        return None
    return SceneObject(colour, figure.shape, place_of(x, y, width, height), size_of(figure.extent, width, height))


_COUNTS = ("zero", "one", "two", "three", "four")


def scene_questions(kit: Kit, objects: list[SceneObject], most: int) -> tuple[Question, ...]:
    """Up to ``most`` questions about a scene, its caption not among them."""
    count = kit.pick(("How many shapes are there?", "How many shapes do you see?", "How many objects are there?"))
    asked = [Question(cased(kit, count), _COUNTS[len(objects)])]
    if kit.chance(0.15):
        asked.append(ask(kit, READ, NO_TEXT))
    if kit.chance(0.15):
        asked.append(Question(ask_field(kit, *kit.pick(_FOREIGN)), NOT_SHOWN))
    asked.append(_existence(kit, objects))
    free = kit.pick([place for place in range(9) if all(o.place != place for o in objects)])
    asked.append(Question(cased(kit, f"What is {PLACES[free]}?"), "nothing"))
    if objects:
        item = kit.pick(objects)
        asked.append(Question(cased(kit, f"What is {PLACES[item.place]}?"), replace(item, size="").name()))
    asked += _single(kit, objects)
    kit.rng.shuffle(asked)
    return tuple(asked[:most])


_FOREIGN = (
    ("total", ("total",)),
    ("invoice_number", ("invoice number",)),
    ("date", ("date",)),
    ("phone", ("phone number",)),
    ("label", ("gate",)),
    ("label", ("room",)),
)


def _existence(kit: Kit, objects: list[SceneObject]) -> Question:
    if objects and kit.chance(0.5):
        item = kit.pick(objects)
        colour, shape = item.colour, item.shape
    else:
        colour, shape = kit.pick(tuple(COLOURS)), kit.pick(SHAPES)
    there = any(o.colour == colour and o.shape == shape for o in objects)
    return Question(cased(kit, f"Is there {article(colour)} {colour} {shape}?"), "yes" if there else "no")


def _single(kit: Kit, objects: list[SceneObject]) -> list[Question]:
    """Questions about a shape or a colour that is there once, or not at all."""
    asked = []
    shape, colour = kit.pick(SHAPES), kit.pick(tuple(COLOURS))
    if objects and kit.chance(0.8):
        item = kit.pick(objects)
        shape, colour = item.shape, item.colour
    of_shape = [o for o in objects if o.shape == shape]
    if len(of_shape) < 2:
        what = of_shape[0].colour if of_shape else NOT_SHOWN
        where = PLACES[of_shape[0].place] if of_shape else NOT_SHOWN
        asked.append(Question(cased(kit, f"What colour is the {shape}?"), what))
        asked.append(Question(cased(kit, f"Where is the {shape}?"), where))
    of_colour = [o for o in objects if o.colour == colour]
    if len(of_colour) < 2:
        which = f"the {of_colour[0].shape}" if of_colour else NOT_SHOWN
        asked.append(Question(cased(kit, f"Which shape is {colour}?"), which))
    return asked


def first_caption(kit: Kit, scene: Scene) -> Question:
    """The question that asks for a caption, in any wording."""
    return ask(kit, CAPTION, scene.caption)
