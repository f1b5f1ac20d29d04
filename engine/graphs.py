"""Decoding steps on a GPU as captured graphs: one for each of a few batch sizes, replayed for whatever its inputs hold.

A step of a large model is some hundred launches, each shorter than the host needs to ask for it; a graph asks once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zellige.engine.config import EngineConfig
from zellige.engine.models.batch import ForwardBatch
from zellige.engine.models.qwen3_vl import Qwen3VL
from zellige.engine.scheduler import Chunk
from zellige.kernels.launches import Captured
from zellige.kernels.meter import METER
from zellige.kernels.paged_attention import PagedLayout

#: Batches are padded to the next of these: at most an eighth of a large one is wasted.
SIZES = (1, 2, 4, 8, *range(16, 64, 8), *range(64, 257, 16))
#: So are the block tables, each to so many blocks a sequence.
WIDTHS = tuple(8 << 2 * i for i in range(8))
#: One decoding step in so many runs launch by launch, so that the meter may check it.
EAGER_EVERY = 256


@dataclass(frozen=True, eq=False)
class _Graph:
    """``inputs`` (B · (6 + W),) int32 on the device, ``hosts`` the same in pinned memory, W blocks a sequence."""

    graph: torch.cuda.CUDAGraph
    captured: Captured
    #: Two of them: one may still be on its way to the device while the next step's is written.
    hosts: tuple[Tensor, Tensor]
    inputs: Tensor
    #: The graph reads its tensors for as long as it lives.
    batch: ForwardBatch


class DecodeGraphs:
    """The graphs of one model over its ``caches``, each captured when it is first needed."""

    def __init__(self, model: Qwen3VL, caches: Sequence[Tensor], config: EngineConfig) -> None:
        self._model, self._caches, self._block_tokens = model, caches, config.block_tokens
        #: The block that nobody owns: rows that pad a batch write and read there.
        self._spare = caches[0].shape[2] - 1
        self._sizes = [n for n in SIZES if n < config.max_sequences] + [min(SIZES[-1], config.max_sequences)]
        self._graphs: dict[tuple[int, int], _Graph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        #: Where every graph leaves its logits, so that none of them keeps its own.
        self._logits = torch.empty(
            self._sizes[-1], model.text.vocab, dtype=config.torch_dtype, device=config.torch_device
        )
        self._steps = 0

    def run(self, chunks: Sequence[Chunk], tokens: Tensor | None = None) -> Tensor | None:
        """Logits (S, V) of S generating sequences, until the next run; None for a step to be run launch by launch.

        ``tokens`` (S,) on the device are what the sequences go on with, where the host does not know it yet.
        """
        generating = all(c.length == 1 and c.start >= len(c.sequence.prompt.tokens) and not c.copy for c in chunks)
        if not generating or not 0 < len(chunks) <= self._sizes[-1]:
            return None
        self._steps += 1
        if self._steps % EAGER_EVERY == 0 or METER.level == "audit":
            return None
        size = next(n for n in self._sizes if n >= len(chunks))
        widest = max(len(c.sequence.blocks) for c in chunks)
        key = size, next(w for w in WIDTHS if w >= widest)
        if key not in self._graphs:
            self._graphs[key] = self._capture(*key)
        g = self._graphs[key]
        host = g.hosts[self._steps % 2]
        self._fill(host, *key, chunks, known=tokens is None)
        g.inputs.copy_(host, non_blocking=True)
        if tokens is not None:
            g.inputs[: len(chunks)].copy_(tokens)
        g.graph.replay()
        METER.replayed(g.captured)
        return self._logits[: len(chunks)]

    def seconds(self, sequences: int, replays: int = 20) -> float:
        """What a replay for so many sequences takes the device, the host having no part in it."""
        size = next(n for n in self._sizes if n >= sequences)
        graph = next(g.graph for (n, _), g in self._graphs.items() if n == size)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / replays

    def _fill(self, host: Tensor, size: int, width: int, chunks: Sequence[Chunk], *, known: bool = True) -> None:
        """Tokens, three positions, slots, lengths, then block tables; what pads stands at the spare block."""
        P = self._block_tokens
        values = host.numpy()
        rows = values[: 6 * size].reshape(6, size)
        tables = values[6 * size :].reshape(size, width)
        n = len(chunks)
        rows[0, :n] = [c.sequence.tokens[c.start] for c in chunks] if known else 0
        rows[1:4, :n] = [c.sequence.prompt.next + c.start - len(c.sequence.prompt.tokens) for c in chunks]
        rows[4, :n] = [c.sequence.blocks[c.start // P] * P + c.start % P for c in chunks]
        rows[5, :n] = [c.start + 1 for c in chunks]
        for row, c in enumerate(chunks):
            tables[row, : len(c.sequence.blocks)] = c.sequence.blocks
        rows[:4, n:] = 0
        rows[4, n:] = self._spare * P
        rows[5, n:] = 1
        tables[n:, 0] = self._spare

    def _capture(self, size: int, width: int) -> _Graph:
        device = self._caches[0].device
        first, second = (torch.zeros(size * (6 + width), dtype=torch.int32, pin_memory=True) for _ in range(2))
        self._fill(first, size, width, [])
        inputs = first.to(device)
        rows = inputs[: 6 * size].view(6, size)
        batch = ForwardBatch(
            tokens=rows[0],
            positions=rows[1:4].T,
            layout=PagedLayout(
                starts=tuple(range(size + 1)),
                lengths=(1,) * size,
                tables=inputs[6 * size :].view(size, width),
                slots=rows[4],
                single=size,
                single_mask=None,
                starts_device=torch.arange(size + 1, dtype=torch.int32, device=device),
                lengths_device=rows[5],
            ),
            logit_rows=torch.arange(size, device=device),
            image_rows=None,
            image_layers=[],
        )
        self._model.forward(batch, self._caches)  # compiles what is not yet compiled; nothing may be in a capture
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with (
            METER.capturing() as captured,
            torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
        ):
            self._logits[:size].copy_(self._model.forward(batch, self._caches))
        return _Graph(graph, captured[0], (first, second), inputs, batch)
