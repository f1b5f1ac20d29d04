"""The mixture of experts of the training model: the two best of eight, by sorted grouped products on a GPU.

Shapes: T tokens, H width, E experts, I expert width, K experts a token. Parameters lie as a training step wants them,
(E, 2I, H) and (E, H, I); export turns them into the released layout.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zellige.engine.demo.architecture import Architecture


class _Sorted(torch.autograd.Function):
    """Rows of x in the order of their experts; the gradient is a gather too, so that no atomics are needed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor, copies: int) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.copies = copies
        return x[order // copies]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (inverse,) = ctx.saved_tensors
        return gradient[inverse].view(-1, ctx.copies, gradient.shape[-1]).sum(1), None, None, None


class _Unsorted(torch.autograd.Function):
    """Rows back in the order of tokens."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        return y[inverse]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (order,) = ctx.saved_tensors
        return gradient[order], None, None


class ExpertWeights(nn.Module):
    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(a.experts, 2 * a.expert_width, a.hidden))
        self.down_proj = nn.Parameter(torch.empty(a.experts, a.hidden, a.expert_width))


class Router(nn.Module):
    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(a.experts, a.hidden))


class Experts(nn.Module):
    """Sparse MLP; returns its output and the load-balancing loss of these tokens."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.experts, self.gate = ExpertWeights(a), Router(a)
        self.count, self.chosen = a.experts, a.experts_per_token

    def route(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(T, H) -> weights (T, K) that sum to one, experts (T, K), balance loss."""
        probability = F.softmax(F.linear(x, self.gate.weight), -1, dtype=torch.float)
        rest, weights, picks = probability, [], []
        for _ in range(self.chosen):
            best, index = rest.max(-1, keepdim=True)
            weights.append(best)
            picks.append(index)
            rest = rest.scatter(1, index, -1.0)
        weight, pick = torch.cat(weights, -1), torch.cat(picks, -1)
        load = torch.zeros_like(probability).scatter(1, pick, 1.0).mean(0)
        balance = self.count * (load * probability.mean(0)).sum() / self.chosen
        return weight / weight.sum(-1, keepdim=True), pick, balance

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weight, pick, balance = self.route(x)
        combine = self._grouped if x.is_cuda else self._dense
        return combine(x, weight, pick), balance

    def _dense(self, x: Tensor, weight: Tensor, pick: Tensor) -> Tensor:
        """Every expert on every token, the unchosen weighted zero: the plain form, for the CPU."""
        share = torch.zeros(len(x), self.count, dtype=weight.dtype).scatter(1, pick, weight).to(x.dtype)
        gate, up = torch.einsum("th,eih->tei", x, self.experts.gate_up_proj).chunk(2, -1)
        return torch.einsum("tei,ehi,te->th", F.silu(gate) * up, self.experts.down_proj, share)

    def _grouped(self, x: Tensor, weight: Tensor, pick: Tensor) -> Tensor:
        flat = pick.reshape(-1)
        order = torch.argsort(flat.to(torch.int16), stable=True)
        inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=x.device))
        ends = (flat[:, None] == torch.arange(self.count, device=x.device)).sum(0).cumsum(0).to(torch.int32)
        rows: Tensor = _Sorted.apply(x, order, inverse, self.chosen)  # type: ignore[no-untyped-call]
        hidden = F.grouped_mm(rows, self.experts.gate_up_proj.transpose(1, 2), offs=ends)
        gate, up = hidden.chunk(2, -1)
        out = F.grouped_mm(F.silu(gate) * up, self.experts.down_proj.transpose(1, 2), offs=ends)
        back: Tensor = _Unsorted.apply(out, order, inverse)  # type: ignore[no-untyped-call]
        back = back.view(-1, self.chosen, x.shape[-1])
        return (back * weight[..., None].to(back.dtype)).sum(1)
