"""The activation of the vision towers: GELU in its tanh approximation (Hendrycks and Gimpel, section 4).

y = x/2 · (1 + tanh(u)),  u = √(2/π) · (x + 0.044715·x³)         which is  x · sigmoid(2u)
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from zellige.kernels.contract import ROUNDED_ONCE, Empty, Operator, noise
from zellige.kernels.meter import METER
from zellige.kernels.tritonic import jit, tl

_TWICE = 2 * math.sqrt(2 / math.pi)
_BLOCK = 1024


def gelu_tanh_reference(x: Tensor) -> Tensor:
    """The second form, in float32, rounded once: far below 0 the first one is the difference of two near numbers."""
    x32 = x.float()
    return (x32 * torch.sigmoid(_TWICE * (x32 + 0.044715 * x32**3))).to(x.dtype)


@jit
def _gelu_tanh_kernel(x, out, count, twice, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < count, other=0.0).to(tl.float32)
    y = v / (1.0 + tl.exp(-twice * v * (1.0 + 0.044715 * v * v)))
    tl.store(out + at, y.to(out.dtype.element_ty), mask=at < count)


def _run(empty: Empty, x: Tensor) -> Tensor:
    flat = x.contiguous()
    out = empty(x.shape, dtype=x.dtype, device=x.device)
    if count := x.numel():
        _gelu_tanh_kernel[(-(-count // _BLOCK),)](flat, out, count, _TWICE, BLOCK=_BLOCK)
    return out


def _inputs(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Any, ...]:
    return (noise(shape, dtype, device, 4.0),)


OPERATOR = Operator(
    name="gelu_tanh",
    run=_run,
    reference=gelu_tanh_reference,
    inputs=_inputs,
    edges=((1, 1), (3, 7), (127, 16), (128, 16), (1025, 1), (0, 8)),
    large=((1, 4304), (1499, 4304), (8547, 4304)),
    tolerance=ROUNDED_ONCE,
)


def gelu_tanh(x: Tensor) -> Tensor:
    """``x`` (N, C) to (N, C)."""
    if x.is_cuda:
        on_device: Tensor = METER.launch(OPERATOR, (x.shape[0], x.shape[1]), 2 * x.nbytes, x)
        return on_device
    METER.count(OPERATOR)
    if x.dtype != torch.float32:
        return F.gelu(x, approximate="tanh")
    # PyTorch's own tanh form takes twice as long on a CPU as these four passes of the sigmoid form.
    inner = torch.addcmul(torch.tensor(_TWICE), x, x, value=0.044715 * _TWICE).mul_(x)
    return inner.sigmoid_().mul_(x)
