"""The experts of a mixture layer: each token passes its k experts and gets their weighted sum.

    y[t] = Σ_j  w[t, j] · silu_mul(x[t] · gate_up[e]) · down[e]         with e = chosen[t, j]

T tokens, H hidden, E experts, I intermediate, k experts a token.
``gate_up`` (E, H, 2I), gate columns first; ``down`` (E, I, H); ``weights`` (T, k) float32; ``chosen`` (T, k) int64.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from zellige.kernels.silu_mul import silu_mul

#: Up to this many (token, expert) pairs every expert sees every token, in one batched product: many small products
#: cost more in launches than the arithmetic thrown away. Measured on a CPU with 8 experts (break-even near 40 tokens).
DENSE_PAIRS = 256


def experts_reference(x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """The formula token by token and expert by expert, in float32."""
    out = torch.zeros_like(x, dtype=torch.float32)
    for t in range(x.shape[0]):
        for j in range(chosen.shape[1]):
            e = int(chosen[t, j])
            gate, up = (x[t].float() @ gate_up[e].float()).chunk(2)
            out[t] += weights[t, j] * ((gate * torch.sigmoid(gate) * up) @ down[e].float())
    return out.to(x.dtype)


def experts(x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """``x`` (T, H) to (T, H). An expert that no token chose costs nothing, except in very small batches."""
    E, H, two_i = gate_up.shape
    if x.shape[1] != H or down.shape != (E, two_i // 2, H) or weights.shape != chosen.shape:
        raise ValueError(
            f"experts: x {tuple(x.shape)}, gate_up {tuple(gate_up.shape)}, down {tuple(down.shape)}, "
            f"weights {tuple(weights.shape)}, chosen {tuple(chosen.shape)} do not fit together"
        )
    if x.shape[0] * E <= DENSE_PAIRS:
        return _all_experts(x, gate_up, down, weights, chosen)
    return _grouped(x, gate_up, down, weights, chosen)


def _all_experts(x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    E = gate_up.shape[0]
    share = torch.zeros(E, x.shape[0], dtype=torch.float32, device=x.device).scatter_(0, chosen.T, weights.T)
    hidden = silu_mul(torch.bmm(x.expand(E, *x.shape), gate_up))
    hidden *= share.to(x.dtype).unsqueeze(-1)
    return torch.bmm(hidden, down).sum(0)


def _grouped(x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    T, H = x.shape
    E, k = gate_up.shape[0], chosen.shape[1]
    flat = chosen.flatten()
    order = torch.argsort(flat, stable=True)
    token = order // k
    rows = x.index_select(0, token)
    ends = torch.bincount(flat, minlength=E).cumsum(0)
    if x.is_cuda and x.dtype == torch.bfloat16:
        offs = ends.to(torch.int32)
        hidden = silu_mul(F.grouped_mm(rows, gate_up, offs=offs))
        out = F.grouped_mm(hidden, down, offs=offs)
    else:
        out = torch.empty_like(rows)
        begin = 0
        for e, end in enumerate(ends.tolist()):
            if end > begin:
                hidden = silu_mul(rows[begin:end] @ gate_up[e])
                torch.mm(hidden, down[e], out=out[begin:end])
            begin = end
    # Back to token order before the sum: each token's k parts are added in one fixed order, whatever the batch.
    parts = torch.empty_like(out).index_copy_(0, order, out).view(T, k, H)
    return (parts * weights.to(x.dtype).unsqueeze(-1)).sum(1)
