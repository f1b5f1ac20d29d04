"""Each operator and its reference against float64, at the sizes at their edges."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from zellige.kernels.experts import experts, experts_reference
from zellige.kernels.gelu_tanh import gelu_tanh, gelu_tanh_reference
from zellige.kernels.paged_attention import PagedLayout, Run, paged_attention, paged_attention_reference
from zellige.kernels.rms_norm import rms_norm, rms_norm_reference
from zellige.kernels.route_topk import route_topk, route_topk_reference
from zellige.kernels.silu_mul import silu_mul, silu_mul_reference
from zellige.kernels.text_qkv_rope import text_qkv_rope, text_qkv_rope_reference
from zellige.kernels.vision_attention import vision_attention, vision_attention_reference
from zellige.kernels.vision_qkv_rope import vision_qkv_rope, vision_qkv_rope_reference

DTYPES = {torch.float32: 2e-6, torch.bfloat16: 1.2e-2}


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory holds NaN, so that an element which nobody wrote shows."""
    empty, empty_like = torch.empty, torch.empty_like

    def poison(t: Tensor) -> Tensor:
        return t.fill_(float("nan")) if t.is_floating_point() else t

    monkeypatch.setattr(torch, "empty", lambda *a, **k: poison(empty(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: poison(empty_like(*a, **k)))
    torch.manual_seed(0)


def assert_close(got: Tensor, want: Tensor, tolerance: float) -> None:
    """Relative L2 against float64; NaN never passes."""
    assert got.shape == want.shape
    error = float((got.double() - want).norm() / want.norm().clamp(min=1e-30))
    assert error <= tolerance, f"relative L2 {error:.2e} > {tolerance:.0e}"


def both(operator, reference):
    return pytest.mark.parametrize("op", [operator, reference], ids=["operator", "reference"])


each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@each_dtype
@both(rms_norm, rms_norm_reference)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (17, 256), (2, 3, 72), (0, 64)])
def test_rms_norm(op, shape, dtype):
    x, w = torch.randn(shape).to(dtype), torch.rand(shape[-1:]).to(dtype)
    want = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * w.double()
    assert_close(op(x, w, 1e-6), want, DTYPES[dtype])


@each_dtype
@both(silu_mul, silu_mul_reference)
@pytest.mark.parametrize("shape", [(1, 2), (5, 34), (2, 3, 320), (0, 8)])
def test_silu_mul(op, shape, dtype):
    x = torch.randn(shape).to(dtype) * 4
    g, u = x.double().chunk(2, -1)
    assert_close(op(x), g * torch.sigmoid(g) * u, DTYPES[dtype])


@each_dtype
@both(gelu_tanh, gelu_tanh_reference)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (127, 16), (128, 16), (129, 16), (300, 5), (0, 8)])
def test_gelu_tanh(op, shape, dtype):
    x = torch.randn(shape).to(dtype) * 4
    x64 = x.double()
    want = 0.5 * x64 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x64 + 0.044715 * x64**3)))
    assert_close(op(x), want, DTYPES[dtype])


@both(route_topk, route_topk_reference)
@pytest.mark.parametrize(("tokens", "count", "k"), [(1, 1, 1), (3, 8, 2), (33, 128, 8), (5, 5, 5)])
def test_route_topk(op, tokens, count, k):
    logits = torch.randn(tokens, count) * 3
    p = torch.softmax(logits.double(), -1).topk(k, -1)
    weights, chosen = op(logits, k)
    assert torch.equal(chosen, p.indices)
    assert_close(weights, p.values / p.values.sum(-1, keepdim=True), 2e-6)


@each_dtype
@both(experts, experts_reference)
@pytest.mark.parametrize("rows", [(0, 1, 2, 3), (7, 8, 9, 0), (1, 0, 0, 0), (0, 0, 0, 40), (64, 65, 1, 2)])
def test_experts_with_every_split_of_rows(op, rows, dtype):
    E, H, inner, k = len(rows), 48, 20, 1
    chosen = torch.repeat_interleave(torch.arange(E), torch.tensor(rows))[:, None]
    chosen = chosen[torch.randperm(len(chosen))]
    T = len(chosen)
    x, weights = torch.randn(T, H).to(dtype), torch.rand(T, k)
    gate_up, down = (torch.randn(E, H, 2 * inner) / 7).to(dtype), (torch.randn(E, inner, H) / 4).to(dtype)
    g, u = torch.einsum("th,thi->ti", x.double(), gate_up.double()[chosen[:, 0]]).chunk(2, -1)
    want = torch.einsum("ti,tih->th", g * torch.sigmoid(g) * u, down.double()[chosen[:, 0]]) * weights.double()
    assert_close(op(x, gate_up, down, weights, chosen), want, 2 * DTYPES[dtype])


