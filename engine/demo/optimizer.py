"""Muon for matrices and experts, AdamW for the rest, over flat buffers: one gradient buffer, one all-reduce.

Masters are float32; the network holds copies in the training type, all in one buffer too.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

#: Coefficients of the fifth-order Newton-Schulz step that Muon orthogonalises with.
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_MOMENTUM = 0.95
#: Parameters whose rows are looked up or that are heads: AdamW suits them better.
_ADAM_NAMES = ("embed", "lm_head", "reading", "gate.weight")


class FlatParameters:
    """A network's parameters and gradients as views into flat buffers, with float32 masters beside them."""

    def __init__(self, net: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        self.named = dict(net.named_parameters())
        sizes = [parameter.numel() for parameter in self.named.values()]
        # Every view starts at a multiple of 16 elements, so that kernels may load it in wide words.
        offsets, total = [], 0
        for size in sizes:
            offsets.append(total)
            total += -(-size // 16) * 16
        self.values = torch.zeros(total, device=device, dtype=dtype)
        self.gradients = torch.zeros(total, device=device, dtype=dtype)
        self.masters_flat = torch.zeros(total, device=device)
        self.steps_flat = torch.zeros(total, device=device)
        self.masters: dict[str, Tensor] = {}
        self.steps: dict[str, Tensor] = {}
        for (name, parameter), offset in zip(self.named.items(), offsets, strict=True):
            span, shape = slice(offset, offset + parameter.numel()), parameter.shape
            self.masters[name] = self.masters_flat[span].view(shape)
            self.steps[name] = self.steps_flat[span].view(shape)
            self.masters[name].copy_(parameter.data)
            parameter.data = self.values[span].view(shape)
            parameter.grad = self.gradients[span].view(shape)
        self.publish()

    def publish(self) -> None:
        """Copy the masters into the network."""
        self.values.copy_(self.masters_flat)

    def state(self) -> dict[str, Tensor]:
        """Masters on the CPU in bfloat16, by name."""
        return {name: master.to("cpu", torch.bfloat16).clone() for name, master in self.masters.items()}


def _matrices(name: str, tensor: Tensor) -> Tensor:
    """A parameter as a batch of matrices, none taller than wide where that can be had: (batch, rows, columns)."""
    if "qkv.weight" in name:
        return tensor.view(3, -1, tensor.shape[1])
    if "gate_up_proj" in name:
        return tensor.view(tensor.shape[0] * 2, -1, tensor.shape[2])
    if "experts.down_proj" in name:
        return tensor.transpose(1, 2)
    flat = tensor.flatten(1)
    return flat[None] if flat.shape[0] <= flat.shape[1] else flat.t()[None]


def orthogonalised(matrices: Tensor) -> Tensor:
    """Nearly orthogonal matrices of the same singular vectors, by five Newton-Schulz steps; (batch, rows, columns)."""
    a, b, c = _NEWTON_SCHULZ
    x = matrices.to(torch.bfloat16 if matrices.is_cuda else torch.float32)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x


class Optimizer:
    """One step for all parameters; ``rate`` is the learning rate of both methods."""

    def __init__(self, flat: FlatParameters, weight_decay: float) -> None:
        self.flat, self.weight_decay = flat, weight_decay
        muon = [n for n, p in flat.named.items() if p.dim() >= 2 and not any(key in n for key in _ADAM_NAMES)]
        self.groups: dict[tuple[int, int], list[str]] = {}
        for name in muon:
            rows, columns = _matrices(name, flat.masters[name]).shape[1:]
            self.groups.setdefault((rows, columns), []).append(name)
        self.momentum = {
            shape: torch.cat([torch.zeros_like(_matrices(n, flat.masters[n])) for n in names])
            for shape, names in self.groups.items()
        }
        rest = [name for name in flat.named if name not in set(muon)]
        for name in rest:
            flat.masters[name].grad = flat.steps[name]
        decayed = [flat.masters[n] for n in rest if flat.masters[n].dim() > 1]
        plain = [flat.masters[n] for n in rest if flat.masters[n].dim() == 1]
        self.adam = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}],
            betas=(0.9, 0.97),
            eps=1e-9,
            fused=flat.masters_flat.is_cuda,
        )

    @torch.no_grad()
    def step(self, rate: float) -> Tensor:
        """Take one step against the network's gradients and clear them; returns their norm (before clipping to 1)."""
        flat = self.flat
        flat.steps_flat.copy_(flat.gradients)
        flat.gradients.zero_()
        norm: Tensor = flat.steps_flat.norm()
        flat.steps_flat.mul_((1.0 / (norm + 1e-6)).clamp(max=1.0))
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        for shape, names in self.groups.items():
            gradient = torch.cat([_matrices(name, flat.steps[name]) for name in names])
            momentum = self.momentum[shape].mul_(_MOMENTUM).add_(gradient)
            update = orthogonalised(gradient.add_(momentum, alpha=_MOMENTUM)).float() * (0.2 * math.sqrt(max(shape)))
            targets = [_matrices(name, flat.masters[name]) for name in names]
            torch._foreach_mul_(targets, 1 - rate * self.weight_decay)
            torch._foreach_add_(targets, list(update.split([len(target) for target in targets])), alpha=-rate)
        flat.publish()
        return norm
