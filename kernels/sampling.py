"""From a row of logits to a token.

    y = logits + edits;  y = −∞ where a grammar does not allow the token
    temperature 0:  the largest of y.
    else:  p = softmax(y / temperature). The top_k largest p are kept; of these, in order of p, those before which the
           sum is below top_p of their total; of these, p ≥ min_p · max(p). With the running sum of the kept p in the
           order of the vocabulary, the token is where it first passes u of its total.

R rows, V vocabulary, G rows with a grammar. The uniform ``u`` in [0, 1) comes with the row: a request draws the same
numbers alone and in a batch. Log-probabilities are of the model's own distribution, before edits, masks and cuts.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from zellige.kernels.greedy import greedy


@dataclass(frozen=True)
class Draws:
    """How each of R rows is drawn: ``temperature``, ``top_p``, ``min_p`` (R,) float32, ``top_k`` (R,) int64 (0: all),
    ``u`` (R,) float64. ``cut`` holds the rows that have a top_k or a top_p: only they are sorted."""

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    min_p: Tensor
    u: Tensor
    cut: Tensor


@dataclass(frozen=True)
class Edits:
    """Numbers added to single logits: ``value`` (N,) float32 at ``row``, ``token`` (N,) int64, no place twice."""

    row: Tensor
    token: Tensor
    value: Tensor


@dataclass(frozen=True)
class Allowed:
    """Tokens that grammars allow in the rows ``row`` (G,) int64.

    Bit i % 32 of word i // 32 of ``bits`` (G, words) int32 stands for token i; past the last word none is allowed.
    """

    row: Tensor
    bits: Tensor


@dataclass(frozen=True)
class Controls:
    """All that decides the tokens of a step beside the logits; None stands for: no row needs it.

    ``top`` is how many of the likeliest tokens are asked for, 0 for none.
    """

    draws: Draws | None = None
    edits: Edits | None = None
    allowed: Allowed | None = None
    top: int = 0


@dataclass(frozen=True)
class Picked:
    """``token`` (R,) int64, ``logprob`` (R,) float32, ``finite`` (R,) bool: no NaN or infinity in the row.

    ``top_token`` and ``top_logprob`` (R, top): the likeliest tokens, the likeliest first.
    """

    token: Tensor
    logprob: Tensor
    finite: Tensor
    top_token: Tensor
    top_logprob: Tensor


def pick_tokens(logits: Tensor, controls: Controls = Controls()) -> Picked:
    """Choose a token for every row of ``logits`` (R, V), which are left as they are."""
    if logits.is_cuda and controls == Controls():
        token, logprob, finite = greedy(logits)
        return Picked(token, logprob, finite, token.new_empty(len(token), 0), logprob.new_empty(len(token), 0))
    x = logits.float()
    y = _constrained(x, controls)
    token = y.argmax(dim=-1)
    if (draws := controls.draws) is not None:
        drawn = _drawn(distribution(y, draws), draws.u, token)
        token = torch.where(draws.temperature > 0, drawn, token)
    norm = torch.logsumexp(x, dim=-1)
    logprob = x.gather(1, token.unsqueeze(1)).squeeze(1) - norm
    top = x.topk(min(controls.top, x.shape[1]), dim=-1)
    # One pass decides: a NaN or an infinity anywhere in a row makes the row's sum non-finite.
    return Picked(token, logprob, torch.isfinite(x.sum(dim=-1)), top.indices, top.values - norm.unsqueeze(1))


def _constrained(x: Tensor, controls: Controls) -> Tensor:
    if controls.edits is None and controls.allowed is None:
        return x
    y = x.clone()
    if (edits := controls.edits) is not None:
        y.index_put_((edits.row, edits.token), edits.value, accumulate=True)
    if (allowed := controls.allowed) is not None:
        bits = allowed.bits.unsqueeze(-1) >> torch.arange(32, device=y.device, dtype=torch.int32) & 1
        known = bits.flatten(1)[:, : y.shape[1]].bool()
        masked = y.new_full((len(allowed.row), y.shape[1]), float("-inf"))
        width = known.shape[1]
        masked[:, :width] = y[allowed.row, :width].masked_fill(~known, float("-inf"))
        y[allowed.row] = masked
    return y


def distribution(y: Tensor, draws: Draws) -> Tensor:
    """What each row of ``y`` (R, V) is drawn from: (R, V) float32, 0 for tokens that are cut, not normalised."""
    # A greedy row in a mixed batch is divided by 1 and its draw ignored; 1e-5 keeps tiny temperatures from infinity.
    heat = torch.where(draws.temperature > 0, draws.temperature.clamp(min=1e-5), 1.0)
    p = torch.softmax((y - y.amax(-1, keepdim=True)) / heat.unsqueeze(1), dim=-1)
    floor = draws.min_p.unsqueeze(1) * p.amax(-1, keepdim=True)
    if len(cut := draws.cut):
        p[cut] = _cut(p[cut], draws.top_k[cut], draws.top_p[cut])
    return p.masked_fill(p < floor, 0.0)


def _drawn(p: Tensor, u: Tensor, best: Tensor) -> Tensor:
    # In float64: in a flat row of 150,000 tokens the steps of a float32 sum are 1 % wrong.
    running = p.cumsum(-1, dtype=torch.float64)
    # A scan on a GPU may step back by a rounding, and then only p > 0 tells that a token was kept.
    passed = (running > u.unsqueeze(1) * running[:, -1:]) & (p > 0)
    return torch.where(passed.any(-1), passed.to(torch.uint8).argmax(-1), best)


def _cut(p: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """``p`` with 0 where a token is not among the kept; of equal tokens the first in the vocabulary goes first."""
    ordered, order = p.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(p.shape[1], device=p.device)
    within = (top_k.unsqueeze(1) == 0) | (rank < top_k.unsqueeze(1))
    ordered = ordered.masked_fill(~within, 0.0)
    running = ordered.cumsum(-1)
    # Rounding must not cut a row that asked for no cut; the first token always stays.
    kept = (top_p.unsqueeze(1) >= 1) | (running - ordered < top_p.unsqueeze(1) * running[:, -1:]) | (rank == 0)
    return torch.zeros_like(p).scatter_(1, order, ordered.masked_fill(~kept, 0.0))
