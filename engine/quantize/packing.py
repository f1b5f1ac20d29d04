"""Integers of 2, 3, 4 and 8 bits in 32-bit words, in the orders that writers of checkpoints use.

``packed`` of compressed-tensors and ``qweight`` of GPTQ are one stream of bits: value i begins at bit i · bits, lowest
bits first, and may straddle two words (3 bits only). AWQ puts eight values of 4 bits in a word in an order of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Where AWQ keeps value j of eight: in bits 4·AWQ_PLACE[j] to 4·AWQ_PLACE[j] + 3.
AWQ_PLACE = (0, 4, 1, 5, 2, 6, 3, 7)


def words(count: int, bits: int) -> int:
    """32-bit words that ``count`` values take."""
    return -(-count * bits // 32)


def pack(q: Tensor, bits: int) -> Tensor:
    """``q`` (…, n), integers from 0 to 2^bits − 1, to (…, ⌈n · bits / 32⌉) int32."""
    n = q.shape[-1]
    first, shift = _places(n, bits, q.device)
    value = q.to(torch.int64) << shift
    out = torch.zeros(*q.shape[:-1], words(n, bits) + 1, dtype=torch.int64, device=q.device)
    # No two values share a bit, so that a sum is an or.
    out.index_add_(-1, first, value & 0xFFFFFFFF)
    out.index_add_(-1, first + 1, value >> 32)
    return _signed(out[..., : words(n, bits)])


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """The first ``count`` values of ``packed`` (…, w) int32, as (…, count) uint8."""
    first, shift = _places(count, bits, packed.device)
    last = packed.shape[-1] - 1
    low = packed.index_select(-1, first).to(torch.int64) & 0xFFFFFFFF
    high = packed.index_select(-1, (first + 1).clamp(max=last)).to(torch.int64) & 0xFFFFFFFF
    return (((low | (high << 32)) >> shift) & ((1 << bits) - 1)).to(torch.uint8)


def unpack_awq(packed: Tensor) -> Tensor:
    """``packed`` (…, w) int32 to (…, 8w) uint8."""
    shift = torch.tensor([4 * p for p in AWQ_PLACE], dtype=torch.int32, device=packed.device)
    return ((packed.unsqueeze(-1) >> shift) & 15).flatten(-2).to(torch.uint8)


def _places(count: int, bits: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Word and bit at which each value begins."""
    bit = torch.arange(count, device=device) * bits
    return bit // 32, bit % 32


def _signed(word: Tensor) -> Tensor:
    return torch.where(word >= 1 << 31, word - (1 << 32), word).to(torch.int32)
