"""Held-out sets: images, questions and right answers that no training run has seen."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zellige.data.samples import Document, draw_document, draw_line, draw_scene, held_out_kit
from zellige.data.samples.kit import Kit
from zellige.data.samples.light import photographed
from zellige.data.samples.questions import CAPTION, NOT_SHOWN, READ, Question
from zellige.engine.demo.grids import LEAST_SIDE, MOST_SIDE, grid_of


@dataclass(frozen=True, eq=False)
class Case:
    """One picture, one question, one right answer."""

    pixels: NDArray[np.uint8]
    question: str
    answer: str


@dataclass(frozen=True)
class Suite:
    """A set of cases; ``target`` is the least share of right answers (``by_character``: the most character errors)."""

    name: str
    target: float
    draw: Callable[[Kit], Case]
    held_out_phrases: bool = False
    held_out_faces: bool = False
    by_character: bool = False

    def case(self, number: int) -> Case:
        """The case of this number: the same on every machine that has the same fonts and Pillow."""
        kit = held_out_kit(f"{self.name}/{number}", phrases=self.held_out_phrases, faces=self.held_out_faces)
        return self.draw(kit)

    def cases(self, count: int) -> list[Case]:
        """The first ``count`` cases."""
        return [self.case(number) for number in range(count)]


def _side(kit: Kit, least: int) -> int:
    return kit.rng.randint(least, MOST_SIDE)


def _shrink(width: int, height: int) -> float:
    """How far the image processor shrinks an image of this size (1 where it does not)."""
    grid = grid_of(width, height)
    return max(1.0, width / grid.width, height / grid.height)


def _scene(least: int) -> Callable[[Kit], Case]:
    def draw(kit: Kit) -> Case:
        width, height = _side(kit, least), _side(kit, least)
        scene = draw_scene(kit, width, height, scale=_shrink(width, height))
        return Case(photographed(scene.pixels, kit.rng, 0.7), CAPTION.usual, scene.caption)

    return draw


def _document(kit: Kit, least: int, type_px: tuple[int, int], degrees: float = 0.0, absent: float = 0.0) -> Document:
    width, height = _side(kit, least), _side(kit, least)
    shrink = _shrink(width, height)
    low, high = (round(px * shrink + 0.49) for px in type_px)
    return draw_document(kit, width, height, text_px=(low, high), degrees=degrees, absent=absent)


def _asked(
    least: int, type_px: tuple[int, int] = (11, 24), tilt: tuple[float, float] | None = None
) -> Callable[[Kit], Case]:
    """A question for a fact that is there, about a document whose sides are ``least`` pixels or more."""

    def draw(kit: Kit) -> Case:
        degrees = kit.rng.uniform(*tilt) * kit.pick((-1, 1)) if tilt else 0.0
        while True:
            document = _document(kit, least, type_px, degrees)
            about = [q for q in document.questions if q.answer in {fact.value for fact in document.facts}]
            if about:
                return _case(document, kit.pick(about))

    return draw


def _absent(kit: Kit) -> Case:
    while True:
        document = _document(kit, 224, (11, 24), absent=1.0)
        missing = [q for q in document.questions if q.answer == NOT_SHOWN]
        if missing:
            return _case(document, kit.pick(missing))


def _line(kit: Kit) -> Case:
    while True:
        width, height = kit.rng.randint(256, MOST_SIDE), kit.rng.randint(32, LEAST_SIDE)
        shrink = _shrink(width, height)
        document = draw_line(kit, width, height, text_px=(round(11 * shrink + 0.49), round(30 * shrink)))
        text = document.text or ""
        if not in_doubt(text):
            return Case(document.pixels, READ.usual, text)


def in_doubt(text: str) -> bool:
    """Whether no reader could be sure of a line: some characters have the same shape in many faces.

    I and l are one stroke, and in a random mixture of cases nothing tells which is meant; a lone letter or digit whose
    shape comes in two sizes (o, O, 0) has nothing beside it that its size could be judged by.
    """
    if text in tuple("cCoO0sSvVwWxXzZIl1"):
        return True
    mixed = [piece for piece in re.findall("[A-Za-z0-9]+", text) if not (piece.isupper() or piece[1:].islower())]
    return any(re.search("[a-z]", piece) and re.search("[A-Z]", piece) and re.search("[Il]", piece) for piece in mixed)


def _case(document: Document, question: Question) -> Case:
    return Case(document.pixels, question.text, question.answer)


SUITES: tuple[Suite, ...] = (
    Suite("scenes", 0.98, _scene(192)),
    Suite("documents", 0.97, _asked(224)),
    Suite("lines", 0.005, _line, by_character=True),
    Suite("absent", 0.95, _absent),
    Suite("unseen fonts", 0.95, _asked(224), held_out_faces=True),
    Suite("paraphrases", 0.93, _asked(224), held_out_phrases=True),
    Suite("rotation", 0.85, _asked(288, (13, 24), tilt=(5.0, 7.0))),
    Suite("scene sizes", 0.98, _scene(LEAST_SIDE)),
    Suite("document sizes", 0.97, _asked(LEAST_SIDE)),
    Suite("small print", 0.90, _asked(224, (10, 12))),
)


def edits(given: str, wanted: str) -> int:
    """Least number of characters to put in, take out or change to make one text of the other."""
    row = list(range(len(given) + 1))
    for i, want in enumerate(wanted):
        following = [i + 1]
        for j, have in enumerate(given):
            following.append(min(row[j + 1] + 1, following[j] + 1, row[j] + (want != have)))
        row = following
    return row[-1]


@dataclass(frozen=True)
class Wrong:
    """One answer that is not the right one, with the number that draws its case again."""

    number: int
    question: str
    right: str
    given: str


@dataclass(frozen=True)
class Score:
    """What a suite came to: the share of exact answers, and edits over characters of the right answers."""

    name: str
    samples: int
    right: float
    character_errors: float
    target: float
    by_character: bool
    wrong: tuple[Wrong, ...]

    @property
    def reached(self) -> bool:
        return self.character_errors <= self.target if self.by_character else self.right >= self.target

    def record(self) -> dict[str, Any]:
        """The score as JSON holds it, with the first wrong answers."""
        return asdict(replace(self, wrong=self.wrong[:10])) | {"reached": self.reached}


def score(suite: Suite, cases: Sequence[Case], answers: Sequence[str]) -> Score:
    pairs = list(zip(cases, answers, strict=True))
    wrong = tuple(
        Wrong(number, case.question, case.answer, given)
        for number, (case, given) in enumerate(pairs)
        if case.answer != given
    )
    errors = sum(edits(entry.given, entry.right) for entry in wrong) / max(1, sum(len(c.answer) for c in cases))
    right = 1 - len(wrong) / len(pairs)
    return Score(suite.name, len(pairs), right, errors, suite.target, suite.by_character, wrong)
