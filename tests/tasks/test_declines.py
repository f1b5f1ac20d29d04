"""Refusals to answer, and answers that only look like them."""

from __future__ import annotations

import pytest

from zellige.tasks.declines import LONGEST_CHARS, declines


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't assist with that.",
        "I’m really sorry, but I can’t help with identifying people.",
        "I cannot provide information about this person.",
        "Sorry, I'm unable to answer that.",
        "Unfortunately, I am not able to process this image.",
        "As an AI language model, I have no eyes.",
        "Es tut mir leid, aber ich kann dabei nicht helfen.",
        "Leider kann ich diese Frage nicht beantworten.",
        "Désolé, je ne peux pas vous aider.",
        "Lo siento, pero no puedo ayudar con eso.",
        "Mi dispiace, ma non posso aiutarti.",
        "Desculpe, mas não posso ajudar com isso.",
        "К сожалению, я не могу ответить на этот вопрос.",
        "很抱歉,我无法提供这个信息。",
        "对不起,我不能回答这个问题。",
        "申し訳ありませんが、そのリクエストにはお答えできません。",
    ],
)
def test_refusal_to_answer_is_told(text: str) -> None:
    assert declines(text)
    assert declines(f"\n {text}")


@pytest.mark.parametrize(
    "text",
    [
        "I can't help but notice a red circle.",
        "I cannot see a total on this receipt.",
        "I'm sorry, but there is no vendor on the image.",
        "Sorry we are closed",
        "The sign says \"I'm sorry, but I can't help\".",
        "Unfortunately, the total is cut off.",
        "not shown",
        "Leider geschlossen",
        "抱歉,今日休息",
        "As an airport, it is small.",
        "",
    ],
)
def test_answer_is_no_refusal(text: str) -> None:
    assert not declines(text)


def test_long_answer_has_more_to_say() -> None:
    assert not declines("I'm sorry, but I can't identify people. " + "Here is what I see. " * (LONGEST_CHARS // 20))
