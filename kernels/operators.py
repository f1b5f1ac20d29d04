"""Every operator there is: what self-tests, benchmarks and ahead-of-time compilation go through."""

from __future__ import annotations

from zellige.kernels import (
    experts,
    experts_int4,
    gelu_tanh,
    greedy,
    paged_attention_blocks,
    quant_matmul,
    rms_norm,
    route_topk,
    silu_mul,
    text_qkv_rope,
    vision_attention,
    vision_qkv_rope,
)
from zellige.kernels.contract import Operator

OPERATORS: tuple[Operator, ...] = (
    rms_norm.OPERATOR,
    rms_norm.ADD_OPERATOR,
    silu_mul.OPERATOR,
    gelu_tanh.OPERATOR,
    vision_qkv_rope.OPERATOR,
    text_qkv_rope.OPERATOR,
    route_topk.OPERATOR,
    greedy.OPERATOR,
    vision_attention.OPERATOR,
    paged_attention_blocks.OPERATOR,
    experts.OPERATOR,
    experts_int4.OPERATOR,
    quant_matmul.OPERATOR,
)
