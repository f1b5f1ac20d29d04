"""From a row of logits to a token.

    temperature 0:  the largest logit.
    else:  p = softmax(logits / temperature); tokens are kept in order of p while the sum before them is below top_p and
           p ≥ min_p · max(p); the kept ones are renormalised; the token is where their running sum passes u in [0, 1).

R rows, V vocabulary. The uniform ``u`` comes with the row: a request draws the same numbers alone and in a batch.
The log-probability returned is of the model's own distribution, before temperature and cuts.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Draws:
    """How each of R rows is drawn; None where all rows are greedy. Each tensor (R,) float32."""

    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    u: Tensor


@dataclass(frozen=True)
class Picked:
    """``token`` (R,) int64, ``logprob`` (R,) float32, ``finite`` (R,) bool: no NaN or infinity in the row."""

    token: Tensor
    logprob: Tensor
    finite: Tensor


def pick_tokens(logits: Tensor, draws: Draws | None) -> Picked:
    """Choose a token for every row of ``logits`` (R, V)."""
    x = logits.float()
    peak, token = x.max(dim=-1)
    if draws is not None:
        token = torch.where(draws.temperature > 0, _drawn(x, draws), token)
        peak = x.gather(1, token.unsqueeze(1)).squeeze(1)
    logprob = peak - torch.logsumexp(x, dim=-1)
    # One pass decides: a NaN or an infinity anywhere in a row makes the row's sum non-finite.
    return Picked(token, logprob, torch.isfinite(x.sum(dim=-1)))


def _drawn(x: Tensor, draws: Draws) -> Tensor:
    # A greedy row in a mixed batch is divided by 1 and its draw ignored; 1e-5 keeps tiny temperatures from infinity.
    heat = torch.where(draws.temperature > 0, draws.temperature.clamp(min=1e-5), 1.0).unsqueeze(1)
    p, order = torch.softmax((x - x.amax(-1, keepdim=True)) / heat, dim=-1).sort(dim=-1, descending=True, stable=True)
    before = p.cumsum(-1) - p
    kept = (before < draws.top_p.unsqueeze(1)) & (p >= draws.min_p.unsqueeze(1) * p[:, :1])
    kept[:, 0] = True
    running = (p * kept).cumsum(-1)
    place = (running <= draws.u.unsqueeze(1) * running[:, -1:]).sum(-1)
    last_kept = kept.sum(-1) - 1
    return order.gather(1, torch.minimum(place, last_kept).unsqueeze(1)).squeeze(1)
