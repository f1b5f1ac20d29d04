"""Choosing tokens from logits, judged by the processors of transformers and by the formulas themselves."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from zellige.kernels.sampling import Allowed, Controls, Draws, Edits, distribution, pick_tokens


def draws_for(rows: int, u: torch.Tensor | None = None, **settings: float) -> Draws:
    """The same settings in every row."""
    asked = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, **settings}
    cut = rows if asked["top_p"] < 1 or asked["top_k"] else 0
    return Draws(
        temperature=torch.full((rows,), asked["temperature"]),
        top_p=torch.full((rows,), asked["top_p"]),
        top_k=torch.full((rows,), int(asked["top_k"])),
        min_p=torch.full((rows,), asked["min_p"]),
        u=torch.full((rows,), 0.5, dtype=torch.float64) if u is None else u,
        cut=torch.arange(cut),
    )


def drawn(p: list[float], n: int, **settings: float) -> torch.Tensor:
    """Shares of the tokens over ``n`` evenly spread draws from probabilities ``p``."""
    u = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    picked = pick_tokens(torch.tensor(p).log().expand(n, -1), Controls(draws_for(n, u, **settings)))
    return torch.bincount(picked.token, minlength=len(p)) / n


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.3},
        {"temperature": 1.7},
        {"top_k": 1},
        {"top_k": 7},
        {"top_k": 10_000},
        {"top_p": 0.6},
        {"top_p": 1e-6},
        {"min_p": 0.2},
        {"min_p": 1.0},
        {"temperature": 0.7, "top_k": 40, "top_p": 0.8},
        {"temperature": 1.4, "top_k": 90, "top_p": 0.95, "min_p": 0.05},
    ],
)
def test_what_is_drawn_from_is_what_transformers_draws_from(settings: dict[str, Any]) -> None:
    logits = torch.randn(30, 301, generator=torch.Generator().manual_seed(0)) * 3
    theirs = LogitsProcessorList([TemperatureLogitsWarper(float(settings.get("temperature", 1.0)))])
    if "top_k" in settings:
        theirs.append(TopKLogitsWarper(settings["top_k"]))
    if "top_p" in settings:
        theirs.append(TopPLogitsWarper(settings["top_p"]))
    if "min_p" in settings:
        theirs.append(MinPLogitsWarper(settings["min_p"]))
    want = torch.softmax(theirs(None, logits.clone()), dim=-1)
    p = distribution(logits, draws_for(30, **settings))
    assert torch.equal(p > 0, want > 0)
    assert torch.allclose(p / p.sum(-1, keepdim=True), want, atol=1e-6)


def test_draws_follow_the_distribution() -> None:
    p = [0.1, 0.5, 0.15, 0.25]
    assert torch.allclose(drawn(p, 4000), torch.tensor(p), atol=1e-3)


def test_a_flat_row_of_a_large_vocabulary_is_drawn_evenly() -> None:
    """Where a float32 running sum would give some tokens twice their share and others none."""
    V = 1 << 17
    u = (torch.arange(64, dtype=torch.float64) * 2 + 0.5) / V + 0.99
    picked = pick_tokens(torch.zeros(64, V), Controls(draws_for(64, u)))
    assert picked.token.tolist() == [math.floor(x * V) for x in u.tolist()]


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    assert torch.allclose(drawn([0.1, 0.5, 0.15, 0.25], 3000, top_p=0.7), torch.tensor([0, 2 / 3, 0, 1 / 3]), atol=1e-3)


def test_of_equal_tokens_top_k_keeps_the_first() -> None:
    assert torch.allclose(drawn([0.2, 0.3, 0.2, 0.3], 3000, top_k=3), torch.tensor([2 / 8, 3 / 8, 0, 3 / 8]), atol=1e-3)


@pytest.mark.parametrize("temperature", [1e-6, 1e-38])
def test_a_tiny_temperature_is_greedy_and_finite(temperature: float) -> None:
    assert drawn([0.1, 0.5, 0.15, 0.25], 100, temperature=temperature)[1] == 1


@pytest.mark.parametrize("u", [0.0, 1 - 2.0**-53])
def test_the_ends_of_the_unit_interval_draw_a_token_that_is_allowed(u: float) -> None:
    logits = torch.randn(5, 200)
    bits = torch.zeros(5, 7, dtype=torch.int32)
    bits[:, 2] = -(1 << 31)  # token 95 alone
    controls = Controls(draws_for(5, torch.full((5,), u, dtype=torch.float64)), None, Allowed(torch.arange(5), bits))
    assert pick_tokens(logits, controls).token.tolist() == [95] * 5


def test_a_greedy_row_in_a_mixed_batch_stays_greedy() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [0.0, 3.0, 1.0]])
    d = draws_for(2, torch.full((2,), 0.99, dtype=torch.float64), temperature=5.0)
    d.temperature[0] = 0
    assert pick_tokens(logits, Controls(d)).token.tolist() == [1, 2]


def test_a_row_draws_the_same_whether_or_not_its_neighbours_are_cut() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(200, 64, generator=generator)
    u = torch.rand(200, dtype=torch.float64, generator=generator)
    alone = pick_tokens(logits, Controls(draws_for(200, u)))
    d = draws_for(200, u)
    d.top_p[1::2], d.top_k[1::4] = 0.5, 3
    beside = pick_tokens(logits, Controls(Draws(d.temperature, d.top_p, d.top_k, d.min_p, u, torch.arange(1, 200, 2))))
    assert torch.equal(alone.token[::2], beside.token[::2])


def test_edits_are_added_and_forbidden_tokens_never_chosen() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    before = logits.clone()
    edits = Edits(torch.tensor([0, 1]), torch.tensor([0, 2]), torch.tensor([2.5, -math.inf]))
    picked = pick_tokens(logits, Controls(edits=edits))
    assert picked.token.tolist() == [0, 1]
    assert torch.equal(logits, before)
    assert torch.allclose(picked.logprob, torch.log_softmax(before, -1)[[0, 1], [0, 1]]), "the model's own probability"


def test_a_mask_holds_for_its_row_and_past_its_last_word_nothing_is_allowed() -> None:
    logits = torch.zeros(3, 70)
    logits[:, 69] = 9
    logits[:, 31] = 5
    logits[:, 40] = 4
    bits = torch.full((1, 2), -1, dtype=torch.int32)
    bits[0, 0] = 0x7FFFFFFF  # all of the first 64 tokens but 31
    picked = pick_tokens(logits, Controls(allowed=Allowed(torch.tensor([1]), bits)))
    assert picked.token.tolist() == [69, 40, 69]


def test_logprobs_are_of_the_models_own_distribution_the_likeliest_first() -> None:
    logits = torch.randn(5, 40)
    picked = pick_tokens(logits, Controls(top=4))
    want = torch.log_softmax(logits.double(), -1)
    assert torch.equal(picked.token, want.argmax(-1))
    assert torch.allclose(picked.logprob.double(), want.amax(-1), atol=1e-5)
    assert torch.equal(picked.top_token, want.topk(4).indices)
    assert torch.allclose(picked.top_logprob.double(), want.topk(4).values, atol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [slice(None), slice(17, 18)])
def test_a_nonfinite_row_is_marked_and_the_others_are_bit_identical(
    temperature: float, bad: float, where: slice
) -> None:
    logits = torch.randn(4, 50)
    controls = Controls(draws_for(4, torch.rand(4, dtype=torch.float64), temperature=temperature, top_p=0.9), top=3)
    good = pick_tokens(logits, controls)
    logits[2, where] = bad
    picked = pick_tokens(logits, controls)
    assert picked.finite.tolist() == [True, True, False, True]
    assert 0 <= int(picked.token[2]) < 50
    rest = [0, 1, 3]
    for name in ("token", "logprob", "top_token", "top_logprob"):
        assert torch.equal(getattr(picked, name)[rest], getattr(good, name)[rest])
