"""The inputs of ``make demo``: about forty files of which every right answer is known, five of them broken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from zellige.data.samples import SceneObject, draw_document, draw_poster, draw_scene, held_out_kit, scene_from
from zellige.data.samples.contents import Kind
from zellige.data.samples.fields import ABSENT, Fact
from zellige.data.samples.fonts import package_faces
from zellige.data.samples.kit import Kit
from zellige.data.samples.questions import NOT_SHOWN

#: Questions asked of every document, by the field each is about.
DOCUMENT_QUESTIONS = {
    "invoice_number": "What is the invoice number?",
    "date": "What is the date?",
    "total": "What is the total?",
}
POSTER_FACTS = (
    ("Gate", "B12"),
    ("Platform", "7"),
    ("Locker", "2041"),
    ("Room", "C-318"),
    ("Speaker", "Olga Rivers"),
    ("Deadline", "18:30"),
)
#: The scene that is captioned both whole and in tiles: larger than the model sees, shapes in two corners and between.
LARGE_SCENE = "scenes/large.png"

_SCENE_SIZES = (
    (224, 224), (448, 448), (320, 240), (256, 384), (640, 480), (512, 288),
    (160, 160), (300, 200), (96, 128), (400, 400), (600, 352), (288, 288),
    (128, 448), (480, 200),
)  # fmt: skip
_DOCUMENT_SIZES = (
    (448, 448), (352, 448), (448, 320), (320, 448), (384, 384), (416, 448),
    (448, 448), (400, 384), (448, 352), (352, 352), (448, 416), (384, 448),
    (320, 320), (512, 384), (600, 320), (288, 448),
)  # fmt: skip


@dataclass(frozen=True)
class DemoSet:
    """What was drawn, by file name below the folder: captions, answers by question, and error kinds of broken files."""

    captions: dict[str, str]
    answers: dict[str, dict[str, str]]
    poster: dict[str, str]
    broken: dict[str, str]

    @property
    def files(self) -> int:
        return len(self.captions) + len(self.answers) + 1 + len(self.broken)


def draw_demo_set(folder: Path) -> DemoSet:
    """Write all files below ``folder``; the same seeds give the same pictures wherever the same fonts are."""
    for name in ("scenes", "documents", "poster"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    captions = dict(_scenes(folder))
    answers = dict(_documents(folder))
    poster = draw_poster(_kit("poster"), 2400, 1600, POSTER_FACTS, text_px=(24, 44))
    Image.fromarray(poster.pixels).save(folder / "poster/poster.png")
    asked = {f"What is the {fact.names[0]}?": fact.value for fact in poster.facts}
    return DemoSet(captions, answers, asked, dict(_broken(folder)))


def _kit(name: str) -> Kit:
    return replace(held_out_kit(f"demo/{name}"), faces=package_faces())


def _scenes(folder: Path) -> Iterator[tuple[str, str]]:
    for number, (width, height) in enumerate(_SCENE_SIZES):
        name = f"scenes/scene-{number:02d}.{('png', 'jpg', 'webp', 'bmp', 'tiff', 'gif')[number % 6]}"
        scene = draw_scene(_kit(f"scene-{number}"), width, height)
        # A palette of 256 colours would speckle a gradient: the GIF is of plain colours.
        image = Image.fromarray(scene.pixels)
        image = image.quantize(64, dither=Image.Dither.NONE) if name.endswith("gif") else image
        image.save(folder / name, quality=92)
        yield name, scene.caption

    shapes = [
        SceneObject("red", "rectangle", 0, "large"),
        SceneObject("green", "ellipse", 4, "large"),
        SceneObject("blue", "rectangle", 8, "large"),
    ]
    large = scene_from(shapes, 1554, 1078, (238, 236, 228))
    Image.fromarray(large.pixels).save(folder / LARGE_SCENE)
    yield LARGE_SCENE, large.caption

    greys = [SceneObject("black", "circle", 0, "large"), SceneObject("white", "star", 5, "large")]
    grey = scene_from(greys, 320, 320, (128, 128, 128))
    sixteen = grey.pixels[:, :, 0].astype(np.uint16) * 257
    Image.fromarray(sixteen).save(folder / "scenes/grey-16-bit.png")
    yield "scenes/grey-16-bit.png", grey.caption

    turned = scene_from([SceneObject("yellow", "triangle", 1, "large")], 384, 256, (60, 70, 90))
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its side; a quarter turn clockwise shows it upright
    Image.fromarray(np.rot90(turned.pixels)).save(folder / "scenes/rotated.jpg", quality=92, exif=exif)
    yield "scenes/rotated.jpg", turned.caption


def _documents(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    kinds: tuple[Kind, ...] = ("invoice", "invoice", "receipt", "form")
    for number, (width, height) in enumerate(_DOCUMENT_SIZES):
        name = f"documents/{kinds[number % 4]}-{number:02d}.png"
        page = draw_document(_kit(f"document-{number}"), width, height, kind=kinds[number % 4], text_px=(13, 20))
        Image.fromarray(page.pixels).save(folder / name)
        yield name, _right_answers(page.facts)


def _right_answers(facts: tuple[Fact, ...]) -> dict[str, str]:
    """The answer to each question that has exactly one: the field's value, or that it is not shown."""
    values = {fact.key: fact.value for fact in facts}
    answers = {}
    for key, question in DOCUMENT_QUESTIONS.items():
        if key in values:
            answers[question] = values[key]
        elif not values.keys() & set(ABSENT[key]):
            answers[question] = NOT_SHOWN
    return answers


def _broken(folder: Path) -> Iterator[tuple[str, str]]:
    """Five files that cannot be read, and the kind of error each must be told by."""
    photo = folder / "scenes/scene-01.jpg"
    drawing = folder / "scenes/scene-00.png"
    files = {
        "scenes/broken-cut.jpg": (photo.read_bytes()[: photo.stat().st_size // 2], "truncated"),
        "scenes/broken-cut.png": (drawing.read_bytes()[:200], "truncated"),
        "scenes/broken-empty.jpg": (b"", "empty"),
        "scenes/broken-page.jpg": (b"<!DOCTYPE html><html><body>404 Not Found</body></html>", "unsupported_format"),
        "scenes/broken-noise.png": (
            bytes(np.random.default_rng(0).integers(0, 256, 999, dtype=np.uint8)),
            "unreadable",
        ),
    }
    for name, (content, kind) in files.items():
        (folder / name).write_bytes(content)
        yield name, kind
