"""Error-compensated rounding (GPTQ, Frantar et al. 2022): what rounding an input's weights costs, later inputs repay.

For inputs x with H = Σ x·xᵀ, the error of a row is (w − ŵ)·H·(w − ŵ)ᵀ. Inputs are rounded one after the other, those
with the most energy first (scales are fitted before, so that the order leaves no trace in the file); the error of each
is spread over those still to come through the Cholesky factor of H⁻¹.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zellige.engine.quantize.grid import Codes, Grid, Kept, fit, rounded

#: Added to the diagonal, as a share of its mean: how far the calibration set is trusted.
DAMPING = 0.02
_BLOCK = 64


def compensated(w: Tensor, grid: Grid, h: Tensor, dtype: torch.dtype, kept: Tensor | None = None) -> Codes:
    """``w`` (B, N, K) float32 rounded for inputs of energy ``h`` (B, K, K).

    ``kept`` (B, C): inputs whose weights are stored in 8 bits; they come last and repay what all others cost.
    """
    K = w.shape[-1]
    energy = h.diagonal(dim1=-2, dim2=-1)
    rank = energy
    if kept is not None:
        rank = energy.scatter(-1, kept, -1.0)
        energy = energy.scatter(-1, kept, 0.0)
    order = rank.argsort(-1, descending=True)
    last = K if kept is None else K - kept.shape[-1]
    rows = order.unsqueeze(-2).expand_as(w)
    left = w.gather(-1, rows)
    fitted = w if kept is None else w.scatter(-1, kept.unsqueeze(-2).expand(*w.shape[:-1], -1), 0.0)
    scale, zero = fit(fitted, grid, energy, dtype)
    s, z = (t.repeat_interleave(grid.group, -1)[..., :K].gather(-1, rows) for t in (scale, zero))
    factor = _factor(h, order)
    # A kept input's integer is the zero point: it adds nothing.
    q = z.clone()
    for begin in range(0, last, _BLOCK):
        end = min(begin + _BLOCK, last)
        errors = torch.empty_like(left[..., begin:end])
        for k in range(begin, end):
            column, sk, zk = left[..., k], s[..., k], z[..., k]
            q[..., k] = rounded(column, sk, zk, grid.top)
            error = (column - sk * (q[..., k] - zk)) / factor[..., k, k].unsqueeze(-1)
            errors[..., k - begin] = error
            left[..., k + 1 : end] -= error.unsqueeze(-1) * factor[..., k, k + 1 : end].unsqueeze(-2)
        left[..., end:] -= errors @ factor[..., begin:end, end:]
    q = q.gather(-1, order.argsort(-1).unsqueeze(-2).expand_as(q)).to(torch.uint8)
    wide = None if kept is None else Kept.of(order[..., last:], left[..., last:], dtype)
    return Codes(q, scale.to(dtype), None if grid.symmetric else zero.to(torch.uint8), grid.bits, grid.group, wide)


def _factor(h: Tensor, order: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse of H, its rows and columns in ``order``."""
    h = h.gather(-2, order.unsqueeze(-1).expand_as(h)).gather(-1, order.unsqueeze(-2).expand_as(h)).double()
    mean = h.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
    h = h + torch.diag_embed((DAMPING * mean + 1e-12).expand(h.shape[:-1]))
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(h))
    factor: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor.float()


def loss(w: Tensor, rounded_w: Tensor, h: Tensor) -> Tensor:
    """Σ of squared errors of the outputs, (B,)."""
    d = rounded_w - w
    return ((d @ h) * d).sum((-1, -2))
