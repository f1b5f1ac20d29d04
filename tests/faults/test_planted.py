"""Kernels with a fault planted are caught at ``sampled``, by name; the same kernels without it raise nothing."""

from __future__ import annotations

import os
import random
import time

import pytest
import torch
from broken import PLANTS, plant
from pieces import attention_in_pieces

from zellige.kernels import silu_mul
from zellige.kernels.contract import Operator
from zellige.kernels.meter import Meter
from zellige.kernels.operators import OPERATORS
from zellige.kernels.tally import Reading

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered.*:RuntimeWarning")
CPU = torch.device("cpu")
BY_NAME = {op.name: op for op in OPERATORS}


def workload(op: Operator, sizes: tuple[tuple[int, ...], ...]) -> Reading:
    """One launch of each size, between launches of a healthy operator; a row of the larger inputs is empty."""
    meter = Meter("sampled")
    bystander = silu_mul.OPERATOR.inputs((3, 320), torch.float32, CPU)
    for size in sizes:
        args = op.inputs(size, torch.float32, CPU)
        if op.name == "text_qkv_rope":
            args[0][1] = 0.0
        if op.name != "silu_mul":
            meter.launch(silu_mul.OPERATOR, (3, 320), 0, *bystander)
        meter.launch(op, size, 0, *args)
    return meter.take()


@pytest.mark.parametrize("planted", PLANTS, ids=lambda p: f"{p.file}: {p.what}")
def test_a_planted_fault_is_caught_by_name(planted, tmp_path):
    broken = planted.operator(tmp_path)
    reading = workload(broken, planted.sizes)
    verdicts = {t.operator: t.verdict for t in reading.tallies}
    assert verdicts.pop(broken.name) == "suspect"
    assert set(verdicts.values()) <= {"healthy"}
    assert {f.operator for f in reading.faults} == {broken.name}
    assert {f.kind for f in reading.faults} & planted.kinds
    assert workload(BY_NAME[broken.name], planted.sizes).verdict == "healthy"


def test_a_fault_at_2_and_3_rows_shows_there_and_nowhere_else(tmp_path):
    broken = next(p for p in PLANTS if "2 or 3" in p.what).operator(tmp_path)
    seen = {rows: workload(broken, ((rows, 64),)).verdict for rows in (1, 2, 3, 4, 5)}
    assert seen == {1: "healthy", 2: "suspect", 3: "suspect", 4: "healthy", 5: "healthy"}


@pytest.mark.parametrize(("rows", "verdict"), [(15, "healthy"), (16, "healthy"), (17, "suspect"), (50, "suspect")])
def test_a_whole_matrix_offset_into_a_buffer_of_one_piece_shows_from_the_second_piece_on(rows, verdict):
    reading = workload(attention_in_pieces(whole_matrix=True), ((rows, 16),))
    assert reading.verdict == verdict
    assert {f.operator for f in reading.faults} <= {"attention_in_pieces"}
    assert ("guard" in {f.kind for f in reading.faults}) == (verdict == "suspect")
    assert workload(attention_in_pieces(whole_matrix=False), ((rows, 16),)).verdict == "healthy"


def test_a_row_stride_taken_for_granted_shows_on_a_view(tmp_path):
    old, new = "gate = tl.load(x + row * x_stride", "gate = tl.load(x + row * 2 * half"
    stride = plant("stride", "silu_mul", old, new, "tolerance")
    view = torch.randn(5, 40)[:, :34]
    for op, verdict in ((stride.operator(tmp_path), "suspect"), (silu_mul.OPERATOR, "healthy")):
        meter = Meter()
        meter.launch(op, (5, 34), 0, view)
        assert meter.take().verdict == verdict


def test_a_tie_decided_otherwise_shows_where_there_is_one(tmp_path):
    old, new = "tl.min(tl.where(m == peak, at, V), axis=0)", "tl.max(tl.where(m == peak, at, 0), axis=0)"
    last = plant("tie", "greedy", old, new, "tolerance")
    op = last.operator(tmp_path)
    tied = torch.zeros(2, 9001)
    for logits, verdict in ((torch.randn(2, 9001), "healthy"), (tied, "suspect")):
        meter = Meter()
        meter.launch(op, (2, 9001), 0, logits)
        assert meter.take().verdict == verdict


@pytest.mark.long
def test_healthy_kernels_raise_no_alarm():
    """At ``audit``, so that every launch is held to its contract: values over 8 octaves, sizes drawn from the edges.

    What takes the interpreter long is drawn less often. The numbers of a launch follow from its sequence number. No
    bfloat16: the interpreter cuts it off instead of rounding it, which twice in a row is more than a last place.
    """
    launches = 10_000 if os.environ.get("ZELLIGE_TEST_LONG") else 12
    rng, meter = random.Random(7), Meter("audit")
    cases = [(op, size) for op in OPERATORS for size in op.edges]
    seconds = [0.001] * len(cases)
    for n in range(launches):
        torch.manual_seed(n)
        (chosen,) = rng.choices(range(len(cases)), [1 / s for s in seconds])
        op, size = cases[chosen]
        begin = time.perf_counter()
        first, *rest = op.inputs(size, rng.choice([torch.float32, torch.float16]), CPU)
        first.copy_(torch.randn(first.shape) * 2.0 ** rng.uniform(-6, 2))
        meter.launch(op, size, 0, first, *rest)
        seconds[chosen] = max(time.perf_counter() - begin, 1e-4)
    reading = meter.take()
    assert not reading.faults
    assert sum(t.checked for t in reading.tallies) == launches
