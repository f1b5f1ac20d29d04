"""Documents say what their facts say: values stand on the page, questions have their answers, nothing is cut."""

from __future__ import annotations

import re

import numpy as np
import pytest

from zellige.data.samples import draw_document, draw_line, draw_poster, held_out_kit, training_kit
from zellige.data.samples.contents import KINDS
from zellige.data.samples.documents import blank_sheet, document_sheet, tiny_print_sheet, window_sheet
from zellige.data.samples.fields import FIELDS
from zellige.data.samples.ink import MAX_MARKS
from zellige.data.samples.light import tilted
from zellige.data.samples.lines import draw_text
from zellige.data.samples.posters import poster_sheet, poster_window_sheet
from zellige.data.samples.questions import EMPTY, NO_TEXT, NOT_SHOWN, SPECIAL
from zellige.data.samples.sheet import Sheet


def documents(count: int, **options: object) -> list[Sheet]:
    kit = held_out_kit("documents under test")
    return [document_sheet(kit, 380, 420, **options) for _ in range(count)]


def plain(text: str) -> str:
    return text.lower().strip(" .?!:")


def asked_for(question: str, names: set[str]) -> tuple[str | None, str | None]:
    """(the longest of ``names`` in a question, the field that a question without its name is about)."""
    said = plain(question)
    for key, sides in SPECIAL.items():
        if any(said == plain(pattern) for side in sides for pattern in side):
            return None, key
    found = [name for name in names if re.search(rf"(?<!\w){re.escape(name.lower())}(?!\w)", said)]
    return max(found, key=len, default=None), None


@pytest.mark.parametrize("draw", [draw_document, draw_line, draw_poster])
def test_the_same_seed_draws_the_same_page(draw) -> None:
    one, same, other = (draw(held_out_kit(seed), 400, 300) for seed in ("a", "a", "b"))
    assert np.array_equal(one.pixels, same.pixels)
    assert (one.text, one.facts, one.questions) == (same.text, same.facts, same.questions)
    assert one.text != other.text
    assert one.pixels.shape == (300, 400, 3)
    assert one.pixels.dtype == np.uint8


def test_every_fact_stands_on_the_page() -> None:
    for sheet in documents(150):
        assert sheet.facts
        for fact in sheet.facts:
            assert fact.value in sheet.text.replace("\n", " "), (fact, sheet.text)


def test_every_character_of_the_text_was_printed_where_its_mark_is() -> None:
    sheets = [*documents(40), *(draw_text(training_kit(f"{n}"), 400, 120, lines=3) for n in range(40))]
    for sheet in sheets:
        characters = [c for c in sheet.text if not c.isspace()]
        assert len(sheet.marks) == min(len(characters), MAX_MARKS)
        for x, y, code in sheet.marks:
            reach = sheet.type_px[1]
            around = sheet.ink[max(0, int(y) - reach) : int(y) + reach, max(0, int(x) - reach) : int(x) + reach]
            assert around.any(), chr(int(code) + 31)
    # The marks spell the text.
    (line,) = [draw_text(training_kit("spells"), 500, 40)]
    assert "".join(chr(int(code) + 31) for *_, code in line.marks) == line.text.replace(" ", "")


def test_questions_are_answered_by_facts_or_are_about_what_is_not_there() -> None:
    every = {name for field in FIELDS.values() for name in field.names}
    shown = absent = 0
    for sheet in documents(200, absent=0.4):
        names = {name for fact in sheet.facts for name in fact.names}
        for question in sheet.questions:
            name, key = asked_for(question.text, every | names)
            if question.answer == NOT_SHOWN:
                absent += 1
                assert name is None or name not in names, (question, sheet.facts)
                assert key is None or key not in {fact.key for fact in sheet.facts}, (question, sheet.facts)
            elif question.answer not in ("an invoice", "a receipt", "a form", "a list of fields"):
                shown += 1
                right = {
                    f.value
                    for f in sheet.facts
                    if name in f.names or f.key == key or f.names[0] in question.text.lower()
                }
                assert question.answer in right, (question, sheet.facts)
    assert shown > 300
    assert absent > 100


def test_no_two_facts_answer_one_question_differently() -> None:
    for sheet in documents(200):
        by_name: dict[str, str] = {}
        for fact in sheet.facts:
            for name in fact.names:
                assert by_name.setdefault(name, fact.value) == fact.value


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_is_of_the_kind_that_was_asked_for(kind: str) -> None:
    begins = {"invoice": "an invoice", "receipt": "a receipt", "form": "a form", "list": "a list of fields"}[kind]
    assert all(sheet.caption.startswith(begins) for sheet in documents(20, kind=kind))


def test_windows_claim_only_what_is_wholly_in_them() -> None:
    kit = held_out_kit("windows")
    for draw in (window_sheet, poster_window_sheet):
        for _ in range(60):
            sheet = draw(kit, 200, 200)
            printed = "".join(chr(int(code) + 31) for *_, code in sheet.marks)
            for fact in sheet.facts:
                assert fact.value.replace(" ", "") in printed, fact
            assert sheet.text is None


def test_a_turned_page_keeps_all_its_ink_in_view() -> None:
    for number, sheet in enumerate(documents(20)):
        turned = tilted(sheet.ink, (-7.0, -5.0, 5.0, 7.0)[number % 4])
        assert turned.shape == sheet.ink.shape
        edge = np.concatenate([turned[0], turned[-1], turned[:, 0], turned[:, -1]])
        assert not edge.any()
        assert turned.sum() > 0.6 * sheet.ink.sum()


def test_blank_pages_and_unreadable_print_are_answered_as_such() -> None:
    kit = held_out_kit("blank")
    for _ in range(30):
        blank = blank_sheet(kit, 128, 128)
        assert {question.answer for question in blank.questions} <= {NOT_SHOWN, EMPTY}
        assert (blank.text, blank.caption) == (NO_TEXT, EMPTY)
        tiny = tiny_print_sheet(kit, 128, 128)
        assert {question.answer for question in tiny.questions} <= {NOT_SHOWN}
        assert tiny.type_px == (0, 0)


def test_type_is_no_smaller_than_asked_for() -> None:
    assert all(sheet.type_px[0] >= 14 for sheet in documents(60, text_px=(14, 24)))


def test_a_poster_bears_the_lines_that_were_ordered() -> None:
    ordered = [("Gate", "B12"), ("Platform", "7")]
    poster = draw_poster(held_out_kit("poster"), 900, 600, ordered, text_px=(20, 30))
    assert {(fact.names[0], fact.value) for fact in poster.facts} == {("gate", "B12"), ("platform", "7")}
    kit = held_out_kit("posters")
    for _ in range(40):
        sheet = poster_sheet(kit, 400, 300)
        for fact in sheet.facts:
            assert sheet.text is None or fact.value in sheet.text


def test_easy_pages_come_first_and_hard_ones_at_full_difficulty() -> None:
    def smallest(difficulty: float) -> int:
        kit = training_kit("difficulty", difficulty=difficulty)
        return min(document_sheet(kit, 400, 400).type_px[0] for _ in range(60))

    assert smallest(0.0) > smallest(1.0)
