"""Quantised matrices as they lie in a GPU's memory: half a byte a weight, whatever the file has, and their product."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zellige.engine.quantize.grid import Codes
from zellige.kernels.int4_tiles import GROUPS, dequantize_reference, pack_int4
from zellige.kernels.quant_matmul import quant_matmul


@dataclass(frozen=True, eq=False)
class Packed:
    """A matrix (N, K) for ``quant_matmul``: weights of 2 and 3 bits lie in 4 as well.

    ``kept_index`` (C,) and ``kept`` (C, N): inputs that have 8 bits in the file and the engine's dtype here.
    """

    packed: Tensor
    scale: Tensor
    zero: Tensor | None
    group: int
    kept_index: Tensor | None = None
    kept: Tensor | None = None

    @classmethod
    def of(cls, codes: Codes, dtype: torch.dtype) -> Packed | None:
        """None where the kernel does not take such a matrix: 8 bits, or groups and inputs of other sizes."""
        K = codes.q.shape[-1]
        group = next((g for g in reversed(GROUPS) if codes.group % g == 0 or codes.group >= K), None)
        if codes.bits > 4 or K % 8 or group is None:
            return None
        if codes.group in GROUPS:
            group = codes.group
        # A group larger than the kernel's is several with the same scale.
        first = torch.arange(-(-K // group), device=codes.q.device) * group // codes.group
        scale = codes.scale.index_select(-1, first).contiguous()
        zero = codes.zero
        if zero is not None:
            zero = zero.index_select(-1, first).contiguous()
        elif codes.bits < 4:
            zero = torch.full(scale.shape, 1 << (codes.bits - 1), dtype=torch.uint8, device=scale.device)
        kept = codes.kept
        if kept is None:
            return cls(pack_int4(codes.q), scale, zero, group)
        return cls(pack_int4(codes.q), scale, zero, group, kept.index, kept.dense().T.to(dtype).contiguous())

    @classmethod
    def stacked(cls, parts: list[Packed]) -> Packed | None:
        """Matrices that read the same input as one, their outputs side by side; None where they are of two kinds."""
        a = parts[0]
        if any(p.group != a.group or not _same(p.kept_index, a.kept_index) for p in parts):
            return None
        scale = torch.cat([p.scale for p in parts])
        zero = None
        if any(p.zero is not None for p in parts):
            zero = torch.cat([p.zero_points() for p in parts])
        kept = None if a.kept is None else torch.cat([p.kept for p in parts if p.kept is not None], dim=1)
        return cls(torch.cat([p.packed for p in parts]), scale, zero, a.group, a.kept_index, kept)

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return self.packed.shape[0], 8 * self.packed.shape[1]

    def zero_points(self) -> Tensor:
        """``zero``, written out where it is the middle throughout."""
        return torch.full_like(self.scale, 8, dtype=torch.uint8) if self.zero is None else self.zero

    def __call__(self, x: Tensor) -> Tensor:
        y = quant_matmul(x, self.packed, self.scale, self.zero, self.group)
        if self.kept_index is None or self.kept is None:
            return y
        return y.addmm_(x.index_select(1, self.kept_index), self.kept)

    def dense(self, dtype: torch.dtype) -> Tensor:
        """The weights (N, K)."""
        w = dequantize_reference(self.packed, self.scale, self.zero, self.group).to(dtype)
        if self.kept_index is not None and self.kept is not None:
            w[:, self.kept_index] = self.kept.T
        return w


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a, b))
