"""Attention in pieces of query rows, whose score buffer holds one piece: right, and as it was once wrong.

The wrong one addresses the buffer with the offset of the whole matrix. An image of one piece shows nothing; a larger
one writes behind the buffer, and it is something else that fails.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zellige.kernels.contract import ROUNDED_ONCE, Empty, Operator, noise
from zellige.kernels.tritonic import jit, tl

PIECE = 16


@jit
def _scores_kernel(q, k, scores, q0, offset, N, scale, D: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0)
    col, dim = tl.arange(0, COLS), tl.arange(0, D)
    one = tl.load(q + (q0 + row) * D + dim)
    keys = tl.load(k + col[:, None] * D + dim[None, :], mask=col[:, None] < N, other=0.0)
    tl.store(scores + offset + row * N + col, tl.sum(keys * one[None, :], axis=1) * scale, mask=col < N)


@jit
def _values_kernel(scores, v, out, q0, N, D: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0)
    col, dim = tl.arange(0, COLS), tl.arange(0, D)
    s = tl.load(scores + row * N + col, mask=col < N, other=float("-inf"))
    e = tl.exp(s - tl.max(s, axis=0))
    values = tl.load(v + col[:, None] * D + dim[None, :], mask=col[:, None] < N, other=0.0)
    tl.store(out + (q0 + row) * D + dim, tl.sum(values * e[:, None], axis=0) / tl.sum(e, axis=0))


def _attend(empty: Empty, q: Tensor, k: Tensor, v: Tensor, whole_matrix: bool) -> Tensor:
    N, D = q.shape
    out = empty((N, D), dtype=q.dtype, device=q.device)
    scores = empty((PIECE, N), dtype=torch.float32, device=q.device)
    for q0 in range(0, N, PIECE):
        rows = (min(PIECE, N - q0),)
        _scores_kernel[rows](q, k, scores, q0, q0 * N if whole_matrix else 0, N, D**-0.5, D=D, COLS=64)
        _values_kernel[rows](scores, v, out, q0, N, D=D, COLS=64)
    return out


def _reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.T * q.shape[1] ** -0.5, dim=-1) @ v


def _inputs(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Any, ...]:
    return (
        noise(shape, dtype, device),
        noise((*shape, 1), dtype, device)[..., 0],
        noise((*shape, 1, 1), dtype, device)[..., 0, 0],
    )


def attention_in_pieces(*, whole_matrix: bool) -> Operator:
    """For up to 64 rows of 16."""
    return Operator(
        "attention_in_pieces",
        lambda empty, q, k, v: _attend(empty, q, k, v, whole_matrix),
        _reference,
        _inputs,
        ((15, 16), (16, 16), (17, 16), (50, 16)),
        (),
        ROUNDED_ONCE,
    )
