"""Language: whether an answer is in another one than was asked for, by py3langid."""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Any

#: What is shorter is let through, in letters: names, amounts and single words belong to many languages.
LEAST_LETTERS = 12
#: So many times as likely another language has to be: foreign names in an answer reach some 300.
TIMES_AS_LIKELY = 500
#: The label of text that is in no language.
_NONE = "zxx"
#: A Chinese character, a Japanese or Korean syllable says as much as so many letters.
_LETTERS_A_SIGN = 3
#: Print that an answer quotes may be in any language.
_QUOTED = re.compile(r'"[^"]*"|“[^”]*”|„[^“”]*[“”]|«[^»]*»|「[^」]*」')


def language_code(text: str) -> str:
    """The code of a language as ``other_language`` takes it: ``en`` for ``EN`` and ``en-GB``; raises ValueError."""
    code = re.split("[-_]", text.strip().lower())[0]
    if code == _NONE or code not in set(map(str, _identifier().labels)):
        raise ValueError("no language that can be told; give an ISO 639 code, such as en, de or zh")
    return code


def other_language(text: str, wanted: str) -> str | None:
    """The code of the language that ``text`` is in where it is certainly not ``wanted``; None where it may be."""
    own = _QUOTED.sub(" ", text)
    if _letters(own) < LEAST_LETTERS:
        return None
    ranked = [(str(code), float(share)) for code, share in _identifier().rank(own)]
    likeliest, share = ranked[0]
    return likeliest if likeliest != _NONE and share >= TIMES_AS_LIKELY * dict(ranked)[wanted] else None


def _letters(text: str) -> int:
    signs = sum(unicodedata.name(c, "").startswith(("CJK", "HIRAGANA", "KATAKANA", "HANGUL")) for c in text)
    return sum(c.isalpha() for c in text) + (_LETTERS_A_SIGN - 1) * signs


@functools.cache
def _identifier() -> Any:
    """The model of 140 languages, whose shares sum to 1: half a second to load."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
