"""Second tries: how a question is asked again whose answer was refused, rung after rung. Pure.

A page that lies on its side is asked about once more too, turned: its views come with the others
(``data/views.py``), since the answer that it gives as it lies is seldom refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from zellige.data.schema import ErrorKind
from zellige.data.views import halved
from zellige.engine.api import Answer, ImagePart, Message, Part, Request

#: Asking greedily again would give the same answer again: the warmer rung samples at least so, with a fixed seed.
WARMER_TEMPERATURE = 0.5
#: Which refused answer is kept where none was good, the best first: one cut off is good as far as it goes.
_BEST_FIRST = (ErrorKind.LENGTH, ErrorKind.INVALID_OUTPUT, ErrorKind.REPETITION)


@dataclass(frozen=True)
class Rung:
    """One way to ask again: what it makes of the first request, and in words."""

    told: str
    of: Callable[[Request], Request]


def _warmer(first: Request) -> Request:
    sampling = first.sampling
    temperature = max(sampling.temperature, WARMER_TEMPERATURE)
    return replace(first, sampling=replace(sampling, temperature=temperature, seed=(sampling.seed or 0) + 1))


def _smaller(first: Request) -> Request:
    return replace(first, messages=tuple(map(_with_halved_images, first.messages)))


def _with_halved_images(message: Message) -> Message:
    return replace(message, parts=tuple(map(_halved, message.parts)))


def _halved(part: Part) -> Part:
    return replace(part, pixels=halved(part.pixels)) if isinstance(part, ImagePart) else part


#: In this order, each once at most: ``--second-tries`` says how many of them.
LADDER = (Rung("sampled warmer", _warmer), Rung("shown at half the pixels", _smaller))


def worth(answer: Answer | None, kind: ErrorKind | None) -> tuple[bool, bool, bool, int]:
    """Sorts what came back for one question, the best last: good answers, refused ones that say something, none."""
    place = _BEST_FIRST.index(kind) if kind in _BEST_FIRST else len(_BEST_FIRST)
    return kind is None, answer is not None, answer is not None and bool(answer.text.strip()), -place
