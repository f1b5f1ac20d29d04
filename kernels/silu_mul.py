"""The gated activation of a SwiGLU block.

y = silu(g) · u        with [g | u] = x, silu(z) = z / (1 + e^-z)
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def silu_mul_reference(x: Tensor) -> Tensor:
    """The formula, in float32, rounded once."""
    gate, up = x.float().chunk(2, dim=-1)
    return (gate / (1 + torch.exp(-gate)) * up).to(x.dtype)


def silu_mul(x: Tensor) -> Tensor:
    """``x`` (..., 2I), gate first, to (..., I)."""
    if x.shape[-1] % 2:
        raise ValueError(f"silu_mul: {x.shape[-1]} columns cannot be halved")
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
