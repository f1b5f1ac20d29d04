"""Matrices as other programs quantise them: their tensors, and the weights that they stand for by their own formulas.

Written from the formats' definitions and from nothing of ours; compressed-tensors is that package itself.
"""

from __future__ import annotations

from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from torch import Tensor

Made = tuple[dict[str, Tensor], Tensor]


def compressed(w: Tensor, form: str = "pack-quantized", **weights: Any) -> Made:
    """By the package: its scales, its packing, and what it unpacks again."""
    args = QuantizationArgs(**weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format=form)
    parts = w.unflatten(-1, (-1, args.group_size)) if args.strategy == "group" else w
    dims = tuple(range(w.ndim)) if args.strategy == "tensor" else (-1,)
    low, high = parts.amin(dims), parts.amax(dims)
    if args.strategy != "group":
        low, high = low.reshape(-1, 1), high.reshape(-1, 1)
    scale, zero = calculate_qparams(low, high, args)
    state = {"weight": w, "weight_scale": scale}
    if not args.symmetric:
        state["weight_zero_point"] = zero
    compressor = BaseCompressor.get_value_from_registry(form)
    stored = compressor.compress(dict(state), scheme)
    return stored, compressor.decompress(dict(stored), scheme)["weight"]


def awq(w: Tensor, group: int) -> Made:
    """AutoAWQ's GEMM layout: qweight (K, N/8), qzeros (G, N/8), scales (G, N)."""
    N, K = w.shape
    parts = w.view(N, K // group, group)
    scales = ((parts.amax(-1) - parts.amin(-1)) / 15).clamp(min=1e-5).half()
    zeros = (-parts.amin(-1) / scales.float()).round().clamp(0, 15)
    q = (parts / scales.float().unsqueeze(-1) + zeros.unsqueeze(-1)).round().clamp(0, 15)
    dense = ((q - zeros.unsqueeze(-1)) * scales.float().unsqueeze(-1)).view(N, K)

    def packed(values: Tensor) -> Tensor:
        """(rows, N) to (rows, N/8)."""
        out = torch.zeros(values.shape[0], N // 8, dtype=torch.int64)
        for place, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
            out |= values[:, column::8].long() << (4 * place)
        return out.to(torch.int32)

    stored = {"qweight": packed(q.view(N, K).T), "qzeros": packed(zeros.T), "scales": scales.T.contiguous()}
    return stored, dense


def gptq(w: Tensor, group: int, *, bits: int = 4, plus_one: bool = True, act_order: bool = False) -> Made:
    """AutoGPTQ's layout: qweight (K · bits/32, N), qzeros (G, N · bits/32), scales (G, N), g_idx (K,)."""
    N, K = w.shape
    top = (1 << bits) - 1
    index = torch.arange(K) // group
    if act_order:
        index = index[torch.randperm(K)]
    G = K // group
    low = torch.stack([w[:, index == g].amin(1) for g in range(G)])
    high = torch.stack([w[:, index == g].amax(1) for g in range(G)])
    scales = ((high - low) / top).half()
    # Zero points from 1 on: one less is what is stored.
    zeros = (-low / scales.float()).round().clamp(1, top)
    q = (w.T / scales.float()[index] + zeros[index]).round().clamp(0, top)
    dense = ((q - zeros[index]) * scales.float()[index]).T
    per = 32 // bits

    def packed(values: Tensor, width: int) -> Tensor:
        """Along the first dimension."""
        if bits == 3:
            return _three(values.long())
        rows = values.long().reshape(width // per, per, -1)
        out = torch.zeros(rows.shape[0], rows.shape[2], dtype=torch.int64)
        for j in range(per):
            out |= rows[:, j] << (bits * j)
        return out.to(torch.int32)

    stored = {
        "qweight": packed(q, K),
        "qzeros": packed((zeros - int(plus_one)).T, N).T.contiguous(),
        "scales": scales,
        "g_idx": index.to(torch.int32),
    }
    return stored, dense


def _three(values: Tensor) -> Tensor:
    """Thirty-two values in three words, as AutoGPTQ packs them; values 10 and 21 straddle two."""
    v = values.reshape(values.shape[0] // 32, 32, -1)
    shift = (3 * torch.arange(10)).view(1, -1, 1)
    first = (v[:, :10] << shift).sum(1) | ((v[:, 10] & 3) << 30)
    second = (v[:, 10] >> 2) | (v[:, 11:21] << (shift + 1)).sum(1) | ((v[:, 21] & 1) << 31)
    third = (v[:, 21] >> 1) | (v[:, 22:] << (shift + 2)).sum(1)
    return torch.stack((first, second, third), 1).flatten(0, 1).to(torch.int32)
