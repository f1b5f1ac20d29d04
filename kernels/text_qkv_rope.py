"""Splits a decoder layer's fused projection, norms each query and key head, and rotates them by position.

    [q | k | v] = qkv[t];   q = rms_norm(q);   (a, b) = halves of q;   q' = [a·cos − b·sin | b·cos + a·sin]

T tokens, A query heads, G key heads, D head size. ``qkv`` (T, (A + 2G)·D); ``cos``, ``sin`` (T, D/2) in float32;
``weight`` (A + G, D): the query norm's weight for each query head, then the key norm's for each key head.
Position is multi-dimensional (M-RoPE): which of time, row and column turns a frequency is the caller's table.
"""

import torch
from torch import Tensor

from zellige.kernels.vision_qkv_rope import rotate


def text_qkv_rope_reference(
    qkv: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The formula in float32, the rotation as a product of complex numbers, rounded once."""
    T, D = qkv.shape[0], weight.shape[1]
    normed = weight.shape[0]
    x = qkv.float().view(T, -1, D)
    qk = x[:, :normed]
    qk = qk * torch.rsqrt(qk.square().mean(-1, keepdim=True) + eps) * weight.float()
    a, b = qk.chunk(2, dim=-1)
    z = torch.complex(a, b) * torch.complex(cos.float(), sin.float()).unsqueeze(1)
    qk = torch.cat((z.real, z.imag), dim=-1).to(qkv.dtype)
    return qk[:, :heads], qk[:, heads:], x[:, normed:].to(qkv.dtype)


def text_qkv_rope(
    qkv: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """``qkv`` to q (T, A, D), k (T, G, D) and v (T, G, D)."""
    T, (normed, D) = qkv.shape[0], weight.shape
    if qkv.shape[1] != (2 * normed - heads) * D or cos.shape != (T, D // 2) or sin.shape != cos.shape:
        raise ValueError(f"text_qkv_rope: qkv {tuple(qkv.shape)}, {heads} heads of {D}, angles {tuple(cos.shape)}")
    x = qkv.view(T, -1, D)
    qk = x[:, :normed]
    scale = torch.rsqrt(qk.float().square().mean(-1, keepdim=True) + eps)
    qk = (qk * scale).to(qkv.dtype) * weight
    qk = rotate(qk, cos.unsqueeze(1), sin.unsqueeze(1))
    return qk[:, :heads], qk[:, heads:], x[:, normed:]
