"""How one image and its questions become a fixed row of token ids.

The text after the image is cut into slots, one question and its answer each; every slot sees the image and itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from zellige.data.samples.questions import Question
from zellige.engine.demo.grids import Kind

#: Tokens before the image: "<|im_start|>user\n<|vision_start|>".
PREFIX = "<|im_start|>user\n<|vision_start|>"
PREFIX_TOKENS = 4

#: Tokens of each slot. The first slot of a document reads the whole text, that of a scene captions it.
SLOTS: dict[Kind, tuple[int, ...]] = {
    "document": (236, 44, 44, 44, 44),
    "paragraph": (152,),
    "line": (60, 36),
    "scene": (64, 32, 32, 32),
}


def question_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens between the image and the answer."""
    prompt = f"<|vision_end|>{text}<|im_end|>\n<|im_start|>assistant\n"
    ids: list[int] = tokenizer.encode(prompt, add_special_tokens=False).ids
    return ids


def answer_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False).ids
    return ids


def prefix_tokens(tokenizer: Tokenizer) -> list[int]:
    ids: list[int] = tokenizer.encode(PREFIX, add_special_tokens=False).ids
    if len(ids) != PREFIX_TOKENS:
        raise ValueError(f"the tokenizer cuts {PREFIX!r} into {len(ids)} tokens, not {PREFIX_TOKENS}")
    return ids


def pack(
    tokenizer: Tokenizer,
    kind: Kind,
    questions: Sequence[Question | None],
    ids: NDArray[np.int16],
    answers: NDArray[np.uint8],
) -> None:
    """Write one row: token ids, and 1 where a token belongs to an answer. What is too long for its slot is left out."""
    start = 0
    for slot, question in zip(SLOTS[kind], questions, strict=False):
        if question is not None:
            asked = question_tokens(tokenizer, question.text)
            tokens = asked + answer_tokens(tokenizer, question.answer)
            if len(tokens) <= slot:
                ids[start : start + len(tokens)] = tokens
                answers[start + len(asked) : start + len(tokens)] = 1
        start += slot
