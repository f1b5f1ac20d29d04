from __future__ import annotations

import math

import pytest
import torch

from zellige.engine.api import RequestRejected, Sampling
from zellige.engine.sampler import RequestSampler, draws, repeats
from zellige.kernels.sampling import Draws, pick_tokens


def drawn(p: list[float], n: int, temperature: float = 1.0, top_p: float = 1.0, min_p: float = 0.0) -> torch.Tensor:
    """Shares of the tokens over ``n`` evenly spread draws from probabilities ``p``."""
    rows = torch.tensor(p).log().expand(n, -1)
    fill = [torch.full((n,), v) for v in (temperature, top_p, min_p)]
    u = (torch.arange(n) + 0.5) / n
    picked = pick_tokens(rows, Draws(*fill, u))
    return torch.bincount(picked.token, minlength=len(p)) / n


def test_draws_follow_the_distribution() -> None:
    p = [0.1, 0.5, 0.15, 0.25]
    assert torch.allclose(drawn(p, 4000), torch.tensor(p), atol=1e-3)


def test_temperature_sharpens_by_the_power_of_its_inverse() -> None:
    p = torch.tensor([0.2, 0.5, 0.3])
    want = p**2 / (p**2).sum()
    assert torch.allclose(drawn(p.tolist(), 4000, temperature=0.5), want, atol=1e-3)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    assert torch.allclose(drawn([0.1, 0.5, 0.15, 0.25], 3000, top_p=0.7), torch.tensor([0, 2 / 3, 0, 1 / 3]), atol=1e-3)


def test_min_p_drops_what_is_far_below_the_best() -> None:
    assert torch.allclose(drawn([0.1, 0.5, 0.15, 0.25], 3000, min_p=0.4), torch.tensor([0, 2 / 3, 0, 1 / 3]), atol=1e-3)


@pytest.mark.parametrize("temperature", [1e-6, 1e-38])
def test_a_tiny_temperature_is_greedy_and_finite(temperature: float) -> None:
    assert drawn([0.1, 0.5, 0.15, 0.25], 100, temperature=temperature)[1] == 1


def test_a_greedy_row_in_a_mixed_batch_stays_greedy() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [0.0, 3.0, 1.0]])
    d = Draws(torch.tensor([0.0, 5.0]), torch.ones(2), torch.zeros(2), torch.tensor([0.99, 0.99]))
    assert pick_tokens(logits, d).token.tolist() == [1, 0]


def test_logprob_is_of_the_models_own_distribution() -> None:
    logits = torch.randn(5, 40)
    picked = pick_tokens(logits, None)
    want = torch.log_softmax(logits.double(), -1).max(-1)
    assert torch.equal(picked.token, want.indices)
    assert torch.allclose(picked.logprob.double(), want.values, atol=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_nonfinite_row_is_marked_and_no_other(bad: float) -> None:
    logits = torch.randn(4, 50)
    logits[2, 17] = bad
    assert pick_tokens(logits, None).finite.tolist() == [True, True, False, True]


def test_the_same_seed_draws_the_same_alone_and_beside_others() -> None:
    logits = torch.randn(20, 64)
    sampling = Sampling(temperature=0.9, seed=7)

    def tokens(beside: int) -> list[int]:
        mine = RequestSampler(sampling, frozenset())
        others = [RequestSampler(Sampling(temperature=1.3, seed=i), frozenset()) for i in range(beside)]
        out = []
        for step in range(20):
            rows = torch.cat([logits[step : step + 1], torch.randn(beside, 64)])
            out.append(int(pick_tokens(rows, draws([mine, *others], torch.device("cpu"))).token[0]))
        return out

    assert tokens(0) == tokens(5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("temperature", math.nan),
        ("temperature", -1),
        ("top_p", 0),
        ("stop", ("",)),
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(RequestRejected, match=field.split("_")[0]):
        Sampling(**{field: value})


def test_loops_are_seen_and_ordinary_repetition_is_not() -> None:
    assert repeats([5] * 24)
    assert repeats([9, *[1, 2, 3, 4, 5, 6, 7, 8] * 3])
    assert repeats([*range(100), *list(range(200)) * 3])
    assert not repeats([1, 0, 0, 0, 0, 0, 0])
    assert not repeats([*[1, 2, 3, 4, 5, 6, 7, 8] * 2, 1, 2, 3])
    assert not repeats([])
