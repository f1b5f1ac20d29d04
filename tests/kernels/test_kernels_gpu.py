"""The compiled kernels on a device, at the sizes of real models and at their edges. By hand: ``pytest -m gpu -s``."""

from __future__ import annotations

import time

import pytest
import torch
from truth import TRUTH, assert_true

from zellige.kernels.contract import Operator
from zellige.kernels.gelu_tanh import gelu_tanh
from zellige.kernels.guards import checked
from zellige.kernels.meter import METER, Meter
from zellige.kernels.operators import OPERATORS
from zellige.kernels.rms_norm import add_rms_norm, rms_norm
from zellige.kernels.route_topk import route_topk
from zellige.kernels.sampling import pick_tokens
from zellige.kernels.silu_mul import silu_mul
from zellige.kernels.text_qkv_rope import text_qkv_rope
from zellige.kernels.vision_qkv_rope import vision_qkv_rope

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
GPU = torch.device("cuda")
BY_NAME = {op.name: op for op in OPERATORS}
CASES = [
    pytest.param(op, size, id=f"{op.name}-{'x'.join(map(str, size))}")
    for op in OPERATORS
    for size in op.edges + op.large
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("op", "size"), CASES)
def test_against_its_reference_and_float64(op: Operator, size, dtype):
    if dtype not in op.tolerance:
        pytest.skip(f"{op.name} has no {dtype}")
    args = op.inputs(size, dtype, GPU)
    outputs, findings, _ = checked(op, args)
    assert not list(findings.faults())
    if op.name in TRUTH:
        assert_true(op.name, op.results(outputs, args), args, op.tolerance[dtype])


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("rms_norm", (2**20 + 3, 2048)),
        ("silu_mul", (2**20 + 3, 4096)),
        ("gelu_tanh", (2**20 + 3, 2048)),
        ("vision_qkv_rope", (2**20 + 3, 16, 64)),
        ("text_qkv_rope", (2**19 + 3, 28, 4, 128)),
        ("greedy", (2**14 + 3, 2**17)),
        ("route_topk", (2**24 + 3, 128, 8)),
    ],
)
def test_more_elements_than_32_bits_count(name, size):
    """The last rows are what they are alone."""
    op, last = BY_NAME[name], 1000
    few = op.inputs((last, *size[1:]), torch.bfloat16, GPU)
    wide = torch.zeros((size[0], few[0].shape[1]), dtype=torch.bfloat16, device=GPU)
    wide[-last:] = few[0]
    assert wide.numel() >= 2**31
    args = [wide]
    for a in few[1:]:
        if isinstance(a, torch.Tensor) and a.shape[0] == last:
            grown = a.new_zeros((size[0], *a.shape[1:]))
            grown[-last:] = a
            a = grown
        args.append(a)
    alone, among = (op.results(op.run(torch.empty, *given), given) for given in (few, tuple(args)))
    for a, b in zip(alone, among, strict=True):
        assert torch.equal(a, b[-last:])


def test_the_public_operators_pass_the_meter():
    METER.take()
    x, w = torch.randn(5, 64, device=GPU), torch.rand(64, device=GPU)
    cos, sin = torch.rand(5, 8, device=GPU), torch.rand(5, 8, device=GPU)
    rms_norm(x, w, 1e-6)
    add_rms_norm(x, x, w, 1e-6)
    silu_mul(x)
    gelu_tanh(x)
    route_topk(x, 4)
    pick_tokens(x)
    vision_qkv_rope(torch.randn(5, 96, device=GPU), cos, sin, 2)
    text_qkv_rope(torch.randn(5, 64, device=GPU), torch.rand(3, 16, device=GPU), 1e-6, cos, sin, 2)
    reading = METER.take()
    assert {t.operator for t in reading.tallies} == TRUTH.keys()
    assert all(t.device == "cuda:0" and t.checked == 1 for t in reading.tallies)
    assert reading.verdict == "healthy"


def test_ten_thousand_launches_raise_no_alarm_and_sampling_costs_little():
    cases = [(op, size, op.inputs(size, torch.bfloat16, GPU)) for op in OPERATORS for size in op.edges if size[0]]

    def seconds(meter: Meter) -> float:
        begin = time.perf_counter()
        for n in range(10_000):
            op, size, args = cases[n % len(cases)]
            meter.launch(op, size, args[0].nbytes, *args)
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    off, sampled = Meter("off"), Meter("sampled")
    seconds(sampled)
    seconds(off)
    times = {"off": seconds(off), "sampled": seconds(sampled)}
    reading = sampled.take()
    print(f"10,000 small launches: {times['off']:.3f} s off, {times['sampled']:.3f} s sampled")
    print(
        "\n".join(
            f"{t.operator:20} {t.device_ms:9.3f} ms {t.checked:4} checked, worst {t.max_rel_l2}"
            for t in reading.tallies
        )
    )
    assert reading.verdict == "healthy"
    assert sum(t.launches for t in reading.tallies) == 20_000
    assert all(t.device_ms > 0 for t in reading.tallies)


def test_a_captured_graph_is_neither_checked_nor_counted_until_it_runs():
    op = BY_NAME["rms_norm"]
    args = op.inputs((4, 2048), torch.bfloat16, GPU)
    meter = Meter()
    want = meter.launch(op, (4, 2048), 1, *args).clone()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        meter.launch(op, (4, 2048), 1, *args)
    torch.cuda.synchronize()
    meter.take()
    with meter.capturing() as captured, torch.cuda.graph(graph, stream=stream):
        out = meter.launch(op, (4, 2048), 1, *args)
    assert not meter.take().tallies
    for _ in range(3):
        graph.replay()
        meter.replayed(captured[0])
    torch.cuda.synchronize()
    assert torch.equal(out, want)
    assert [(t.launches, t.bytes) for t in meter.take().tallies] == [(3, 3)]
