"""What each operator should give, in float64, written apart from its reference."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    shape = (cos.shape[0],) + (1,) * (x.ndim - 2) + (half,)
    c, s = cos.double().view(shape), sin.double().view(shape)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * c - b * s, b * c + a * s), -1)


def rms_norm(x, weight, eps):
    return (_normed(x.double(), weight, eps),)


def add_rms_norm(x, residual, weight, eps):
    total = (x.double() + residual.double()).to(x.dtype)
    return _normed(total.double(), weight, eps), total.double()


def silu_mul(x):
    g, u = x.double().chunk(2, -1)
    return (g * torch.sigmoid(g) * u,)


def gelu_tanh(x):
    v = x.double()
    return (0.5 * v * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (v + 0.044715 * v**3))),)


def vision_qkv_rope(qkv, cos, sin, heads):
    size = 2 * cos.shape[1]
    whole = qkv.double().view(len(qkv), 3, heads, size).clone()
    whole[:, :2] = _turned(whole[:, :2], cos, sin)
    # Behind each head zeros, up to a power of two and another of at least 16.
    width = {4: 16, 16: 16, 32: 32, 48: 48, 64: 64, 72: 80, 80: 80}[size]
    return (torch.nn.functional.pad(whole, (0, width - size)),)


def text_qkv_rope(qkv, weight, eps, cos, sin, heads):
    normed, size = weight.shape
    qk = qkv.double().view(len(qkv), qkv.shape[1] // size, size)[:, :normed]
    return (_turned(_normed(qk, weight, eps), cos, sin),)


def route_topk(logits, k):
    p = torch.softmax(logits.double(), -1)
    order = torch.sort(logits.double(), dim=-1, descending=True, stable=True).indices[:, :k]
    kept = p.gather(1, order)
    return kept / kept.sum(-1, keepdim=True), order


def greedy(logits):
    x = logits.double()
    first = torch.sort(x, dim=-1, descending=True, stable=True).indices[:, 0]
    return first, torch.log_softmax(x, -1).gather(1, first[:, None])[:, 0], torch.isfinite(x).all(-1)


TRUTH: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    f.__name__: f
    for f in (rms_norm, add_rms_norm, silu_mul, gelu_tanh, vision_qkv_rope, text_qkv_rope, route_topk, greedy)
}


def assert_true(name: str, got: tuple[Tensor, ...], args: tuple, tolerance: float) -> None:
    """Every result against float64: integers equal, floats by relative L2; a NaN never passes."""
    want = TRUTH[name](*args)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape
        if not g.is_floating_point():
            assert torch.equal(g, w)
            continue
        error = float((g.double() - w).norm() / w.norm().clamp(min=1e-30))
        assert error <= tolerance, f"{name}: relative L2 {error:.2e} > {tolerance:.0e}"
