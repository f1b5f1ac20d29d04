"""Splits a vision block's fused projection into query, key and value, and rotates query and key by place.

    [q | k | v] = qkv[n];   (a, b) = halves of q (or k);   q' = [a·cos − b·sin | b·cos + a·sin]

N patches, A heads, D head size. ``cos`` and ``sin`` (N, D/2) hold the row's angles, then the column's (2-D rotary), in
float32 whatever the dtype of ``qkv`` (N, 3·A·D): bfloat16 angles collapse neighbouring positions.
"""

import torch
from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the two halves of the last dimension of ``x``; ``cos``, ``sin`` broadcast over a half."""
    half = x.shape[-1] // 2
    x32 = x.float()
    out = x32 * torch.cat((cos, cos), dim=-1)
    out[..., :half].addcmul_(x32[..., half:], sin, value=-1)
    out[..., half:].addcmul_(x32[..., :half], sin)
    return out.to(x.dtype)


def vision_qkv_rope_reference(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """The formula with complex numbers: a rotation is a product with e^(i·angle)."""
    N = qkv.shape[0]
    q, k, v = qkv.view(N, 3, heads, -1).unbind(1)
    turn = torch.complex(cos.float(), sin.float()).unsqueeze(1)

    def turned(x: Tensor) -> Tensor:
        a, b = x.float().chunk(2, dim=-1)
        z = torch.complex(a, b) * turn
        return torch.cat((z.real, z.imag), dim=-1).to(x.dtype)

    return turned(q), turned(k), v


def vision_qkv_rope(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """``qkv`` (N, 3·A·D) to q, k, v, each (N, A, D)."""
    N, width = qkv.shape
    if width % (3 * heads) or cos.shape != (N, width // (6 * heads)) or sin.shape != cos.shape:
        raise ValueError(f"vision_qkv_rope: qkv {tuple(qkv.shape)}, {heads} heads, angles {tuple(cos.shape)}")
    parts = qkv.view(N, 3, heads, -1)
    turned = rotate(parts[:, :2], cos[:, None, None], sin[:, None, None])
    return turned[:, 0], turned[:, 1], parts[:, 2]
