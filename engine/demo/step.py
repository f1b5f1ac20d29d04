"""Forward and backward of one batch, as one CUDA graph a kind and number of cells.

What a grid decides lies in static buffers, so grids of as many cells share a graph. Pictures are made outside it.
Shapes: B images, N patches, S slot tokens; losses are means over answer tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from zellige.engine.demo.architecture import MERGE
from zellige.engine.demo.augment import Augment
from zellige.engine.demo.decoder import DecoderLayer
from zellige.engine.demo.geometry import Geometry, make_geometry
from zellige.engine.demo.grids import KINDS, Grid, Kind, grids_for
from zellige.engine.demo.net import CHARACTERS_A_PATCH, DemoNet
from zellige.engine.demo.packing import PREFIX_TOKENS, SLOTS
from zellige.engine.demo.pools import Batch
from zellige.engine.demo.vision import PATCH_VALUES, VisionBlock, to_patches

#: Work of one batch, by kind: tokens of the sequence, a patch counted as two (its tower is twice as deep and wide).
WORK: dict[Kind, int] = {"document": 195_000, "paragraph": 42_000, "line": 75_000, "scene": 80_000}
#: Cached device memory that is handed back before a capture, for a capture cannot do that itself.
_CACHE_BYTES = 40 << 30
#: Weight of the first slot's tokens (a whole text is many tokens, and one of five slots).
_FIRST_SLOT: dict[Kind, float] = {"document": 0.3, "paragraph": 1.0, "line": 1.0, "scene": 1.0}
_BALANCE = 0.01
#: Weight of patches without characters in the reading loss.
_BLANK_PATCH = 0.15
#: Names of the statistics that a batch adds up.
STATISTICS = ("first", "others", "reading", "read_right", "balance", "batches")


@dataclass(frozen=True, eq=False)
class _Inputs:
    """Static inputs of one graph, views into buffers that all graphs of a kind share."""

    patches: Tensor  # (B, N, 768)
    ids: Tensor  # (B, S)
    answers: Tensor  # (B, S)
    labels: Tensor  # (B, N, 4), merge order
    geometry: Geometry


class Steps:
    """Runs batches; gradients add up in the network's buffers."""

    def __init__(
        self, net: DemoNet, prefix: list[int], device: torch.device, dtype: torch.dtype, scale: float = 1.0
    ) -> None:
        self.net, self.device, self.dtype, self.scale = net, device, dtype, scale
        self.augment = Augment(device)
        #: Weight of the reading loss; a tensor, so that graphs see it change.
        self.reading_weight = torch.tensor(1.0, device=device)
        self.statistics = {kind: torch.zeros(len(STATISTICS), device=device) for kind in KINDS}
        self._prefix = torch.tensor(prefix, device=device)
        self._geometries: dict[tuple[Kind, Grid], Geometry] = {}
        self._inputs: dict[tuple[Kind, int], _Inputs] = {}
        self._graphs: dict[tuple[Kind, int], torch.cuda.CUDAGraph] = {}
        self._buffers = {kind: self._make_buffers(kind) for kind in KINDS}
        self._weights = {kind: self._slot_weights(kind) for kind in KINDS}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def batch_size(self, kind: Kind, cells: int) -> int:
        """Images of a batch of this kind with so many cells each."""
        work = 2 * cells * MERGE * MERGE + PREFIX_TOKENS + cells + sum(SLOTS[kind])
        return max(2, int(WORK[kind] * self.scale) // work)

    def _make_buffers(self, kind: Kind) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Room for the largest batch of a kind: patch values, ids, answers, labels."""
        cells = [grid.cells for grid in grids_for(kind)]
        most = max(self.batch_size(kind, c) * c * MERGE * MERGE for c in cells)
        rows, tokens = max(self.batch_size(kind, c) for c in cells), sum(SLOTS[kind])
        return (
            torch.zeros(most * PATCH_VALUES, device=self.device, dtype=self.dtype),
            torch.zeros(rows * tokens, device=self.device, dtype=torch.long),
            torch.zeros(rows * tokens, device=self.device),
            torch.zeros(most * CHARACTERS_A_PATCH, device=self.device, dtype=torch.long),
        )

    def _slot_weights(self, kind: Kind) -> Tensor:
        weights = torch.ones(sum(SLOTS[kind]), device=self.device)
        weights[: SLOTS[kind][0]] = _FIRST_SLOT[kind]
        return weights

    def _geometry(self, kind: Kind, grid: Grid) -> Geometry:
        key = (kind, grid)
        if key not in self._geometries:
            a = self.net.architecture
            self._geometries[key] = make_geometry(a, grid, SLOTS[kind], self.device, self.dtype)
        return self._geometries[key]

    def _inputs_for(self, kind: Kind, grid: Grid) -> _Inputs:
        key = (kind, grid.cells)
        if key not in self._inputs:
            rows, patches, tokens = self.batch_size(kind, grid.cells), grid.cells * MERGE * MERGE, sum(SLOTS[kind])
            values, ids, answers, labels = self._buffers[kind]
            self._inputs[key] = _Inputs(
                values[: rows * patches * PATCH_VALUES].view(rows, patches, PATCH_VALUES),
                ids[: rows * tokens].view(rows, tokens),
                answers[: rows * tokens].view(rows, tokens),
                labels[: rows * patches * CHARACTERS_A_PATCH].view(rows, patches, CHARACTERS_A_PATCH),
                self._geometry(kind, grid).clone(),
            )
        return self._inputs[key]

    @torch.no_grad()
    def _fill(self, kind: Kind, grid: Grid, batch: Batch) -> None:
        """Make pictures of the batch and put it where the graph looks."""
        inputs, geometry = self._inputs_for(kind, grid), self._geometry(kind, grid)
        inputs.geometry.copy_(geometry)
        if kind == "scene":
            pictures = self.augment.scene(batch.images)
        else:
            sheets = batch.sheets
            pictures, labels = self.augment.ink(batch.images, batch.marks, sheets[:, :2], sheets[:, 2])
            inputs.labels.copy_(labels[:, geometry.order])
        inputs.patches.copy_(to_patches(pictures, self.dtype))
        inputs.ids.copy_(batch.ids)
        inputs.answers.copy_(batch.answers)

    def _losses(self, kind: Kind, inputs: _Inputs) -> None:
        """Forward, loss and backward of what lies in ``inputs``."""
        hidden, image, deep = self.net.see(inputs.patches, inputs.geometry)
        logits, balance = self.net.say(image, deep, self._prefix, inputs.ids, inputs.geometry)
        target, answered = inputs.ids[:, 1:], inputs.answers[:, 1:]
        flat = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), target.flatten(), reduction="none")
        losses = flat.view_as(answered)
        weight = answered * self._weights[kind][1:]
        total = (losses * weight).sum() / weight.sum().clamp(min=1) + _BALANCE * balance
        masked, first = losses.detach() * answered, SLOTS[kind][0] - 1
        statistics = [
            masked[:, :first].sum() / answered[:, :first].sum().clamp(min=1),
            masked[:, first:].sum() / answered[:, first:].sum().clamp(min=1),
        ]
        if kind == "scene":
            statistics += [torch.zeros((), device=self.device)] * 2
        else:
            reading, right = self._reading(hidden, inputs.labels)
            total = total + self.reading_weight * reading
            statistics += [reading.detach(), right]
        total.backward()
        one = torch.ones((), device=self.device)
        self.statistics[kind].add_(torch.stack([*statistics, balance.detach(), one]))

    def _reading(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of the reading head on a third of the patches, and the share of characters that it names right."""
        count = hidden.shape[1]
        picks = torch.randint(0, count, (max(16, count // 3),), device=self.device)
        chosen = (picks[:, None] == torch.arange(count, device=self.device)).to(hidden.dtype)
        logits = self.net.reading(chosen @ hidden).flatten(0, -2).float()
        wanted = labels[:, picks].reshape(-1)
        there = wanted > 0
        weight = torch.where(there, 1.0, _BLANK_PATCH)
        loss = (F.cross_entropy(logits, wanted, reduction="none") * weight).sum() / weight.sum()
        right = ((logits.detach().argmax(-1) == wanted) & there).sum() / there.sum().clamp(min=1)
        return loss, right

    def compile_blocks(self) -> None:
        """Run vision blocks and attention halves in compiled form, for any batch size and number of patches."""
        self.net.model.visual.run_block = torch.compile(VisionBlock.forward, dynamic=True)
        self.net.model.language_model.run_attention = torch.compile(DecoderLayer.attend, dynamic=True)

    def plain_blocks(self) -> None:
        """Run blocks as they are written again; captured graphs keep the compiled form."""
        self.net.model.visual.run_block = VisionBlock.forward
        self.net.model.language_model.run_attention = DecoderLayer.attend

    def warm(self, kind: Kind, grid: Grid) -> None:
        """Run once on whatever lies in the buffers, so that everything is compiled and allocated."""
        self._losses(kind, self._inputs_for(kind, grid))

    def capture(self, kind: Kind, grid: Grid) -> None:
        """Record the graph of this kind and this number of cells; nothing else may use the device meanwhile."""
        inputs = self._inputs_for(kind, grid)
        self._losses(kind, inputs)
        torch.cuda.synchronize()
        if torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > _CACHE_BYTES:
            torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        # Not the context manager: it collects garbage and empties caches at every entry, and there are hundreds.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        self._losses(kind, inputs)
        graph.capture_end()
        self._graphs[kind, grid.cells] = graph

    def run(self, kind: Kind, grid: Grid, batch: Batch) -> None:
        """Add the gradients of one batch."""
        self._fill(kind, grid, batch)
        graph = self._graphs.get((kind, grid.cells))
        if graph is None:
            self._losses(kind, self._inputs_for(kind, grid))
        else:
            graph.replay()

    def read_statistics(self) -> dict[str, dict[str, float]]:
        """Means since the last reading, by kind; clears them."""
        found: dict[str, dict[str, float]] = {}
        for kind, sums in self.statistics.items():
            values = sums.tolist()
            sums.zero_()
            found[kind] = {
                name: round(v / max(1.0, values[-1]), 4) for name, v in zip(STATISTICS[:-1], values[:-1], strict=True)
            }
        return found
