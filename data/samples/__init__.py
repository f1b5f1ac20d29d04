"""Drawn images of which everything is known: scenes of shapes, documents, posters and lines of text.

Seeds decide everything. ``training_kit`` and ``held_out_kit`` give random numbers, words, wordings and faces that
never meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zellige.data.samples.contents import Kind
from zellige.data.samples.documents import document_sheet
from zellige.data.samples.fields import Fact
from zellige.data.samples.kit import Kit, held_out_kit, training_kit
from zellige.data.samples.light import photographed, print_in_colour, tilted
from zellige.data.samples.lines import draw_text
from zellige.data.samples.posters import poster_sheet
from zellige.data.samples.questions import Question
from zellige.data.samples.scene_drawing import Scene, draw_scene
from zellige.data.samples.scenes import Rgb, SceneObject, caption, figure_for, parse_caption, render
from zellige.data.samples.sheet import Sheet

__all__ = [
    "Document",
    "Fact",
    "Kit",
    "Question",
    "Scene",
    "SceneObject",
    "caption",
    "draw_document",
    "draw_line",
    "draw_poster",
    "draw_scene",
    "held_out_kit",
    "parse_caption",
    "scene_from",
    "training_kit",
]

_USUAL_SHARE = {"small": 0.35, "": 0.58, "large": 0.88}


@dataclass(frozen=True, eq=False)
class Document:
    """A picture of printed text: pixels (height, width, 3), its facts, its text (None: letters are cut), questions."""

    pixels: NDArray[np.uint8]
    facts: tuple[Fact, ...]
    text: str | None
    questions: tuple[Question, ...]
    caption: str


def _pictured(kit: Kit, sheet: Sheet, degrees: float = 0.0) -> Document:
    ink = tilted(sheet.ink, degrees) if degrees else sheet.ink
    pixels = photographed(print_in_colour(ink, kit.rng), kit.rng)
    return Document(pixels, sheet.facts, sheet.text, sheet.questions, sheet.caption)


def draw_document(
    kit: Kit,
    width: int,
    height: int,
    *,
    kind: Kind | None = None,
    text_px: tuple[int, int] = (10, 24),
    degrees: float = 0.0,
    absent: float = 0.17,
) -> Document:
    """An invoice, receipt, form or list with type of ``text_px`` pixels, turned by ``degrees``.

    ``absent`` is the share of questions for what is not there.
    """
    return _pictured(kit, document_sheet(kit, width, height, kind=kind, text_px=text_px, absent=absent), degrees)


def draw_line(kit: Kit, width: int, height: int, *, text_px: tuple[int, int] = (10, 30)) -> Document:
    """One line of text; the first question asks to read it."""
    return _pictured(kit, draw_text(kit, width, height, text_px=text_px))


def draw_poster(
    kit: Kit,
    width: int,
    height: int,
    facts: Sequence[tuple[str, str]] | None = None,
    *,
    text_px: tuple[int, int] = (12, 44),
) -> Document:
    """Short "Label: value" lines scattered over a page; ``facts`` are (label, value), random ones where None.

    Facts that found no free place are missing from the result's ``facts``.
    """
    pairs = None
    if facts is not None:
        pairs = [(label, value, Fact("label", (label.lower(),), value)) for label, value in facts]
    return _pictured(kit, poster_sheet(kit, width, height, pairs=pairs, text_px=text_px))


def scene_from(objects: Sequence[SceneObject], width: int, height: int, background: Rgb = (255, 255, 255)) -> Scene:
    """A clean scene of exactly these objects, each in the middle of its place."""
    ordered = sorted(objects, key=lambda item: item.place)
    figures = [figure_for(item, width, height, _USUAL_SHARE[item.size]) for item in ordered]
    pixels = render(figures, width, height, background)
    return Scene(pixels, tuple(ordered), caption(ordered), ())
