"""The likeliest token of each row, its log-probability, and whether the row is finite: in one pass over the vocabulary.

    token = argmax(x), the lowest of equals;  logprob = x[token] − log Σ e^x;  finite: no NaN or infinity in x

R rows, V vocabulary, pieces of CHUNK tokens. With m the largest of a piece and S = Σ e^(x − m) in it, two pieces join
to the larger m and S = S₁·e^(m₁ − m) + S₂·e^(m₂ − m). A row that is not finite gets token 0 and log-probability NaN.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zellige.kernels.contract import Empty, Operator, noise, tolerances
from zellige.kernels.meter import METER
from zellige.kernels.tiles import power_of_two, rows_of
from zellige.kernels.tritonic import jit, tl

CHUNK = 4096


def greedy_reference(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The formula, in float32."""
    x = logits.float()
    finite = torch.isfinite(x).all(dim=-1)
    peak = x.amax(dim=-1, keepdim=True)
    token = (x == peak).int().argmax(dim=-1).masked_fill(~finite, 0)
    logprob = -(x - peak).exp().sum(dim=-1).log()
    return token, logprob.masked_fill(~finite, torch.nan), finite


@jit
def _pieces_kernel(logits, peaks, tokens, sums, stride, V, pieces, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One piece of one row: its largest value and where it is, and its sum; NaN where anything is not finite."""
    pid = tl.program_id(0)
    row, piece = (pid // pieces).to(tl.int64), pid % pieces
    col = piece * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * stride + col, mask=col < V, other=float("-inf")).to(tl.float32)
    # An infinity less itself is NaN, and so is a NaN: their sum tells of any of them.
    taint = tl.sum(tl.where(col < V, x - x, 0.0), axis=0)
    # A NaN compares with nothing; without it the place found stays inside the row.
    ordered = tl.where(x == x, x, float("-inf"))
    peak = tl.max(ordered, axis=0)
    place = tl.min(tl.where((ordered == peak) & (col < V), col, V - 1), axis=0)
    tl.store(peaks + pid, peak)
    tl.store(tokens + pid, place)
    tl.store(sums + pid, tl.sum(tl.exp(x - peak), axis=0) + taint)


@jit
def _join_kernel(peaks, tokens, sums, token, logprob, finite, pieces, V, PIECES: tl.constexpr):  # type: ignore[no-untyped-def]
    """The pieces of one row become its answer, always in the same order."""
    row = tl.program_id(0).to(tl.int64)
    piece = tl.arange(0, PIECES)
    m = tl.load(peaks + row * pieces + piece, mask=piece < pieces, other=float("-inf"))
    at = tl.load(tokens + row * pieces + piece, mask=piece < pieces, other=V)
    s = tl.load(sums + row * pieces + piece, mask=piece < pieces, other=0.0)
    peak = tl.max(m, axis=0)
    first = tl.min(tl.where(m == peak, at, V), axis=0)
    # e^(−∞) · 0 where a piece is past the end; a NaN sum stays NaN.
    total = tl.sum(s * tl.exp(m - peak), axis=0)
    sound = total == total
    tl.store(token + row, tl.where(sound, first, 0).to(tl.int64))
    tl.store(logprob + row, -tl.log(total))
    tl.store(finite + row, sound)


def _run(empty: Empty, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    flat = rows_of(logits)
    R, V = flat.shape
    device = logits.device
    pieces = -(-V // CHUNK)
    peaks, sums = (empty((R, pieces), dtype=torch.float32, device=device) for _ in range(2))
    tokens = empty((R, pieces), dtype=torch.int32, device=device)
    token = empty((R,), dtype=torch.int64, device=device)
    logprob = empty((R,), dtype=torch.float32, device=device)
    finite = empty((R,), dtype=torch.bool, device=device)
    if R:
        block = min(CHUNK, power_of_two(V))
        _pieces_kernel[(R * pieces,)](flat, peaks, tokens, sums, flat.stride(0), V, pieces, BLOCK=block, num_warps=8)
        _join_kernel[(R,)](
            peaks, tokens, sums, token, logprob, finite, pieces, V, PIECES=power_of_two(pieces), num_warps=1
        )
    return token, logprob, finite


def _inputs(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Any, ...]:
    return (noise(shape, dtype, device, 5.0),)


OPERATOR = Operator(
    name="greedy",
    run=_run,
    reference=greedy_reference,
    inputs=_inputs,
    edges=((1, 1), (2, 7), (3, 4096), (2, 4097), (5, 9001), (0, 16)),
    large=((1, 151936), (3, 151936), (64, 151936), (1024, 151936)),
    # The log-probability is float32 whatever the logits are.
    tolerance=tolerances(float32=1e-5, bfloat16=1e-5, float16=1e-5),
    least_norm=1.0,
)


def greedy(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``logits`` (R, V) on a GPU to tokens (R,) int64, log-probabilities (R,) float32 and finite (R,) bool."""
    if logits.ndim != 2 or not 1 <= logits.shape[1] < 2**31:
        raise ValueError(f"greedy: logits {tuple(logits.shape)}")
    picked: tuple[Tensor, Tensor, Tensor] = METER.launch(
        OPERATOR, (logits.shape[0], logits.shape[1]), logits.nbytes, logits
    )
    return picked
