"""The Triton kernels in the interpreter, at the sizes at their edges: against float64, in memory that holds NaN."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from truth import TRUTH, assert_true

from zellige.kernels.contract import Operator
from zellige.kernels.guards import checked
from zellige.kernels.operators import OPERATORS

OURS = {op.name: op for op in OPERATORS if op.name in TRUTH}
CPU = torch.device("cpu")
CASES = [
    pytest.param(op, size, id=f"{op.name}-{'x'.join(map(str, size))}") for op in OURS.values() for size in op.edges
]

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")


def run(op: Operator, args: tuple) -> tuple[Tensor, ...]:
    """Launch under observation; whatever the meter would object to fails here."""
    outputs, findings, _ = checked(op, args)
    assert not list(findings.faults())
    return op.results(outputs, args)


def test_every_operator_written_here_has_a_truth():
    assert OURS.keys() == TRUTH.keys()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("op", "size"), CASES)
def test_against_float64(op, size, dtype):
    args = op.inputs(size, dtype, CPU)
    assert_true(op.name, run(op, args), args, op.tolerance[dtype])


def spread(x: Tensor) -> Tensor:
    """The same values with gaps between rows and between columns."""
    wide = torch.full((2 * x.shape[0], 3 * x.shape[1]), math.nan, dtype=x.dtype)
    wide[::2, ::3] = x
    return wide[::2, ::3]


def distant(x: Tensor) -> Tensor:
    """The same values, the last row more than 2³¹ elements behind the first; the memory between is never touched."""
    stride = 2**31 // (x.shape[0] - 1) + 8
    apart = torch.empty(stride * (x.shape[0] - 1) + x.shape[1], dtype=x.dtype).as_strided(x.shape, (stride, 1))
    apart[:] = x
    return apart


@pytest.mark.parametrize("op", OURS.values(), ids=OURS)
@pytest.mark.parametrize("change", [spread, lambda x: x[:1].expand_as(x)], ids=["gaps", "one row for all"])
def test_inputs_in_any_layout(op, change):
    size = next(s for s in op.edges if s[0] > 1)
    first, *rest = op.inputs(size, torch.float32, CPU)
    args = (change(first), *rest)
    assert_true(op.name, run(op, args), args, op.tolerance[torch.float32])


@pytest.mark.parametrize("op", [op for op in OURS.values() if op.name != "gelu_tanh"], ids=lambda op: op.name)
def test_rows_further_apart_than_32_bits_count(op):
    size = next(s for s in op.edges if s[0] > 1)
    first, *rest = op.inputs(size, torch.bfloat16, CPU)
    args = (distant(first), *rest)
    assert_true(op.name, run(op, args), (first, *rest), op.tolerance[torch.bfloat16])


@pytest.mark.parametrize("op", [OURS["rms_norm"], OURS["silu_mul"]], ids=lambda op: op.name)
def test_leading_dimensions_are_kept(op):
    args = op.inputs((2, 3, 72), torch.float32, CPU)
    assert_true(op.name, run(op, args), args, 1e-5)


@pytest.mark.parametrize("op", OURS.values(), ids=OURS)
def test_a_row_that_is_not_finite_spoils_no_other(op):
    size = next(s for s in op.edges if s[0] > 1)
    args = op.inputs(size, torch.float32, CPU)
    clean = run(op, args)
    args[0][1] = math.nan
    for before, after in zip(clean, run(op, args), strict=True):
        others = torch.arange(len(before)) != 1
        assert torch.equal(before[others], after[others])


def test_of_equal_experts_the_lower_numbers_are_chosen():
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0], [0.0, -0.0, 0.0, -0.0, 0.0]])
    weights, chosen = run(OURS["route_topk"], (logits, 3))
    assert chosen.tolist() == [[1, 2, 3], [0, 1, 2]]
    assert torch.allclose(weights, torch.full((2, 3), 1 / 3))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_chosen_experts_are_in_range_whatever_the_logits_hold(value):
    logits = torch.full((3, 60), value)
    logits[1, 7] = 0.0
    _, chosen = OURS["route_topk"].run(torch.empty, logits, 4)
    assert all(sorted(set(row)) == sorted(row) and min(row) >= 0 and max(row) < 60 for row in chosen.tolist())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 4095, 4096, 9000])
def test_a_logit_that_is_not_finite_is_told(at, value):
    logits = torch.randn(3, 9001)
    logits[1, at] = value
    token, logprob, finite = run(OURS["greedy"], (logits,))
    assert finite.tolist() == [True, False, True]
    assert token[1] == 0
    assert logprob.isnan().tolist() == [False, True, False]


def test_of_equal_logits_the_first_is_taken_across_pieces():
    logits = torch.zeros(2, 9001)
    logits[0, [4090, 4097, 9000]] = 3.0
    assert run(OURS["greedy"], (logits,))[0].tolist() == [4090, 0]
