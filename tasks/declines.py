"""Declines: how models say that they will not answer, in the languages that they say it in. Pure.

That something is not to be seen on an image is an answer; what is looked for is a refusal to do what was asked.
"""

from __future__ import annotations

import re

#: A longer answer has more to say than that it is none.
LONGEST_CHARS = 400

#: By language: a word of regret, which may be left out; that one cannot; and what, as the stems of verbs.
_CANNOT = (
    (
        r"(?:i'm|i am|we're|we are) (?:\w+ )?sorry|sorry|unfortunately|i apologi[sz]e",
        r"(?:but )?(?:i (?:can't|cannot|can not|won't|must decline to)|(?:i'm|i am) (?:unable|not able) to)",
        r"assist|help(?! but\b)|comply|provide|fulfil|answer|process|analy[sz]e|identify|describe|discuss|do that",
    ),
    (
        r"(?:es )?tut mir leid|entschuldigung|leider",
        r"(?:aber )?(?:ich (?:kann|darf)|(?:dabei |das )?(?:kann|darf) ich) (?:[\w-]+ ){0,6}nicht",
        r"helfen|beantworten|beschreiben|identifizieren|unterstützen|weiterhelfen",
    ),
    (
        r"(?:je suis )?désolée?",
        r"(?:mais )?je ne (?:peux|puis) pas (?:vous )?",
        r"aider|répondre|identifier|décrire|fournir",
    ),
    (r"lo siento", r"(?:pero )?no puedo", r"ayudar|responder|identificar|describir|proporcionar"),
    (r"mi dispiace", r"(?:ma )?non posso", r"aiutar|rispondere|identificare|descrivere|fornire"),
    (r"sinto muito|desculpe", r"(?:mas )?não posso", r"ajudar|responder|identificar|descrever|fornecer"),
    (r"извините|простите|к сожалению", r"(?:но )?я не могу", r"помочь|ответить|описать|определить|предоставить"),
    (r"(?:很|非常)?(?:抱歉|对不起)", r"(?:但)?我?(?:无法|不能)", r"提供|回答|协助|帮助|识别|描述"),
    (r"申し訳(?:ありません|ございません)が", r".{0,30}", r"(?:でき|お答え|お手伝い).{0,10}(?:ません|かねます)"),
)
#: What a model says that it is, before it declines.
_AS_A_MODEL = (
    r"as an? (?:ai|artificial intelligence|(?:large )?language model)\b",
    r"als (?:eine? )?(?:ki|künstliche intelligenz|sprachmodell)\b",
    r"en tant qu'(?:ia|intelligence artificielle)\b",
    r"como (?:una? |um )?(?:ia|inteligencia artificial|inteligência artificial|modelo de (?:lenguaje|linguagem))\b",
    r"作为(?:一个|一名)?(?:ai|人工智能)",
)
_PATTERN = re.compile(
    "|".join(
        (*(f"(?:(?:{regret})[,.,。、]? ?)?(?:{cannot}) ?(?:{acts})" for regret, cannot, acts in _CANNOT), *_AS_A_MODEL)
    )
)


def declines(text: str) -> bool:
    """Whether a short answer begins with a refusal to answer."""
    said = " ".join(text.lower().replace("’", "'").split())
    return len(said) <= LONGEST_CHARS and _PATTERN.match(said) is not None
