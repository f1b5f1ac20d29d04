"""How a step's sequences are laid out for the operators."""

from __future__ import annotations

from typing import Any

import pytest

from zellige.engine.batching import runs
from zellige.engine.scheduler import Chunk, Sequence
from zellige.kernels.paged_attention import Run


def generating(*blocks: list[int]) -> list[Chunk]:
    prompt: Any = None  # the layout of generating sequences does not look at their prompts
    return [Chunk(Sequence(str(i), prompt, [0], 1, 0, list(b)), 0, 1) for i, b in enumerate(blocks)]


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([], ()),
        ([[3]], (Run(0, 1, 3),)),
        ([[3], [4], [5]], (Run(0, 3, 3),)),
        ([[3], [5], [6], [9]], (Run(0, 1, 3), Run(1, 3, 5), Run(3, 4, 9))),
        ([[3], [4], [5, 6], [7, 9]], (Run(0, 2, 3), Run(2, 4, None))),
        ([[5, 6], [7, 8]], (Run(0, 2, None),)),
    ],
)
def test_neighbours_in_the_cache_are_one_run_and_longer_sequences_are_gathered(blocks, expected):
    assert runs(generating(*blocks)) == expected
