"""Attention among the patches of each image; an image never sees another.

    o[i] = Σ_j softmax_j(q[i]·k[j] / √D) · v[j]        over the patches j of i's own image

N patches of all images one after the other, A heads, D head size. ``bounds`` holds the images' first rows and N:
image m is rows bounds[m] to bounds[m + 1]. Neither form needs an N × N buffer.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

#: Query rows a piece in the reference; a score buffer holds one piece and is addressed within the piece.
PIECE_ROWS = 1024


def vision_attention_reference(q: Tensor, k: Tensor, v: Tensor, bounds: Sequence[int]) -> Tensor:
    """The formula in pieces of query rows, in float32."""
    out = torch.empty_like(q)
    for begin, end in pairwise(bounds):
        kh, vh = k[begin:end].float().transpose(0, 1), v[begin:end].float().transpose(0, 1)
        for at in range(begin, end, PIECE_ROWS):
            rows = slice(at, min(at + PIECE_ROWS, end))
            scores = q[rows].float().transpose(0, 1) @ kh.transpose(1, 2) * q.shape[-1] ** -0.5
            out[rows] = (torch.softmax(scores, dim=-1) @ vh).transpose(0, 1).to(q.dtype)
    return out.flatten(1)


def vision_attention(q: Tensor, k: Tensor, v: Tensor, bounds: Sequence[int]) -> Tensor:
    """``q``, ``k``, ``v`` (N, A, D) to (N, A·D)."""
    if not (q.shape == k.shape == v.shape) or bounds[0] != 0 or bounds[-1] != q.shape[0]:
        raise ValueError(f"vision_attention: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}, {bounds}")
    parts = []
    for begin, end in pairwise(bounds):
        qh, kh, vh = (x[begin:end].transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        parts.append(F.scaled_dot_product_attention(qh, kh, vh)[0].transpose(0, 1))
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).reshape(q.shape[0], -1)
