"""Training and evaluation never draw with the same words, wordings or families; neither draws an offensive word."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator

import pytest

from zellige.data.samples import contents, fields, questions, scenes, values
from zellige.data.samples.documents import document_sheet, window_sheet
from zellige.data.samples.fonts import FAMILIES, find_faces
from zellige.data.samples.kit import Kit, held_out_kit, training_kit
from zellige.data.samples.lines import _cut_clean, draw_text
from zellige.data.samples.posters import poster_sheet
from zellige.data.samples.questions import SPECIAL, Wording, ask_field
from zellige.data.samples.words import (
    HELD_OUT_WORDS,
    LISTED,
    TRAINING_WORDS,
    blocked_stems,
    is_clean,
    is_held_out,
    made_up_word,
)

WORDINGS = [value for value in vars(questions).values() if isinstance(value, Wording)]


def seen_anyway() -> set[str]:
    """Every word that both sides print or ask with: labels, names, goods, titles, wordings of questions."""
    texts = [
        *values.FIRST_NAMES, *values.LAST_NAMES, *values.COMPANY_ENDINGS, *values.STREETS, *values.ITEMS,
        *values.MONTHS, *values.COUNTRIES, *values.TERMS, *values.POSITIONS, *values.PAYMENTS,
        *fields.LABELS, *contents.KIND_NAMES.values(), *contents._FORM_TITLES, *contents._FAREWELLS,
        *scenes.COLOURS, *scenes.SHAPES, *scenes.SIZES, *scenes.PLACES, "part of a document",
    ]  # fmt: skip
    for field in fields.FIELDS.values():
        texts += [*field.labels, *field.names]
    for wording in WORDINGS:
        texts += [wording.usual, *wording.training, *wording.held_out]
    texts += [text for pairs in SPECIAL.values() for side in pairs for text in side]
    return {word for text in texts for word in words_of(text)}


def words_of(text: str) -> list[str]:
    return [word.lower() for word in re.findall("[A-Za-z]+", text)]


def texts(kit: Kit, count: int) -> Iterator[str]:
    """All that a kit writes on sheets and in questions."""
    for number in range(count):
        text_px = (8, 20)
        sheets = [
            document_sheet(kit, 400, 400, text_px=text_px),
            poster_sheet(kit, 400, 300, text_px=text_px),
            draw_text(kit, 160, 120, lines=4, text_px=text_px),
        ]
        if number % 4 == 0:
            sheets.append(window_sheet(kit, 200, 200, text_px=text_px))
        for sheet in sheets:
            yield sheet.text or ""
            yield from (f"{question.text}\n{question.answer}" for question in sheet.questions)
            yield from (fact.value for fact in sheet.facts)


def plain(question: str) -> str:
    return question.lower().strip(" .?!:")


def test_listed_words_are_on_one_side_or_printed_on_both() -> None:
    assert not set(TRAINING_WORDS) & set(HELD_OUT_WORDS)
    assert set(LISTED) - set(TRAINING_WORDS) - set(HELD_OUT_WORDS) <= seen_anyway()
    assert len(HELD_OUT_WORDS) > 80


def test_no_held_out_word_is_a_label_a_name_or_goods() -> None:
    assert not set(HELD_OUT_WORDS) & seen_anyway()


@pytest.mark.parametrize("held_out", [False, True])
def test_a_kit_draws_words_of_its_side_alone(held_out: bool) -> None:
    kit = held_out_kit("words") if held_out else training_kit("words")
    drawn = {kit.word() for _ in range(4000)}
    assert len(drawn) > 500
    assert {is_held_out(word) for word in drawn} == {held_out}
    assert not drawn & set(TRAINING_WORDS if held_out else HELD_OUT_WORDS)


def test_training_prints_no_held_out_word() -> None:
    written = {word for text in texts(training_kit("printed"), 60) for word in words_of(text)}
    assert len(written & set(TRAINING_WORDS)) > 300
    assert written.isdisjoint(HELD_OUT_WORDS), written.intersection(HELD_OUT_WORDS)


@pytest.mark.parametrize("kit", [training_kit("clean"), held_out_kit("clean")], ids=["training", "held out"])
def test_no_offensive_word_is_ever_printed(kit: Kit) -> None:
    """A stem may only be part of an ordinary word that stands there whole."""
    written = {word for text in texts(kit, 120) for word in words_of(text)}
    assert len(written) > 1000
    unclean = {word for word in written if not is_clean(word)}
    assert unclean <= set(LISTED) | seen_anyway()


def test_no_word_is_cut_down_to_an_offensive_one() -> None:
    for word in LISTED:
        for length in range(1, len(word)):
            assert is_clean(_cut_clean(f"ice {word[:length]}").removeprefix("ice").strip())


def test_made_up_words_are_clean_and_can_be_blocked() -> None:
    rng = random.Random(1)
    assert all(is_clean(made_up_word(rng)) for _ in range(5000))
    assert len(blocked_stems()) > 100
    assert not is_clean(f"x{sorted(blocked_stems())[0]}y")


def test_no_listed_word_is_itself_offensive() -> None:
    assert not set(LISTED) & blocked_stems()


@pytest.mark.parametrize("wording", WORDINGS, ids=lambda wording: wording.usual)
def test_held_out_wordings_are_never_used_in_training(wording: Wording) -> None:
    trained = {plain(text) for text in (wording.usual, *wording.training)}
    assert not trained & {plain(text) for text in wording.held_out}


def test_held_out_questions_without_the_name_are_never_used_in_training() -> None:
    trained = {plain(text) for pairs in SPECIAL.values() for text in pairs[0]}
    assert not trained & {plain(text) for pairs in SPECIAL.values() for text in pairs[1]}


def asked(kit: Kit, key: str) -> set[str]:
    return {plain(ask_field(kit, key, ("qqq",))).replace("qqq", "{}") for _ in range(2000)}


@pytest.mark.parametrize("key", ["label", "total", "item"])
def test_a_kit_asks_in_the_wordings_of_its_side_alone(key: str) -> None:
    def wordings(texts: Iterable[str]) -> set[str]:
        return {plain(text) for text in texts}

    special = SPECIAL.get(key, ((), ()))
    trained = wordings((questions.FIELD.usual, *questions.FIELD.training, *special[0]))
    kept = wordings((*questions.FIELD.held_out, *special[1]))
    assert asked(training_kit("asks"), key) <= trained
    assert asked(held_out_kit("asks", phrases=True), key) <= kept


def test_held_out_families_are_drawn_with_only_when_asked_for() -> None:
    kept = {family.name for family in FAMILIES if family.held_out}
    assert not kept & {face.family for face in find_faces(held_out=False)}
    assert {face.family for face in find_faces(held_out=True)} <= kept
    assert all(family.licence for family in FAMILIES)


def test_kits_of_both_sides_draw_other_numbers_from_the_same_seed() -> None:
    assert training_kit("one").rng.random() != held_out_kit("one").rng.random()
    assert training_kit("one").rng.random() == training_kit("one").rng.random()
