"""Choosing tokens on a GPU: what the CPU chooses from the same logits, and never what a mask forbids."""

from __future__ import annotations

import time

import pytest
import torch

from zellige.kernels.sampling import Allowed, Controls, Draws, Edits, pick_tokens

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

R, V = 64, 151_936


def on(device: str, controls: Controls) -> Controls:
    d, e, a = controls.draws, controls.edits, controls.allowed
    return Controls(
        d and Draws(*(t.to(device) for t in vars(d).values())),
        e and Edits(*(t.to(device) for t in vars(e).values())),
        a and Allowed(*(t.to(device) for t in vars(a).values())),
        controls.top,
    )


def mixed(rows: int, tokens: int) -> Controls:
    """Greedy, warm, cut, masked and edited rows side by side."""
    g = torch.Generator().manual_seed(0)
    number = torch.arange(rows)
    draws = Draws(
        temperature=torch.where(number % 4 == 0, 0.0, 1.1),
        top_p=torch.where(number % 3 == 0, 0.8, 1.0),
        top_k=torch.where(number % 5 == 0, 20, 0),
        min_p=torch.where(number % 7 == 0, 0.01, 0.0),
        u=torch.rand(rows, dtype=torch.float64, generator=g),
        cut=number[(number % 4 > 0) & ((number % 3 == 0) | (number % 5 == 0))],
    )
    edits = Edits(
        number[::2], torch.randint(tokens, (len(number[::2]),), generator=g), torch.full((len(number[::2]),), 3.0)
    )
    words = torch.randint(-(2**31), 2**31 - 1, (len(number[1::2]), -(-tokens // 32)), generator=g, dtype=torch.int32)
    return Controls(draws, edits, Allowed(number[1::2], words), 5)


def test_a_gpu_chooses_what_the_cpu_chooses() -> None:
    """Peaked rows of a small vocabulary, where no rounding decides."""
    logits = torch.randn(512, 301, generator=torch.Generator().manual_seed(1)) * 4
    controls = mixed(512, 301)
    here, there = pick_tokens(logits, controls), pick_tokens(logits.cuda(), on("cuda", controls))
    assert (here.token != there.token.cpu()).sum() <= 1
    same = here.token == there.token.cpu()
    assert torch.allclose(here.logprob[same], there.logprob.cpu()[same], atol=1e-4)
    assert torch.equal(here.top_token, there.top_token.cpu())


def test_a_masked_token_is_never_chosen_from_a_large_vocabulary() -> None:
    controls = on("cuda", mixed(R, V))
    words = controls.allowed.bits
    for seed in range(20):
        torch.manual_seed(seed)
        token = pick_tokens(torch.randn(R, V, device="cuda"), controls).token[controls.allowed.row]
        word = words.gather(1, (token // 32).unsqueeze(1)).squeeze(1)
        assert bool((word >> (token % 32).int() & 1).all())


def test_a_nonfinite_row_leaves_the_others_as_they_were() -> None:
    controls = on("cuda", mixed(R, V))
    logits = torch.randn(R, V, device="cuda", dtype=torch.bfloat16)
    for asked in (controls, Controls()):
        good = pick_tokens(logits, asked)
        spoiled = logits.clone()
        spoiled[7, 100] = float("nan")
        picked = pick_tokens(spoiled, asked)
        rest = torch.arange(R, device="cuda") != 7
        assert picked.finite.tolist() == rest.tolist()
        assert torch.equal(picked.token[rest], good.token[rest])


def test_how_long_a_choice_takes() -> None:
    """Prints milliseconds for 64 rows of a real vocabulary; run with -s."""
    logits = torch.randn(R, V, device="cuda", dtype=torch.bfloat16)
    every = mixed(R, V)
    warm = Draws(*(t.cuda() for t in vars(every.draws).values() if t is not None))
    kinds = {
        "greedy": Controls(),
        "temperature": Controls(Draws(warm.temperature, warm.top_p, warm.top_k, warm.min_p, warm.u, warm.cut[:0])),
        "temperature, every row cut": Controls(
            Draws(warm.temperature, warm.top_p, warm.top_k, warm.min_p, warm.u, torch.arange(R, device="cuda"))
        ),
        "masked": Controls(allowed=on("cuda", every).allowed),
        "top 5": Controls(top=5),
    }
    for name, controls in kinds.items():
        for _ in range(3):
            pick_tokens(logits, controls)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(20):
            pick_tokens(logits, controls)
        torch.cuda.synchronize()
        took_ms = (time.perf_counter() - begin) / 20 * 1e3
        print(f"\n{name}: {took_ms:.3f} ms for {R} rows of {V}")
        assert took_ms < 20