@both(experts, experts_reference)
@pytest.mark.parametrize("tokens", [1, 2, 31, 32, 33, 200])
def test_experts_of_a_token_are_summed_by_their_weights(op, tokens):
    E, H, inner, k = 8, 32, 24, 2
    x, logits = torch.randn(tokens, H), torch.randn(tokens, E)
    gate_up, down = torch.randn(E, H, 2 * inner) / 6, torch.randn(E, inner, H) / 5
    weights, chosen = route_topk_reference(logits, k)
    g, u = torch.einsum("th,tkhi->tki", x.double(), gate_up.double()[chosen]).chunk(2, -1)
    y = torch.einsum("tki,tkih->tkh", g * torch.sigmoid(g) * u, down.double()[chosen])
    assert_close(op(x, gate_up, down, weights, chosen), (y * weights.double()[..., None]).sum(1), 2e-6)


def angles(rows: int, half: int) -> tuple[Tensor, Tensor]:
    a = torch.rand(rows, half, dtype=torch.float64) * 40 - 20
    return a.cos().float(), a.sin().float()


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.double().chunk(2, -1)
    c, s = cos.double()[:, None], sin.double()[:, None]
    return torch.cat((a * c - b * s, b * c + a * s), -1)


@each_dtype
@both(vision_qkv_rope, vision_qkv_rope_reference)
@pytest.mark.parametrize(("patches", "heads", "size"), [(1, 1, 4), (3, 16, 72), (49, 4, 64), (5, 2, 80)])
def test_vision_qkv_rope(op, patches, heads, size, dtype):
    qkv, (cos, sin) = torch.randn(patches, 3 * heads * size).to(dtype), angles(patches, size // 2)
    q, k, v = qkv.view(patches, 3, heads, size).unbind(1)
    got = op(qkv, cos, sin, heads)
    assert_close(got[0], turned(q, cos, sin), DTYPES[dtype])
    assert_close(got[1], turned(k, cos, sin), DTYPES[dtype])
    assert torch.equal(got[2], v)


@each_dtype
@both(text_qkv_rope, text_qkv_rope_reference)
@pytest.mark.parametrize(("tokens", "heads", "kv", "size"), [(1, 1, 1, 4), (3, 4, 2, 64), (17, 6, 3, 32)])
def test_text_qkv_rope(op, tokens, heads, kv, size, dtype):
    qkv, (cos, sin) = torch.randn(tokens, (heads + 2 * kv) * size).to(dtype), angles(tokens, size // 2)
    w = torch.rand(heads + kv, size).to(dtype) + 0.5
    x = qkv.double().view(tokens, -1, size)
    qk = x[:, : heads + kv]
    qk = turned(qk / (qk.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w.double(), cos, sin)
    q, k, v = op(qkv, w, 1e-6, cos, sin, heads)
    assert_close(q, qk[:, :heads], DTYPES[dtype])
    assert_close(k, qk[:, heads:], DTYPES[dtype])
    assert torch.equal(v.double(), x[:, heads + kv :])


@both(vision_attention, vision_attention_reference)
@pytest.mark.parametrize("lengths", [(1,), (2,), (3,), (1, 2, 3), (64, 1, 65), (1025, 7), (1499,)])
def test_vision_attention_of_images_that_never_see_each_other(op, lengths):
    N, A, D = sum(lengths), 2, 24
    q, k, v = (torch.randn(N, A, D) for _ in range(3))
    bounds = [0]
    for n in lengths:
        bounds.append(bounds[-1] + n)
    image = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    scores = torch.einsum("nad,mad->anm", q.double(), k.double()) * D**-0.5
    p = scores.masked_fill(image[:, None] != image[None], float("-inf")).softmax(-1)
    want = torch.einsum("anm,mad->nad", p, v.double()).flatten(1)
    assert_close(op(q, k, v, bounds, D), want, 2e-6)


# (tokens already cached, new tokens) of each sequence
STEPS = {
    "one token": [(0, 1)],
    "prompt": [(0, 9)],
    "prompt that fills its blocks": [(0, 8)],
    "second chunk": [(5, 7)],
    "generating": [(1, 1), (7, 1), (8, 1), (30, 1)],
    "mixed": [(3, 1), (11, 1), (0, 6), (4, 5), (8, 2)],
}


@both(paged_attention, paged_attention_reference)
@pytest.mark.parametrize("where_blocks_lie", ["scattered", "neighbours", "one apart"])
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_paged_attention_sees_its_own_past_and_nothing_else(op, where_blocks_lie, steps):
    A, G, D = 4, 2, 16
    P = 4 if where_blocks_lie == "scattered" else 64
    needed = [-(-(c + n) // P) for c, n in steps]
    single = sum(n == 1 for _, n in steps)
    if where_blocks_lie == "scattered":
        order, runs = torch.randperm(sum(needed) + 3)[: sum(needed)], (Run(0, single, None),)
    elif where_blocks_lie == "neighbours":
        order, runs = torch.arange(sum(needed)), (Run(0, single, 0),)
    else:
        # The last two are told to be gathered, so that both ways meet in one call.
        order = 2 * torch.arange(sum(needed))
        alone = max(single - 2, 0)
        runs = (*(Run(i, i + 1, 2 * i) for i in range(alone)), Run(alone, single, None))
    tables = torch.full((len(steps), max(needed)), int(order.max()), dtype=torch.int64)
    at = 0
    for s, n in enumerate(needed):
        tables[s, :n] = order[at : at + n]
        at += n
    # Places that hold nothing hold NaN: reading one shows.
    cache = torch.full((2, G, int(order.max()) + 1, P, D), float("nan"))
    qs, ks, vs, wants, slots = [], [], [], [], []
    for s, (cached, new) in enumerate(steps):
        total = cached + new
        q, k, v = torch.randn(new, A, D), torch.randn(total, G, D), torch.randn(total, G, D)
        where = [int(tables[s, i // P]) * P + i % P for i in range(total)]
        flat = cache.view(2, G, -1, D)
        flat[0][:, where[:cached]] = k[:cached].transpose(0, 1)
        flat[1][:, where[:cached]] = v[:cached].transpose(0, 1)
        if op is paged_attention_reference:
            flat[0][:, where] = k.transpose(0, 1)
            flat[1][:, where] = v.transpose(0, 1)
        kh, vh = (x.double().repeat_interleave(A // G, dim=1) for x in (k, v))
        scores = torch.einsum("nad,mad->anm", q.double(), kh) * D**-0.5
        hidden = torch.arange(total)[None] > torch.arange(cached, total)[:, None]
        p = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        wants.append(torch.einsum("anm,mad->nad", p, vh).flatten(1))
        qs.append(q)
        ks.append(k[cached:])
        vs.append(v[cached:])
        slots += where[cached:]
    if any(needed[s] > 1 for s in range(single)):
        # The padded keys are masked after the product, and 0 · NaN is NaN: only real memory is finite there.
        cache.nan_to_num_(0.0)
    lengths = [c + n for c, n in steps]
    starts = [0]
    for _, n in steps:
        starts.append(starts[-1] + n)
    mask = None
    if single:
        longest = max(lengths[:single])
        beyond = torch.arange(longest)[None] >= torch.tensor(lengths[:single])[:, None]
        mask = torch.zeros(beyond.shape).masked_fill_(beyond, float("-inf"))[:, None, None]
        cache.nan_to_num_(0.0)
    layout = PagedLayout(
        tuple(starts), tuple(lengths), tables, torch.tensor(slots), single, mask, runs if single else ()
    )
    q, k, v = torch.cat(qs), torch.cat(ks), torch.cat(vs)
    got = op(q, cache, layout) if op is paged_attention_reference else op(q, k, v, cache, layout)
    assert_close(got, torch.cat(wants), 2e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: rms_norm(torch.randn(2, 8), torch.randn(7), 1e-6),
        lambda: silu_mul(torch.randn(2, 7)),
        lambda: route_topk(torch.randn(2, 4), 5),
        lambda: experts(
            torch.randn(2, 8), torch.randn(3, 9, 4), torch.randn(3, 2, 8), torch.rand(2, 1), torch.zeros(2, 1).long()
        ),
        lambda: vision_qkv_rope(torch.randn(2, 24), torch.randn(3, 2), torch.randn(3, 2), 2),
        lambda: text_qkv_rope(torch.randn(2, 32), torch.randn(3, 8), 1e-6, torch.randn(2, 3), torch.randn(2, 3), 2),
        lambda: vision_attention(*(torch.randn(4, 1, 8),) * 3, [0, 3], 8),
        lambda: vision_attention(*(torch.randn(4, 1, 8),) * 3, [0, 4], 9),
    ],
)
def test_shapes_that_do_not_fit_are_refused_by_the_operators_name(call):
    with pytest.raises(ValueError, match=r"rms_norm|silu_mul|route_topk|experts|qkv_rope|vision_attention"):
        call()
