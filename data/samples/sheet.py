"""A drawn sheet before light falls on it, and what is true of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zellige.data.samples.fields import ABSENT, FIELDS, Fact, arbitrary_label
from zellige.data.samples.kit import Kit
from zellige.data.samples.questions import NOT_SHOWN, Question, ask_fact, ask_field

#: Printing inks: 255 is black on white.
INKS = (255, 255, 230, 200, 170)


@dataclass(frozen=True, eq=False)
class Sheet:
    """Ink (height, width), a mark a character, and what may be asked.

    ``text`` is None where letters are cut at the edges; ``type_px`` are its smallest and its largest type (0: none);
    ``whole`` says that nothing is cut, so the sheet may be turned and shifted as long as all ink stays in view.
    """

    ink: NDArray[np.uint8]
    marks: NDArray[np.float32]
    text: str | None
    facts: tuple[Fact, ...]
    questions: tuple[Question, ...]
    caption: str
    type_px: tuple[int, int]
    whole: bool


def choose_questions(
    kit: Kit, shown: list[Fact], unsure: set[str], most: int, absent: float = 0.14
) -> tuple[Question, ...]:
    """Up to ``most`` questions: facts that are shown, and now and then something that is not.

    ``unsure`` are field keys (or labels) that must not be asked for as absent: something of the kind is on the page.
    """
    facts = list(shown)
    kit.rng.shuffle(facts)
    questions: list[Question] = []
    while len(questions) < most:
        if not facts or kit.chance(absent):
            question = absent_question(kit, shown, unsure)
            if question is None or any(q.text == question.text for q in questions):
                break
            questions.append(question)
            if not facts:
                break
        else:
            questions.append(ask_fact(kit, facts.pop()))
    return tuple(questions)


def absent_question(kit: Kit, shown: list[Fact], unsure: set[str]) -> Question | None:
    """A question for something that is certainly not on the page; None when everything tried may be."""
    present = {fact.key for fact in shown} | unsure
    names = {name for fact in shown for name in fact.names} | unsure
    for _ in range(8):
        if kit.chance(0.7):
            key = kit.pick(tuple(ABSENT))
            if key in present or present.intersection(ABSENT[key]) or names.intersection(FIELDS[key].names):
                continue
            return Question(ask_field(kit, key, FIELDS[key].names), NOT_SHOWN)
        label = arbitrary_label(kit)
        if any(label in name or name in label for name in names) or label in FIELDS:
            continue
        return Question(ask_field(kit, "label", (label,)), NOT_SHOWN)
    return None


def plain(text: str) -> str:
    """Runs of blanks made one."""
    return " ".join(text.split())
