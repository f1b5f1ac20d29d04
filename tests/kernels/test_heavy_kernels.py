"""Attention, experts and quantised products in the interpreter: against float64, in memory that holds NaN."""

from __future__ import annotations

import itertools
import math
import os

import pytest
import torch
from torch import Tensor

from zellige.kernels import experts, experts_int4, int4_tiles, paged_attention_blocks, quant_matmul, vision_attention
from zellige.kernels.contract import Operator
from zellige.kernels.experts_grouped import COUNTED_PAIRS, sorted_pairs, tiles
from zellige.kernels.guards import checked

CPU = torch.device("cpu")
MODULES = (experts, experts_int4, paged_attention_blocks, quant_matmul, vision_attention)
OPERATORS = [m.OPERATOR for m in MODULES]
FOUR_BITS = [experts_int4.OPERATOR, quant_matmul.OPERATOR]
#: All edges in float32; in the short setting every third one in bfloat16 too, in the long one all in all dtypes.
#: With 4-bit weights float32 takes another way, so all are taken in bfloat16.
CASES = [
    pytest.param(op, size, dtype, id=f"{op.name}-{'x'.join(map(str, size))}-{dtype}")
    for op in OPERATORS
    for i, size in enumerate(op.edges)
    for dtype in (torch.float32, torch.bfloat16, torch.float16)
    if os.environ.get("ZELLIGE_TEST_LONG")
    or dtype == torch.float32
    or (dtype == torch.bfloat16 and (i % 3 == 0 or op in FOUR_BITS))
]

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes one program after the other."""
    monkeypatch.setattr(paged_attention_blocks, "PROGRAMS", 16)


def run(op: Operator, args: tuple) -> tuple[Tensor, ...]:
    """Launch under observation; whatever the meter would object to fails here."""
    outputs, findings, _ = checked(op, args)
    assert not list(findings.faults())
    return op.results(outputs, args)


def assert_close(got: Tensor, want: Tensor, tolerance: float, least_norm: float = 1e-30) -> None:
    assert got.shape == want.shape
    error = float((got.double() - want).norm() / want.norm().clamp(min=least_norm))
    assert error <= tolerance, f"relative L2 {error:.2e} > {tolerance:.0e}"


def experts_truth(x, gate_up, down, weights, chosen):
    out = torch.zeros(x.shape, dtype=torch.float64)
    for t, j in itertools.product(range(len(x)), range(chosen.shape[1])):
        e = chosen[t, j]
        gate, up = (x[t].double() @ gate_up[e].double()).chunk(2)
        out[t] += weights[t, j].double() * ((gate * torch.sigmoid(gate) * up) @ down[e].double())
    return out


def experts_int4_truth(x, gate_up, down, weights, chosen):
    def dense(m):
        """Expert by expert, (K, N)."""
        zeros = [None] * len(m.packed) if m.zero is None else m.zero
        each = zip(m.packed, m.scale, zeros, strict=True)
        return torch.stack([quant_truth(torch.eye(p.shape[1] * 8), p, s, z, m.group) for p, s, z in each])

    return experts_truth(x, dense(gate_up), dense(down), weights, chosen)


def paged_truth(q, k, v, cache, tables, slots, starts, lengths, single):
    """Row by row and head by head, from a copy of the cache."""
    (T, A, D), G, P = q.shape, cache.shape[1], cache.shape[3]
    flat = cache.double().view(2, G, -1, D)
    flat[:, :, slots] = torch.stack((k, v)).double().transpose(1, 2)
    out = torch.empty(T, A, D, dtype=torch.float64)
    for s, length in enumerate(lengths.tolist()):
        where = [int(tables[s, p // P]) * P + p % P for p in range(length)]
        end = int(starts[s + 1])
        for t, h in itertools.product(range(int(starts[s]), end), range(A)):
            keys, values = flat[:, h // (A // G), where[: length - end + t + 1]]
            out[t, h] = torch.softmax(keys @ q[t, h].double() * D**-0.5, 0) @ values
    return out.flatten(1)


def quant_truth(x, packed, scale, zero, group):
    N, K = packed.shape[0], packed.shape[1] * 8
    out = torch.zeros(N, K, dtype=torch.float64)
    for k in range(K):
        q = (packed[:, k // 8].long() >> (4 * (k % 8))) & 15
        z = 8 if zero is None else zero[:, k // group].long()
        out[:, k] = scale[:, k // group].double() * (q - z)
    return x.double() @ out.T


def vision_truth(q, k, v, bounds, size):
    q, k, v = (x[..., :size] for x in (q, k, v))
    out = torch.empty(q.shape, dtype=torch.float64)
    for begin, end in itertools.pairwise(bounds):
        for h in range(q.shape[1]):
            scores = q[begin:end, h].double() @ k[begin:end, h].double().T * q.shape[2] ** -0.5
            out[begin:end, h] = torch.softmax(scores, -1) @ v[begin:end, h].double()
    return out.flatten(1)


TRUTH = {
    "experts": experts_truth,
    "experts_int4": experts_int4_truth,
    "paged_attention": paged_truth,
    "quant_matmul": quant_truth,
    "vision_attention": vision_truth,
}


@pytest.mark.long
@pytest.mark.parametrize(("op", "size", "dtype"), CASES)
def test_against_float64(op, size, dtype):
    args = op.inputs(size, dtype, CPU)
    want = TRUTH[op.name](*args)
    assert_close(run(op, args)[0], want, op.tolerance[dtype], max(op.least_norm, 1e-30))


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [7, 8, 9, 0], [0, 0, 17, 0], [1, 0, 0, 33]], ids=str)
def test_experts_with_any_number_of_rows(rows):
    x, gate_up, down, weights, _ = experts.OPERATOR.inputs((sum(rows), 32, 16, len(rows), 1), torch.float32, CPU)
    chosen = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(rows))[torch.randperm(len(x)), None]
    args = (x, gate_up, down, weights, chosen)
    assert_close(run(experts.OPERATOR, args)[0], experts_truth(*args), 1e-5)


@pytest.mark.parametrize(("pairs", "number"), [(1, 1), (31, 5), (257, 7), (COUNTED_PAIRS // 16 + 1, 128)])
def test_pairs_are_sorted_by_expert_and_keep_their_order(pairs, number):
    chosen = torch.randint(0, number, (pairs, 1))
    order, ends = sorted_pairs(torch.empty, chosen, number)
    assert order.tolist() == torch.sort(chosen[:, 0], stable=True).indices.tolist()
    assert ends.tolist() == torch.bincount(chosen[:, 0], minlength=number).cumsum(0).tolist()


def test_many_pairs_are_sorted_the_same_way():
    chosen = torch.randint(0, 7, (COUNTED_PAIRS + 1, 1))
    order, ends = sorted_pairs(torch.empty, chosen, 9)
    assert order.tolist() == torch.sort(chosen[:, 0], stable=True).indices.tolist()
    assert ends.tolist() == torch.bincount(chosen[:, 0], minlength=9).cumsum(0).tolist()


@pytest.mark.parametrize(
    "cut", [tiles(n * 8, 8, 2, large) for n in (4, 20, 60, 300) for large in (False, True)], ids=str
)
def test_experts_give_the_same_however_they_are_cut(cut):
    args = experts.OPERATOR.inputs((19, 40, 24, 3, 2), torch.float32, CPU)
    got = experts.experts_grouped(torch.empty, *args, cut)
    assert_close(got, experts_truth(*args), 1e-5)


@pytest.mark.parametrize("programs", [1, 8, 64])
def test_decoding_in_any_number_of_splits(programs, monkeypatch):
    monkeypatch.setattr(paged_attention_blocks, "PROGRAMS", programs)
    op = paged_attention_blocks.OPERATOR
    args = op.inputs((3, 100, 4, 2, 16, 16), torch.float32, CPU)
    assert_close(run(op, args)[0], paged_truth(*args), 1e-5)


def test_places_of_the_cache_that_hold_nothing_are_not_read():
    op = paged_attention_blocks.OPERATOR
    args = op.inputs((2, 70, 4, 2, 16, 64, 30, 5), torch.float32, CPU)
    want = paged_truth(*args)
    cache, tables, starts, lengths = args[3], args[4], args[6].tolist(), args[7].tolist()
    kept = cache.clone()
    cache.fill_(math.nan)
    for s, length in enumerate(lengths):
        for p in range(length - (starts[s + 1] - starts[s])):
            at = int(tables[s, p // 64]), p % 64
            cache[:, :, at[0], at[1]] = kept[:, :, at[0], at[1]]
    assert_close(op.results(op.run(torch.empty, *args), args)[0], want, 1e-5)


def test_an_empty_sequence_in_a_padded_step_gives_zeros():
    op = paged_attention_blocks.OPERATOR
    args = op.inputs((2, 20, 4, 2, 16, 16), torch.float32, CPU)
    args[7][1] = 0
    assert torch.equal(op.run(torch.empty, *args)[1], torch.zeros(64))


def distant(x: Tensor) -> Tensor:
    """The same values, the last row more than 2³¹ elements behind the first; the memory between is never touched."""
    stride = -(-(2**31 // (len(x) - 1) + 8) // 16) * 16
    apart = torch.empty(stride * (len(x) - 1) + x[0].numel(), dtype=x.dtype)
    apart = apart.as_strided(x.shape, (stride, *x[0].contiguous().stride()))
    apart[:] = x
    return apart


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.name)
def test_rows_further_apart_than_32_bits_count(op):
    size = next(s for s in op.edges if s[0] > 2)
    first, *rest = op.inputs(size, torch.float32, CPU)
    want = TRUTH[op.name](first, *rest)
    assert_close(run(op, (distant(first), *rest))[0], want, op.tolerance[torch.float32])


def test_an_images_neighbour_in_the_batch_is_not_seen():
    q, k, v, bounds, size = vision_attention.OPERATOR.inputs((33, 2, 72, 5), torch.float32, CPU)
    v = v.clone()
    v[33:] = math.nan
    out = vision_attention.OPERATOR.run(torch.empty, q, k, v, bounds, size)
    assert out[:33].isfinite().all()
    assert out[33:].isnan().all()


@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 1e-6), (torch.float16, 3e-4), (torch.bfloat16, 2**-8)])
def test_probabilities_of_a_query_add_up_to_one(dtype, off):
    """What a block's row sums are told from: values of 1, and the result in float32.

    The interpreter cuts bfloat16 off; a device rounds it and is off by half of that.
    """
    q, k, _, bounds, size = vision_attention.OPERATOR.inputs((65, 1, 72, 5), dtype, CPU)

    def float32(shape, /, *, dtype, device):
        return torch.empty(shape, dtype=torch.float32, device=device)

    sums = vision_attention.OPERATOR.run(float32, q, k, torch.ones_like(q), bounds, size)
    assert float((sums - 1).abs().max()) <= off


def test_packed_integers_come_back():
    q = torch.randint(0, 16, (5, 64))
    one = torch.ones(5, 1)
    assert torch.equal(int4_tiles.dequantize_reference(int4_tiles.pack_int4(q), one, None, 64), q.float() - 8)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"x": torch.ones(2, 72)}, "packed"),
        ({"group": 48}, "group"),
        ({"scale": torch.ones(4, 3)}, "scale"),
        ({"zero": torch.ones(5, 2, dtype=torch.uint8)}, "zero"),
    ],
)
def test_quantised_weights_that_do_not_fit_are_refused(change, what):
    args = {"x": torch.ones(2, 64), "packed": torch.zeros(4, 8, dtype=torch.int32), "scale": torch.ones(4, 2)}
    with pytest.raises(ValueError, match=what):
        quant_matmul.quant_matmul(**{**args, "zero": None, "group": 32, **change})


@pytest.mark.parametrize("K", [33, 36])
def test_inputs_that_fill_no_word_cannot_be_packed(K):
    with pytest.raises(ValueError, match="multiple of 8"):
        int4_tiles.pack_int4(torch.zeros(2, K))
