"""What ``zellige.kernels.bench`` times: operators at the sizes that a run is made of, and peers doing the same work."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from zellige.kernels import experts_int4, paged_attention_blocks, quant_matmul, vision_attention
from zellige.kernels.bench import Call, Case
from zellige.kernels.contract import Operator
from zellige.kernels.experts_grouped import Tile, experts_grouped
from zellige.kernels.operators import OPERATORS
from zellige.kernels.vision_qkv_rope import widened

CUDA = torch.device("cuda")
#: Copies of the inputs of one case hold at least this much together: several times any L2 cache.
ROTATED_BYTES = 300 << 20


def _rand(*size: int, scale: float = 1.0) -> Tensor:
    return torch.randn(size, device=CUDA, dtype=torch.bfloat16) * scale


def quant_cases(sweep: bool) -> Iterator[Case]:
    """4-bit weights in groups of 128; the peer reads them in bfloat16."""
    sizes = (2048, 4096, 5120, 12288)
    lanes, tiles = quant_matmul.Lanes, quant_matmul.Cut
    few: list[quant_matmul.Lanes | quant_matmul.Cut] = [
        tiles(*c) for c in ((16, 8, 4, 4), (32, 8, 4, 4), (32, 8, 4, 6), (32, 8, 8, 3), (64, 8, 4, 3), (64, 8, 4, 4))
    ]
    more = {
        1: [*(lanes(*c) for c in ((8, 32, 1), (4, 64, 2), (4, 32, 1), (8, 64, 4), (4, 128, 4), (2, 64, 2))), *few],
        8: few,
    }
    for K, N in itertools.product(sizes, sizes):
        copies = -(-ROTATED_BYTES // (K * N // 2))
        rows = (1, 2, 4, 8, 16) if K == N else (1, 8)
        weights = []
        for _ in range(copies):
            packed = torch.randint(-(2**31), 2**31 - 1, (N, K // 8), dtype=torch.int32, device=CUDA)
            weights.append((packed, _rand(N, K // 128, scale=0.01)))
        for M in rows:
            x = _rand(M, K)
            moved = weights[0][0].nbytes + weights[0][1].nbytes + 2 * M * (K + N)

            def calls(x: Tensor = x, weights: Any = weights, cut: Any = None) -> list[Call]:
                return [partial(quant_matmul.OPERATOR.run, torch.empty, x, p, s, None, 128, cut) for p, s in weights]

            peers: dict[str, Sequence[Call]] = {}
            if K == N and M in (1, 8):
                wide = [_rand(N, K) for _ in range(-(-copies // 4))]
                peers["bfloat16 F.linear"] = [partial(F.linear, x, w) for w in wide]
                peers |= _gemlite(x, N, copies)
            yield Case(f"quant_matmul {M} x {K} -> {N}, 4 bits", calls(), moved, peers=peers)
            if sweep and K == N and M in more and K >= 4096:
                for cut in more[M]:
                    yield Case(f"  {M} x {K} -> {N} {tuple(cut)}", calls(cut=cut), moved)
        del weights
        torch.cuda.empty_cache()


def _gemlite(x: Tensor, N: int, copies: int) -> dict[str, Sequence[Call]]:
    """The same product by gemlite, where it is installed."""
    try:
        from gemlite.helper import A16W4_HQQ_INT
    except ImportError:
        return {}
    K, layers = x.shape[1], []
    for _ in range(min(copies, 8)):
        q = torch.randint(0, 16, (N, K), dtype=torch.uint8, device=CUDA)
        scale, zero = torch.rand(2, N * K // 128, 1, device=CUDA, dtype=torch.bfloat16)
        layers.append(A16W4_HQQ_INT(device="cuda", dtype=torch.bfloat16).from_weights(q, scale, zero))
    return {"gemlite": [partial(layer, x) for layer in layers]}


def experts_cases(sweep: bool) -> Iterator[Case]:
    """128 experts, 8 a token, 2048 x 768; an even router. The floor counts each touched expert once."""
    E, k, H, inner = 128, 8, 2048, 768
    gate_up, down = _rand(E, H, 2 * inner, scale=0.02), _rand(E, inner, H, scale=0.02)
    for T in (1, 8, 16, 32, 64, 128, 512, 4096):
        batches = []
        for _ in range(4 if T <= 512 else 1):
            weights, chosen = torch.rand(T, E, device=CUDA).topk(k)
            batches.append((_rand(T, H), gate_up, down, weights, chosen))
        touched = sum(len(b[4].unique()) for b in batches) / len(batches)
        moved = int(touched * 2 * 3 * H * inner) + 4 * T * H
        flops = 2.0 * T * k * 3 * H * inner

        def calls(batches: Any = batches, cut: Any = None) -> list[Call]:
            return [partial(_experts, cut, *b) for b in batches]

        peers: dict[str, Sequence[Call]] = {}
        if T >= 64:
            x, _, _, weights, chosen = batches[0]
            order = torch.argsort(chosen.flatten(), stable=True)
            ends = torch.bincount(chosen.flatten(), minlength=E).cumsum(0).to(torch.int32)
            rows = x[order // k]
            peers["two grouped_mm alone"] = [partial(_products, rows, gate_up, down, ends)]
            peers["grouped_mm and the rest"] = [partial(_pipeline, x, gate_up, down, weights, chosen)]
        yield Case(f"experts {T} tokens, {touched:.0f} of {E} touched", calls(), moved, flops, peers)
        if sweep and T in SWEEP:
            for first, second in SWEEP[T]:
                yield Case(f"  {T} tokens {tuple(first)} {tuple(second)}", calls(cut=(first, second)), moved, flops)


def int4_experts_cases(sweep: bool) -> Iterator[Case]:
    """The same experts with 4-bit weights in groups of 128; the peer is the operator with bfloat16 weights."""
    E, k, H, inner = 128, 8, 2048, 768
    cuts = [
        experts_int4.Tile(*c)
        for c in (
            (8, 32, 4, 3),
            (8, 32, 4, 5),
            (8, 64, 4, 3),
            (8, 64, 2, 4),
            (8, 128, 4, 3),
            (16, 32, 4, 3),
            (16, 64, 4, 3),
        )
    ]
    wide = _rand(E, H, 2 * inner, scale=0.02), _rand(E, inner, H, scale=0.02)
    for T in (1, 8, 32, 64, 512):
        batches = [experts_int4.OPERATOR.inputs((T, H, inner, E, k, 128, 0), torch.bfloat16, CUDA) for _ in range(2)]
        for i, batch in enumerate(batches):
            weights, chosen = torch.rand(T, E, device=CUDA).topk(k)
            batches[i] = (*batch[:3], weights, chosen)
        touched = sum(len(b[4].unique()) for b in batches) / len(batches)
        moved = int(touched * (batches[0][1].moved + batches[0][2].moved)) + 4 * T * H

        def calls(batches: Any = batches, cut: Any = None) -> list[Call]:
            return [partial(experts_int4.OPERATOR.run, torch.empty, *b, cut) for b in batches]

        peers = {"bfloat16": [partial(_experts, None, b[0], *wide, *b[3:]) for b in batches]}
        yield Case(f"experts_int4 {T} tokens, {touched:.0f} of {E}", calls(), moved, 6.0 * T * k * H * inner, peers)
        for cut in cuts if sweep else ():
            yield Case(f"  {T} tokens {tuple(cut)}", calls(cut=cut), moved)


SWEEP = {
    1: [
        (Tile(16, 16, 128, 4, 4), Tile(16, 64, 128, 4, 4)),
        (Tile(16, 32, 128, 4, 5), Tile(16, 32, 128, 4, 4)),
        (Tile(16, 16, 256, 4, 3), Tile(16, 64, 64, 4, 6)),
        (Tile(16, 32, 64, 2, 6), Tile(16, 64, 64, 2, 6)),
        (Tile(16, 32, 128, 8, 4), Tile(16, 64, 256, 4, 3)),
    ],
    8: [
        (Tile(16, 32, 128, 4, 3), Tile(16, 128, 64, 4, 3)),
        (Tile(16, 64, 64, 4, 4), Tile(16, 64, 128, 4, 4)),
        (Tile(16, 32, 64, 4, 6), Tile(16, 64, 64, 4, 5)),
    ],
    64: [
        (Tile(16, 64, 64, 4, 4), Tile(16, 64, 128, 4, 4)),
        (Tile(16, 32, 64, 4, 6), Tile(16, 128, 64, 4, 5)),
        (Tile(16, 64, 128, 8, 3), Tile(16, 256, 64, 8, 3)),
    ],
    4096: [
        (Tile(128, 64, 64, 4, 4), Tile(128, 128, 64, 4, 4)),
        (Tile(128, 128, 64, 8, 3), Tile(128, 128, 64, 8, 3)),
        (Tile(128, 64, 64, 8, 4), Tile(128, 256, 64, 8, 4)),
        (Tile(128, 128, 32, 8, 5), Tile(128, 256, 32, 8, 5)),
        (Tile(256, 64, 64, 8, 3), Tile(256, 128, 64, 8, 3)),
        (Tile(128, 128, 64, 8, 3), Tile(128, 256, 64, 8, 3)),
        (Tile(64, 128, 64, 4, 4), Tile(64, 256, 64, 4, 4)),
    ],
}


def _experts(cut: tuple[Tile, Tile] | None, *args: Tensor) -> Tensor:
    x, gate_up, down, weights, chosen = args
    return experts_grouped(torch.empty, x, gate_up, down, weights, chosen, cut)


def _products(rows: Tensor, gate_up: Tensor, down: Tensor, ends: Tensor) -> Tensor:
    hidden = F.grouped_mm(rows, gate_up, offs=ends)
    return F.grouped_mm(hidden[:, : down.shape[1]], down, offs=ends)


def _pipeline(x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """The experts with PyTorch's grouped product, nothing read on the host."""
    (T, k), E = chosen.shape, len(down)
    by_expert, order = torch.sort(chosen.flatten(), stable=True)
    ends = torch.searchsorted(by_expert, torch.arange(E, device=CUDA), right=True).to(torch.int32)
    gate, up = F.grouped_mm(x[order // k], gate_up, offs=ends).chunk(2, dim=-1)
    out = F.grouped_mm(F.silu(gate).mul_(up), down, offs=ends)
    parts = torch.empty_like(out).index_copy_(0, order, out).view(T, k, -1)
    return (parts * weights.to(x.dtype).unsqueeze(-1)).sum(1)


def paged_cases(sweep: bool) -> Iterator[Case]:
    """32 query and 4 key heads of 128, blocks of 64. Decoding: lengths evenly from 1 to 8 k."""
    op = paged_attention_blocks.OPERATOR
    for single, most in ((64, 8192), (1, 8192), (16, 8192), (64, 1100), (256, 1100)):
        args = op.inputs((single, most, 32, 4, 128, 64), torch.bfloat16, CUDA)
        tokens = int(args[7].sum())
        kv = _rand(2, single, 4, max(tokens // single, 1), 128)
        q = args[0].view(single, 32, 1, 128)
        peer = partial(F.scaled_dot_product_attention, q, kv[0], kv[1], enable_gqa=True)
        moved = 2 * tokens * 4 * 128 * 2
        copies = max(1, min(16, -(-(100 << 20) // moved)))
        sets = [(*args[:3], args[3].clone(), *args[4:]) for _ in range(copies)]
        yield Case(
            f"paged_attention decode {single} of 1 to {most}, {tokens} keys",
            [partial(op.run, torch.empty, *a) for a in sets],
            moved,
            peers={"SDPA, as many keys, equal lengths": [peer]},
        )
        if sweep:
            for stages, programs in ((2, 2048), (5, 2048), (3, 1024), (3, 4096), (5, 1024)):
                yield Case(
                    f"  stages {stages}, programs {programs}",
                    [partial(_decode, programs, stages, a) for a in sets],
                    moved,
                )
        del args, kv, sets
        torch.cuda.empty_cache()
    for pairs in ((0, 4096), (0, 1064) * 8, (4096, 512)):
        args = op.inputs((0, 0, 32, 4, 128, 64, *pairs), torch.bfloat16, CUDA)
        flops = sum(4.0 * 32 * 128 * n * (c + (n + 1) / 2) for c, n in zip(pairs[::2], pairs[1::2], strict=True))
        peers: dict[str, Sequence[Call]] = {}
        if pairs[0] == 0:
            n, batch = pairs[1], len(pairs) // 2
            q, k, v = _rand(batch, 32, n, 128), _rand(batch, 4, n, 128), _rand(batch, 4, n, 128)
            peers["SDPA flash"] = [partial(_sdpa, SDPBackend.FLASH_ATTENTION, q, k, v, is_causal=True, enable_gqa=True)]
        yield Case(f"paged_attention prefill {pairs}"[:58], [partial(op.run, torch.empty, *args)], 0, flops, peers)


def _decode(programs: int, stages: int, args: tuple[Any, ...]) -> object:
    paged_attention_blocks.PROGRAMS, kept = programs, paged_attention_blocks.PROGRAMS
    try:
        return paged_attention_blocks.OPERATOR.run(torch.empty, *args, stages)
    finally:
        paged_attention_blocks.PROGRAMS = kept


def _sdpa(backend: SDPBackend, *args: Any, **kwargs: Any) -> Tensor:
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(*args, **kwargs)


def vision_cases(sweep: bool) -> Iterator[Case]:
    """One image of 111 x 77 patches, and a batch of 1024 x 1024 ones."""
    cut = vision_attention.Cut
    for D, bounds in ((64, (0, 8547)), (72, (0, 8547)), (80, (0, 8547)), (72, tuple(range(0, 16385, 4096)))):
        N = bounds[-1]
        wide = torch.nn.functional.pad(_rand(3, N, 16, D), (0, sum(widened(D)) - D))
        q, k, v = wide
        flops = sum(4.0 * 16 * D * (b - a) ** 2 for a, b in itertools.pairwise(bounds))
        images = N // bounds[1]
        heads = [x[..., :D].reshape(images, -1, 16, D).transpose(1, 2) for x in (q, k, v)]
        yield Case(
            f"vision_attention {images} x {bounds[1]}, 16 heads of {D}",
            [partial(vision_attention.OPERATOR.run, torch.empty, q, k, v, bounds, D)],
            0,
            flops,
            {
                "SDPA flash": [partial(_sdpa, SDPBackend.FLASH_ATTENTION, *heads)],
                "SDPA cudnn": [partial(_sdpa, SDPBackend.CUDNN_ATTENTION, *heads)],
            },
        )
        if sweep and (images == 1 or D == 72):
            for sizes in (
                cut(128, 128, 8, 3),
                cut(128, 64, 4, 3),
                cut(64, 64, 4, 3),
                cut(128, 64, 8, 2),
                cut(128, 128, 8, 2),
            ):
                call = partial(vision_attention.OPERATOR.run, torch.empty, q, k, v, bounds, D, sizes)
                yield Case(f"  {tuple(sizes)}", [call], 0, flops)


def row_cases(sweep: bool) -> Iterator[Case]:
    """The operators that pass over rows once, at the largest of their sizes."""
    own = {"experts", "experts_int4", "few_rows", "paged_attention", "quant_matmul", "vision_attention"}
    for op in OPERATORS:
        if op.name not in own:
            size = max(op.large, key=lambda s: s[0] * s[1])
            sets = [op.inputs(size, torch.bfloat16, CUDA) for _ in range(3)]
            outputs = op.results(op.run(torch.empty, *sets[0]), sets[0])
            moved = sum(t.nbytes for t in (*sets[0], *outputs) if isinstance(t, Tensor))
            yield Case(f"{op.name} {size}", [_call(op, args) for args in sets], moved)


def _call(op: Operator, args: tuple[Any, ...]) -> Call:
    return partial(op.run, torch.empty, *args)


CASES: dict[str, Callable[[bool], Iterator[Case]]] = {
    "experts": experts_cases,
    "experts_int4": int4_experts_cases,
    "paged_attention": paged_cases,
    "vision_attention": vision_cases,
    "quant_matmul": quant_cases,
    "rows": row_cases,
}
