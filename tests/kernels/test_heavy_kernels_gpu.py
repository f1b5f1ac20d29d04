"""Attention, experts and quantised products on a device: sizes past 32 bits, every split of rows, graphs. By hand."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from zellige.kernels import experts, paged_attention_blocks, quant_matmul, vision_attention
from zellige.kernels.contract import Operator
from zellige.kernels.guards import checked

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
GPU = torch.device("cuda")
BF16 = torch.bfloat16


def sound(op: Operator, args: tuple) -> Tensor:
    """Launch under guard bands against the reference; gives the first output."""
    outputs, findings, _ = checked(op, args)
    assert not list(findings.faults())
    return op.results(outputs, args)[0]


@pytest.mark.parametrize("group", quant_matmul.GROUPS)
@pytest.mark.parametrize("rows", range(1, 18))
def test_quantised_product_at_every_number_of_rows(rows, group):
    for N, K in itertools.product((1, 4, 31, 32, 33, 96, 4096), (32, 48, 1040, 4096)):
        sound(quant_matmul.OPERATOR, quant_matmul.OPERATOR.inputs((rows, N, K, group, rows % 2), BF16, GPU))


@pytest.mark.parametrize("rows", [1, 2, 17, 65])
def test_quantised_weights_past_32_bits(rows):
    words, N = 2048, 2**20 + 8
    packed = torch.randint(-(2**31), 2**31 - 1, (N, words), dtype=torch.int32, device=GPU)
    scale = torch.rand(N, words // 16, device=GPU).to(BF16)
    x = torch.randn(rows, words * 8, device=GPU).to(BF16)
    if rows > quant_matmul.FUSED_ROWS:
        packed, scale = packed[-(2**17 + 8) :], scale[-(2**17 + 8) :]
    whole = quant_matmul.quant_matmul(x, packed, scale, None, 128)
    last = quant_matmul.quant_matmul_reference(x, packed[-64:], scale[-64:], None, 128)
    assert float((whole[:, -64:].float() - last.float()).norm() / last.float().norm()) < 8e-3


@pytest.mark.parametrize("rows", list(itertools.product((0, 1, 2, 3, 7, 8, 9), repeat=2)), ids=str)
def test_experts_with_any_number_of_rows(rows):
    spread = (*rows, 0, 1, 9, 17)
    x, gate_up, down, weights, _ = experts.OPERATOR.inputs((sum(spread), 256, 96, len(spread), 1), BF16, GPU)
    number = torch.repeat_interleave(torch.arange(len(spread)), torch.tensor(spread))
    chosen = number[torch.randperm(len(number))].unsqueeze(1).to(GPU)
    sound(experts.OPERATOR, (x, gate_up, down, weights, chosen))


def test_experts_whose_weights_pass_32_bits():
    x, gate_up, down, weights, chosen = experts.OPERATOR.inputs((33, 8192, 1536, 128, 8), BF16, GPU)
    assert gate_up.numel() > 2**31
    chosen[:, 0] = 127
    sound(experts.OPERATOR, (x, gate_up, down, weights, chosen))


def test_a_cache_past_32_bits():
    args = list(paged_attention_blocks.OPERATOR.inputs((3, 300, 32, 4, 128, 64, 100, 70), BF16, GPU))
    cache, tables, slots = args[3:6]
    far = 2**16
    large = torch.empty((2, 4, far + cache.shape[2], 64, 128), dtype=BF16, device=GPU)
    large[:, :, far:] = cache
    args[3:6] = large, tables + far, slots + far * 64
    assert large.numel() > 2**32
    sound(paged_attention_blocks.OPERATOR, tuple(args))


def test_images_whose_rows_pass_32_bits():
    q, k, v, bounds, size = vision_attention.OPERATOR.inputs((600, 16, 72, 3), BF16, GPU)
    want = vision_attention.vision_attention_reference(q, k, v, bounds, size)
    wide = torch.empty(603, 3, 2**21, dtype=BF16, device=GPU)
    apart = [wide[:, i, : 16 * 80].view(603, 16, 80) for i in range(3)]
    for to, x in zip(apart, (q, k, v), strict=True):
        to.copy_(x)
    got = vision_attention.vision_attention(*apart, bounds, size)
    assert float((got.float() - want.float()).norm() / want.float().norm()) < 8e-3


@pytest.mark.parametrize("sequences", [1, 2, 65, 4099])
def test_many_sequences_and_programs(sequences):
    sound(
        paged_attention_blocks.OPERATOR,
        paged_attention_blocks.OPERATOR.inputs((sequences, 70, 32, 4, 128, 64), BF16, GPU),
    )


def test_a_captured_step_serves_other_lengths_and_other_experts():
    op = paged_attention_blocks.OPERATOR
    args = op.inputs((4, 600, 32, 4, 128, 64), BF16, GPU)
    mixture = experts.OPERATOR.inputs((4, 256, 96, 16, 4), BF16, GPU)

    def step() -> tuple[Tensor, Tensor]:
        return op.run(torch.empty, *args), experts.OPERATOR.run(torch.empty, *mixture)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attended, mixed = step()
    args[7].copy_(torch.tensor([600, 1, 64, 65]))
    args[5].copy_(args[4].gather(1, ((args[7] - 1) // 64).long()[:, None])[:, 0] * 64 + (args[7] - 1) % 64)
    mixture[4].copy_(torch.stack([torch.randperm(16)[:4] for _ in range(4)]))
    want = op.reference(*args)[0], experts.experts_reference(*mixture)
    graph.replay()
    for got, expected in zip((attended, mixed), want, strict=True):
        assert float((got.float() - expected.float()).norm() / expected.float().norm()) < 1.2e-2
