"""Documents: invoices, receipts, forms and lists, whole or as a window cut out of a larger page."""

from __future__ import annotations

import numpy as np

from zellige.data.samples.contents import KIND_NAMES, Kind, draw_contents
from zellige.data.samples.fields import Fact
from zellige.data.samples.ink import Ink
from zellige.data.samples.kit import Kit
from zellige.data.samples.layout import Placed, Typesetter
from zellige.data.samples.questions import (
    CAPTION,
    EMPTY,
    KIND,
    NO_TEXT,
    NOT_SHOWN,
    Question,
    ask,
    ask_fact,
    ask_field,
)
from zellige.data.samples.sheet import Sheet, absent_question, choose_questions

#: Most tries to draw a document on which at least one fact found room.
_TRIES = 6


def _shown(placed: list[Placed]) -> list[Fact]:
    return [row.fact for line in placed for row, _ in line.rows if row.fact]


def document_sheet(
    kit: Kit,
    width: int,
    height: int,
    *,
    kind: Kind | None = None,
    text_px: tuple[int, int] = (10, 24),
    questions: int = 4,
    absent: float = 0.14,
) -> Sheet:
    """A whole document of ``width`` x ``height`` pixels with up to ``questions`` questions about it."""
    for attempt in range(_TRIES):
        short = attempt > 1 or width * height < 150 * 150 or not kit.chance(kit.difficulty)
        contents = draw_contents(kit, kind, short=short)
        ink = Ink(width, height, kerned=kit.chance(0.2))
        placed = Typesetter(kit, ink, (width, height), text_px).set(contents)
        facts = _shown(placed)
        if facts:
            break
    # What found no room is not on the page, but what it looks like (a company's name) may be.
    unsure = {"vendor"} if contents.kind in ("list", "form") else set()
    unsure |= {"quantity"} if any(fact.key == "item" for fact in facts) else set()
    unique = _answerable(facts)
    asked = choose_questions(kit, unique, unsure, questions, absent)
    caption = KIND_NAMES[contents.kind]
    vendor = [fact.value for fact in facts if fact.key == "vendor"]
    described = f"{caption} from {vendor[0]}" if vendor else caption
    if kit.chance(0.05) and asked:
        asked = (*asked[: questions - 1], ask(kit, KIND, caption))
    if kit.chance(0.12):
        ink.frame(kit.rng.randint(90, 255))
    text = "\n".join(line.text for line in placed)
    return Sheet(ink.pixels, ink.marks(), text, tuple(unique), asked, described, ink.type_px, True)


def _answerable(facts: list[Fact]) -> list[Fact]:
    """Facts whose question has one answer: no two facts share a name."""
    kept: list[Fact] = []
    for fact in facts:
        rivals = [other for other in facts if other is not fact and set(other.names) & set(fact.names)]
        if all(rival.value == fact.value for rival in rivals):
            kept.append(fact)
    return kept


def window_sheet(
    kit: Kit, width: int, height: int, *, text_px: tuple[int, int] = (11, 32), questions: int = 4
) -> Sheet:
    """A window out of a larger document, as a tile sees it; text may be cut at its edges.

    Asked are facts that are wholly in the window, and ones that are wholly outside or nowhere ("not shown").
    """
    rng = kit.rng
    page = (round(width * rng.uniform(1.0, 2.2)), round(height * rng.uniform(1.0, 2.4)))
    ink = Ink(
        width,
        height,
        # Text begins near the top left, so windows lie there mostly; elsewhere they would be empty.
        origin=(
            rng.randint(0, min(page[0] - width, width // 2) if rng.random() < 0.5 else 0),
            rng.randint(0, page[1] - height if rng.random() < 0.2 else min(page[1] - height, height // 3)),
        ),
        kerned=kit.chance(0.2),
    )
    contents = draw_contents(kit)
    placed = Typesetter(kit, ink, page, text_px).set(contents)
    unique = _answerable(_shown(placed))
    inside, outside = [], []
    unsure = {"vendor"}
    for line in placed:
        for row, box in line.rows:
            if row.fact in unique:
                where = ink.where(box)
                if where == "inside":
                    inside.append(row.fact)
                elif where == "outside":
                    outside.append(row.fact)
                else:
                    unsure |= {row.fact.key, *row.fact.names}
    asked = _about_window(kit, inside, outside, unsure, questions)
    return Sheet(ink.pixels, ink.marks(), None, tuple(inside), asked, "part of a document", ink.type_px, False)


def _about_window(
    kit: Kit, inside: list[Fact], outside: list[Fact], unsure: set[str], most: int
) -> tuple[Question, ...]:
    questions = list(choose_questions(kit, inside, unsure | {f.key for f in outside if f.key != "label"}, most - 1))
    names = {name for fact in inside for name in fact.names} | unsure
    missing = [f for f in outside if f.key not in ("item", "vendor") and not names.intersection((f.key, *f.names))]
    if missing:
        fact = kit.pick(missing)
        questions.append(Question(ask_field(kit, fact.key, fact.names), NOT_SHOWN))
    return tuple(questions)


def blank_sheet(kit: Kit, width: int, height: int) -> Sheet:
    """An empty page, now and then with a rule or a frame: it says nothing."""
    ink = Ink(width, height)
    if kit.chance(0.2):
        y = kit.rng.randint(4, height - 5)
        ink.rule(kit.rng.randint(0, width // 3), y, width - kit.rng.randint(0, width // 3), kit.rng.randint(80, 255), 1)
    missing = [absent_question(kit, [], set()) for _ in range(2)]
    questions = tuple(question for question in missing if question)
    return Sheet(ink.pixels, ink.marks(), NO_TEXT, (), (*questions, ask(kit, CAPTION, EMPTY)), EMPTY, (0, 0), False)


def tiny_print_sheet(kit: Kit, width: int, height: int, *, scale: float = 1.0) -> Sheet:
    """A document in type too small to read (3 to 4 pixels): every question is answered "not shown"."""
    size = round(kit.rng.uniform(3, 4.4) * scale)
    contents = draw_contents(kit)
    ink = Ink(width, height)
    plain_kit = kit if kit.difficulty == 1 else Kit(kit.rng, kit.faces)
    facts = _shown(Typesetter(plain_kit, ink, (width, height), (max(3, size), max(3, size) + 1)).set(contents))
    kit.rng.shuffle(facts)
    asked = tuple(Question(ask_fact(kit, fact).text, NOT_SHOWN) for fact in facts[:3] if fact.key != "vendor")
    return Sheet(ink.pixels, np.zeros((0, 3), np.float32), None, (), asked, "a document", (0, 0), False)
