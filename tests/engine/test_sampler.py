"""What one request asks of a step: its numbers, its edits, its stop tokens, its loops."""

from __future__ import annotations

import math

import pytest
import torch

from zellige.engine.api import Sampling
from zellige.engine.sampler import RequestSampler, StepControls, repeats
from zellige.kernels.sampling import pick_tokens

CPU = torch.device("cpu")
SEEDS = [0, 1, -1, 7, -7, 2**31 - 1, 2**32, 2**63 - 1, -(2**63), 10**30]


def tokens(sampling: Sampling, beside: int = 0) -> list[int]:
    """Twenty tokens of one request from the same logits, with so many others in the batch."""
    logits = torch.randn(20, 64, generator=torch.Generator().manual_seed(1))
    mine = RequestSampler(sampling, frozenset())
    others = [RequestSampler(Sampling(temperature=1.3, seed=i, top_p=0.8), frozenset()) for i in range(beside)]
    chosen = []
    for place in range(20):
        rows = torch.cat([logits[place : place + 1], torch.randn(beside, 64)])
        controls = StepControls([s.row(place) for s in (mine, *others)]).on(CPU)
        chosen.append(int(pick_tokens(rows, controls).token[0]))
    return chosen


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_draws_the_same_alone_and_beside_others(seed: int) -> None:
    sampling = Sampling(temperature=0.9, seed=seed)
    assert tokens(sampling) == tokens(sampling) == tokens(sampling, beside=5)


def test_every_seed_draws_its_own_numbers() -> None:
    assert len({tuple(tokens(Sampling(temperature=1.5, seed=s))) for s in SEEDS}) == len(SEEDS)


def test_without_a_seed_two_answers_differ() -> None:
    assert tokens(Sampling(temperature=2.0)) != tokens(Sampling(temperature=2.0))


def test_a_place_has_its_number_whatever_was_drawn_before() -> None:
    """A request that was computed again after giving way, or after a restart, goes on as it would have."""
    sampling = Sampling(temperature=1.0, seed=3)
    went_on, fresh = RequestSampler(sampling, frozenset()), RequestSampler(sampling, frozenset())
    drawn = [went_on.row(i).u for i in range(50)]
    assert fresh.row(49).u == drawn[49]
    assert len(set(drawn)) == 50
    assert all(0 <= u < 1 for u in drawn)


def test_uniform_numbers_are_uniform() -> None:
    sampler = RequestSampler(Sampling(temperature=1.0, seed=11), frozenset())
    u = torch.tensor([sampler.row(i).u for i in range(5000)], dtype=torch.float64)
    shares = torch.histc(u, bins=20, min=0, max=1) / 5000
    assert float((shares - 0.05).abs().max()) < 0.012  # four standard deviations


def test_penalties_fall_on_generated_tokens_and_add_to_the_bias() -> None:
    sampling = Sampling(frequency_penalty=0.5, presence_penalty=0.25, logit_bias=((3, 4.0), (9, -1.0)))
    sampler = RequestSampler(sampling, frozenset())
    for token in (3, 5, 3):
        sampler.count(token)
    assert sampler.row(3).edits == {3: 4.0 - 0.25 - 2 * 0.5, 5: -0.25 - 0.5, 9: -1.0}


def test_a_bias_decides_and_a_penalty_breaks_a_tie() -> None:
    sampler = RequestSampler(Sampling(presence_penalty=0.1, logit_bias=((2, 5.0),)), frozenset())
    logits = torch.tensor([[1.0, 1.0, -4.0, -50.0]])
    assert int(pick_tokens(logits, StepControls([sampler.row(0)]).on(CPU)).token) == 0
    sampler.count(0)
    assert int(pick_tokens(logits, StepControls([sampler.row(1)]).on(CPU)).token) == 1


def test_no_stop_token_is_chosen_before_min_tokens_whatever_its_bias() -> None:
    sampler = RequestSampler(Sampling(min_tokens=2, stop_token_ids=(1,), logit_bias=((1, 100.0),)), frozenset({0}))
    logits = torch.tensor([[9.0, 8.0, 1.0]])
    chosen = [int(pick_tokens(logits, StepControls([sampler.row(i)]).on(CPU)).token) for i in range(3)]
    assert chosen == [2, 2, 1]
    assert sampler.row(0).edits == {0: -math.inf, 1: -math.inf}


def test_ordinary_greedy_rows_need_nothing_on_the_device() -> None:
    controls = StepControls([RequestSampler(Sampling(top_p=0.5, top_k=4), frozenset({0})).row(0)] * 3).on(CPU)
    assert (controls.draws, controls.edits, controls.allowed, controls.top) == (None, None, None, 0)


def test_loops_are_seen_and_ordinary_repetition_is_not() -> None:
    assert repeats([5] * 24)
    assert repeats([9, *[1, 2, 3, 4, 5, 6, 7, 8] * 3])
    assert repeats([*range(100), *list(range(200)) * 3])
    assert repeats([7, *list(range(256)) * 3])
    assert not repeats([7, *list(range(257)) * 3])
    assert not repeats([1, 0, 0, 0, 0, 0, 0])
    assert not repeats([*[1, 2, 3, 4, 5, 6, 7, 8] * 2, 1, 2, 3])
    assert not repeats([])
