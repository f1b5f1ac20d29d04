"""Root-mean-square norm over the last dimension.

    y[t, :] = x[t, :] / sqrt(mean(x[t, :]²) + eps) · weight

T tokens (any leading shape), H hidden. ``x`` and ``weight`` share a floating dtype; the sum is taken in float32.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The formula, in float32, rounded once."""
    x32 = x.float()
    scale = torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)
    return (x32 * scale * weight.float()).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm of each row of ``x`` (..., H) by ``weight`` (H,)."""
    if x.shape[-1:] != weight.shape:
        raise ValueError(f"rms_norm: rows of {x.shape[-1]} with a weight of {tuple(weight.shape)}")
    return F.rms_norm(x, weight.shape, weight, eps)
