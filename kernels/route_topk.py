"""Which experts a token goes to, and with what weight.

    p = softmax(logits);  the k largest are kept;  w = p_kept / sum(p_kept)

T tokens, E experts, k experts a token. The softmax is taken in float32: in bfloat16 near-equal experts change places.
"""

import torch
from torch import Tensor


def route_topk_reference(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The formula by sorting, in float32."""
    p = torch.softmax(logits.float(), dim=-1)
    order = torch.argsort(p, dim=-1, descending=True, stable=True)[:, :k]
    kept = p.gather(1, order)
    return kept / kept.sum(-1, keepdim=True), order


def route_topk(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """``logits`` (T, E) to weights (T, k) float32, largest first, and expert numbers (T, k) int64."""
    if logits.ndim != 2 or not 1 <= k <= logits.shape[1]:
        raise ValueError(f"route_topk: top {k} of logits {tuple(logits.shape)}")
    p = torch.softmax(logits, dim=-1, dtype=torch.float32)
    weights, chosen = torch.topk(p, k, dim=-1)
    return weights / weights.sum(-1, keepdim=True), chosen
