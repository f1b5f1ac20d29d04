"""What a generator draws with: random numbers, words, wording and faces, all of one side of the training split."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from zellige.data.samples import words
from zellige.data.samples.fonts import Face, find_faces
from zellige.data.samples.glyphs import Font, load_font

T = TypeVar("T")


@dataclass(frozen=True)
class Kit:
    """Random numbers and what they may choose from.

    ``difficulty`` 0..1 shortens texts and enlarges type at the beginning of training; 1 is the real distribution.
    """

    rng: random.Random
    faces: tuple[Face, ...]
    held_out_words: bool = False
    held_out_phrases: bool = False
    difficulty: float = 1.0

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def pick(self, choices: Sequence[T]) -> T:
        return self.rng.choice(choices)

    def word(self) -> str:
        return words.word(self.rng, self.held_out_words)

    def name(self) -> str:
        """A word with a capital letter."""
        return self.word().capitalize()

    def font(self, size: int) -> Font:
        return load_font(self.pick(self.faces), size)


def training_kit(seed: str, *, difficulty: float = 1.0, fonts: Path | None = None) -> Kit:
    """A kit for training; no held-out kit has the same stream of random numbers, words, phrases or faces."""
    return Kit(random.Random(f"training/{seed}"), find_faces(False, fonts), difficulty=difficulty)


def held_out_kit(seed: str, *, phrases: bool = False, faces: bool = False) -> Kit:
    """A kit for evaluation: held-out words always, held-out phrases and faces where asked.

    Raises FileNotFoundError when held-out faces are asked for and this machine has none of them.
    """
    found = find_faces(faces)
    if not found:
        raise FileNotFoundError("no held-out font is installed; `pip install font-lato` brings one")
    return Kit(random.Random(f"held-out/{seed}"), found, held_out_words=True, held_out_phrases=phrases)
