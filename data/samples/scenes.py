"""Scenes of coloured shapes, and the one grammar in which they are captioned.

An image is divided into nine cells. A shape's place is the cell of its centre. Its extent (the longer side of its box)
is measured against the shorter side of a cell: up to 0.45 of it is "small", 0.70 or more is "large", and between
the two no size is named. Objects are named in reading order of their places.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Rgb = tuple[int, int, int]

COLOURS: dict[str, Rgb] = {
    "red": (215, 35, 35),
    "green": (40, 160, 60),
    "blue": (40, 80, 215),
    "yellow": (240, 215, 40),
    "orange": (245, 135, 25),
    "purple": (130, 50, 170),
    "pink": (250, 140, 190),
    "cyan": (60, 205, 220),
    "grey": (128, 128, 128),
    "black": (20, 20, 20),
    "white": (250, 250, 250),
    "brown": (120, 70, 35),
}
SHAPES = ("circle", "ellipse", "square", "rectangle", "triangle", "diamond", "star")
SIZES = ("small", "", "large")
PLACES = (
    "at the top left",
    "at the top",
    "at the top right",
    "on the left",
    "in the centre",
    "on the right",
    "at the bottom left",
    "at the bottom",
    "at the bottom right",
)
SMALL_BELOW, LARGE_FROM = 0.45, 0.70
#: Extents (of a cell's shorter side) that are drawn for each size; the gaps keep every size beyond doubt.
EXTENTS = {"small": (0.30, 0.40), "": (0.52, 0.63), "large": (0.80, 0.96)}
_LONG = ("ellipse", "rectangle")


@dataclass(frozen=True)
class SceneObject:
    """One shape as it is named: ``place`` is an index into PLACES, ``size`` one of SIZES."""

    colour: str
    shape: str
    place: int
    size: str = ""

    def name(self) -> str:
        """Size, colour and shape with an article: "a small red circle"."""
        words = " ".join(word for word in (self.size, self.colour, self.shape) if word)
        return f"{article(words)} {words}"


def article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def caption(objects: list[SceneObject] | tuple[SceneObject, ...]) -> str:
    """The caption of a scene; an empty one is "an empty image"."""
    parts = [f"{o.name()} {PLACES[o.place]}" for o in sorted(objects, key=lambda o: o.place)]
    if not parts:
        return "an empty image"
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def parse_caption(text: str) -> tuple[SceneObject, ...]:
    """The objects that a caption names; raises ValueError where the text is not of the grammar."""
    if text == "an empty image":
        return ()
    places = "|".join(sorted(PLACES, key=len, reverse=True))
    pattern = re.compile(rf"an? (?:(small|large) )?({'|'.join(COLOURS)}) ({'|'.join(SHAPES)}) ({places})")
    objects = []
    for part in re.split(r", | and ", text):
        match = pattern.fullmatch(part)
        if match is None:
            raise ValueError(f"not of the caption grammar: {part!r} in {text!r}")
        size, colour, shape, place = match.groups()
        objects.append(SceneObject(colour, shape, PLACES.index(place), size or ""))
    if caption(objects) != text:
        raise ValueError(f"not written as the caption grammar asks: {text!r}")
    return tuple(objects)


@dataclass(frozen=True)
class Figure:
    """A shape to draw: centre and box in pixels, colour, and how far it is turned (radians)."""

    shape: str
    x: float
    y: float
    width: float
    height: float
    colour: Rgb
    turn: float = 0.0

    @property
    def extent(self) -> float:
        return max(self.width, self.height)


def place_of(x: float, y: float, width: int, height: int) -> int:
    """Index into PLACES of the cell that holds the point."""
    return min(2, max(0, int(3 * y / height))) * 3 + min(2, max(0, int(3 * x / width)))


def size_of(extent: float, width: int, height: int) -> str:
    """The size word for an extent in pixels in an image of this size."""
    share = extent / (min(width, height) / 3)
    return "small" if share <= SMALL_BELOW else "large" if share >= LARGE_FROM else ""


def _outline(figure: Figure) -> list[tuple[float, float]]:
    """Corner points in units of half the box, before turning."""
    match figure.shape:
        case "square" | "rectangle":
            return [(-1, -1), (1, -1), (1, 1), (-1, 1)]
        case "triangle":
            return [(0, -1), (1, 1), (-1, 1)]
        case "diamond":
            return [(0, -1), (0.72, 0), (0, 1), (-0.72, 0)]
        case "star":
            corners = ((1.0 if i % 2 == 0 else 0.42, math.pi * i / 5) for i in range(10))
            return [(reach * math.sin(angle), -reach * math.cos(angle)) for reach, angle in corners]
        case _:
            raise ValueError(f"no such shape: {figure.shape}")


def render(figures: list[Figure], width: int, height: int, background: Rgb, smooth: bool = True) -> NDArray[np.uint8]:
    """Draw figures over a plain background, (height, width, 3); ``smooth`` draws twice as large and averages."""
    scale = 2 if smooth else 1
    image = Image.new("RGB", (width * scale, height * scale), background)
    draw = ImageDraw.Draw(image)
    for figure in figures:
        x, y = figure.x * scale, figure.y * scale
        w, h = figure.width * scale / 2, figure.height * scale / 2
        if figure.shape in ("circle", "ellipse"):
            draw.ellipse((x - w, y - h, x + w, y + h), fill=figure.colour)
            continue
        cos, sin = math.cos(figure.turn), math.sin(figure.turn)
        corners = [(x + w * u * cos - h * v * sin, y + w * u * sin + h * v * cos) for u, v in _outline(figure)]
        draw.polygon(corners, fill=figure.colour)
    if smooth:
        image = image.reduce(scale)
    return np.asarray(image)


def figure_for(
    item: SceneObject, width: int, height: int, share: float, slim: float = 0.55, upright: bool = False
) -> Figure:
    """The figure of an object in the middle of its cell; ``share`` of the cell's shorter side is its extent."""
    cell_width, cell_height = width / 3, height / 3
    extent = min(cell_width, cell_height) * share
    short = extent * slim if item.shape in _LONG else extent
    w, h = (short, extent) if upright else (extent, short)
    row, column = divmod(item.place, 3)
    return Figure(item.shape, cell_width * (column + 0.5), cell_height * (row + 0.5), w, h, COLOURS[item.colour])
