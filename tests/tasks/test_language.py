"""Which answers are certainly in another language than was asked for."""

from __future__ import annotations

import pytest

from zellige.tasks.job import Job, WrongUseError
from zellige.tasks.language import language_code, other_language


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Der Verkäufer ist die Müller GmbH", "de"),
        ("ein roter Kreis über einem blauen Quadrat", "de"),
        ("un cercle rouge au-dessus d'un carré bleu", "fr"),
        ("Een rode cirkel boven een blauw vierkant", "nl"),
        ("красный круг и синий квадрат", "ru"),
        ("一只红色的圆", "zh"),
        ("図の中に赤い丸があります", "ja"),
        ("سيارة حمراء في الشارع", "ar"),
    ],
)
def test_sentence_in_another_language_is_told_and_in_its_own_is_none(text: str, code: str) -> None:
    assert other_language(text, "en") == code
    assert other_language(text, code) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "no", "Blue", "12.50 EUR", "SPZ-4411", "Москва", "猫", "Müller GmbH", "Café Zürich", "pizza margherita"),
        *("a red circle", "two large green triangles", "a large yellow triangle above a small blue square"),
        *("invoice from Vrekon Talbim", "The vendor is Müller GmbH, Berlin", "Rue de la Paix 12, Paris"),
        "The invoice is from Société Générale de Banque, Paris.",
        'The sign says "Fahrräder müssen draußen bleiben".',
    ],
)
def test_english_names_amounts_and_what_is_too_short_are_let_through(text: str) -> None:
    assert other_language(text, "en") is None


def test_name_in_its_own_script_is_let_through_and_english_is_no_chinese() -> None:
    assert other_language("这是 iPhone 15 Pro", "zh") is None
    assert other_language("iPhone 15", "zh") is None
    assert other_language("a red circle above a blue square", "zh") == "en"


@pytest.mark.parametrize(
    ("text", "code"), [("en", "en"), ("EN", "en"), ("en-GB", "en"), ("pt_BR", "pt"), (" de ", "de")]
)
def test_code_is_taken_as_people_write_it(text: str, code: str) -> None:
    assert language_code(text) == code


@pytest.mark.parametrize("text", ["english", "", "xx", "zxx"])
def test_what_is_no_code_is_wrong_use_and_says_what_to_give(text: str) -> None:
    with pytest.raises(WrongUseError, match=r"^--language .*: no language .* give an ISO 639 code, such as en"):
        Job("caption", "answers", language=text)
