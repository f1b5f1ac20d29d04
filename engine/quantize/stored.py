"""A matrix as it lies in a checkpoint, to integers: three layouts by name of their tensors.

compressed-tensors   weight_packed (N, words) or weight int8 (N, K), weight_scale (N, G), weight_zero_point
AWQ                  qweight (K, N/8), qzeros (G, N/8), scales (G, N)
GPTQ                 qweight (words, N), qzeros (G, words), scales (G, N), g_idx (K,): the group of each input
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from zellige.engine.quantize.grid import Codes, Kept
from zellige.engine.quantize.packing import pack, unpack, unpack_awq, words
from zellige.engine.quantize.scheme import Rule, Scheme, SchemeError

#: Reads a tensor of the matrix by the last part of its name; None where there is none.
Read = Callable[[str], Tensor | None]

#: Every part that belongs to a quantised matrix.
PARTS = (
    "weight_packed",
    "weight_scale",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
    "weight_kept",
    "weight_kept_scale",
    "weight_kept_index",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
)


def codes_of(read: Read, name: str, outputs: int, inputs: int, scheme: Scheme) -> tuple[Codes, Tensor | None]:
    """The matrix ``name`` (outputs, inputs), and the order of its inputs where groups are no neighbours.

    With an order, column i of the codes is input ``order[i]``. Raises SchemeError where tensors do not fit.
    """
    rule = scheme.rule(name)
    group = rule.group or inputs

    def part(suffix: str) -> Tensor:
        found = read(suffix)
        if found is None:
            raise SchemeError(f"{name}.{suffix} is missing")
        return found

    if scheme.method == "awq":
        codes, index = _awq(part, rule, group), None
    elif scheme.method == "gptq":
        codes, index = _gptq(part, read("g_idx"), rule, group, inputs, scheme.plus_one)
    else:
        codes, index = _compressed(part, read, rule, group, inputs), read("weight_g_idx")
    groups = (outputs, -(-inputs // group))
    if codes.q.shape != (outputs, inputs) or codes.scale.shape != groups:
        have, scales = list(codes.q.shape), list(codes.scale.shape)
        raise SchemeError(f"{name}: {have} with scales {scales}, expected {[outputs, inputs]} with {list(groups)}")
    if codes.zero is not None and codes.zero.shape != groups:
        raise SchemeError(f"{name}: zero points {list(codes.zero.shape)}, expected {list(groups)}")
    return _in_order(codes, index)


def _compressed(part: Callable[[str], Tensor], read: Read, rule: Rule, group: int, inputs: int) -> Codes:
    packed, scale = read("weight_packed"), part("weight_scale")
    middle = 1 << (rule.bits - 1)
    scale = scale.reshape(1, 1) if scale.numel() == 1 else scale
    if packed is None:
        whole = part("weight")
        q = (whole.to(torch.int16) + middle).to(torch.uint8)
    else:
        q = _unpacked(packed, rule.bits, inputs)
    outputs = q.shape[0]
    zero = None
    if not rule.symmetric:
        stored = part("weight_zero_point")
        if stored.dtype == torch.int32:
            zero = _unpacked(stored.T, rule.bits, outputs).T
        else:
            zero = (stored.to(torch.int16) + middle).to(torch.uint8).reshape(scale.shape)
    if scale.shape[0] == 1 and outputs > 1:
        scale = scale.expand(outputs, 1)
        zero = None if zero is None else zero.expand(outputs, 1)
    index = read("weight_kept_index")
    kept = None if index is None else Kept(index.long(), part("weight_kept"), part("weight_kept_scale"))
    return Codes(q, scale, zero, rule.bits, group, kept)


def tensors_of(codes: Codes) -> dict[str, Tensor]:
    """A matrix (N, K) as compressed-tensors stores it, and what is kept in 8 bits beside it."""
    shape = torch.tensor(codes.q.shape, dtype=torch.int64)
    stored = {"weight_packed": pack(codes.q, codes.bits), "weight_scale": codes.scale, "weight_shape": shape}
    if codes.zero is not None:
        stored["weight_zero_point"] = pack(codes.zero.T, codes.bits).T
    if codes.kept is not None:
        stored["weight_kept"] = codes.kept.q
        stored["weight_kept_scale"] = codes.kept.scale
        stored["weight_kept_index"] = codes.kept.index.to(torch.int32)
    return {name: tensor.cpu().contiguous() for name, tensor in stored.items()}


def _unpacked(packed: Tensor, bits: int, count: int) -> Tensor:
    """A stream of bits, or, where there are too many words for one, only whole values in each (older writers)."""
    per_word = 32 // bits
    if packed.shape[-1] == words(count, bits) or packed.shape[-1] != -(-count // per_word):
        return unpack(packed, bits, count)
    return unpack(packed.unsqueeze(-1), bits, per_word).flatten(-2)[..., :count]


def _awq(part: Callable[[str], Tensor], rule: Rule, group: int) -> Codes:
    q = unpack_awq(part("qweight")).T
    zero = None if rule.symmetric else unpack_awq(part("qzeros")).T
    return Codes(q, part("scales").T, zero, 4, group)


def _gptq(
    part: Callable[[str], Tensor], index: Tensor | None, rule: Rule, group: int, inputs: int, plus_one: bool
) -> tuple[Codes, Tensor | None]:
    packed, scale = part("qweight"), part("scales").T
    q = unpack(packed.T, rule.bits, inputs)
    # Less one, a zero point of 0 has wrapped round to the largest.
    zero = (unpack(part("qzeros"), rule.bits, scale.shape[0]).T + int(plus_one)) & ((1 << rule.bits) - 1)
    return Codes(q, scale, zero, rule.bits, group), index


def _in_order(codes: Codes, index: Tensor | None) -> tuple[Codes, Tensor | None]:
    """Inputs of a group side by side, as everything else expects."""
    K = codes.q.shape[-1]
    if index is None:
        return codes, None
    usual = torch.arange(K, device=index.device) // codes.group
    if bool((index == usual).all()):
        return codes, None
    order = torch.argsort(index, stable=True)
    if not torch.equal(index[order].long(), usual):
        raise SchemeError("groups of inputs differ in size")
    return Codes(codes.q[:, order], codes.scale, codes.zero, codes.bits, codes.group), order
