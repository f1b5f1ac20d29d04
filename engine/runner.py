"""Device work: encodes images, runs the decoder over a step's chunks, chooses tokens. Owns the cache's memory."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from zellige.engine.config import EngineConfig
from zellige.engine.layers.vision import cell_order
from zellige.engine.models.batch import ForwardBatch
from zellige.engine.models.qwen3_vl import Qwen3VL
from zellige.engine.processor import ImageRules, PromptImage
from zellige.engine.sampler import Chosen, StepControls
from zellige.engine.scheduler import Chunk
from zellige.kernels.paged_attention import PagedLayout, Run
from zellige.kernels.sampling import Picked, pick_tokens


@dataclass(frozen=True)
class StepResult:
    """What a step gave: what was chosen for each chunk that ends its sequence, in order; where the seconds went."""

    chosen: list[Chosen]
    vision_s: float
    decoder_s: float


class VisionCache:
    """Encoded images by content key, the longest unused thrown out past a number of bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        #: Images asked for, and those of them that were there.
        self.queries = self.hits = 0
        self._bytes = 0
        self._encoded: OrderedDict[str, Tensor] = OrderedDict()

    def get(self, key: str) -> Tensor | None:
        self.queries += 1
        if (found := self._encoded.get(key)) is not None:
            self.hits += 1
            self._encoded.move_to_end(key)
        return found

    def put(self, key: str, encoded: Tensor) -> None:
        if key in self._encoded:
            return
        self._encoded[key] = encoded
        self._bytes += encoded.nbytes
        while self._bytes > self._limit and len(self._encoded) > 1:
            _, old = self._encoded.popitem(last=False)
            self._bytes -= old.nbytes


class Runner:
    """One model on one device. Not safe to use from several threads at once."""

    def __init__(self, model: Qwen3VL, rules: ImageRules, config: EngineConfig) -> None:
        self.model, self.rules, self.config = model, rules, config
        self.device, dtype = config.torch_device, config.torch_dtype
        keeps = model.keeps()
        block_bytes = sum(2 * k.kv_heads * k.head_dim for k in keeps) * config.block_tokens * dtype.itemsize
        self.blocks = max(config.cache_bytes // block_bytes, 1)
        self.remembered_blocks = config.prefix_cache_bytes // block_bytes
        # One block more than is handed out: rows of a block table that hold nothing point there.
        self._caches = [
            torch.zeros(
                2, k.kv_heads, self.blocks + 1, config.block_tokens, k.head_dim, dtype=dtype, device=self.device
            )
            for k in keeps
        ]
        self.vision = VisionCache(config.vision_cache_bytes)
        self._mean = torch.tensor(rules.mean, device=self.device)
        self._std = torch.tensor(rules.std, device=self.device)

    @torch.inference_mode()
    def step(self, chunks: Seq[Chunk], controls: StepControls) -> StepResult:
        """Compute the chunks (those of one token first) and choose a token for each that ends its sequence."""
        begin = time.perf_counter()
        images = self._encode(_images_in(chunks))
        if images:
            self._synchronize()
        encoded_at = time.perf_counter()
        self._copy(chunks)
        logits = self.model.forward(self._batch(chunks, images), self._caches)
        chosen = _to_host(pick_tokens(logits, controls.on(self.device)))
        end = time.perf_counter()
        return StepResult(chosen, encoded_at - begin, end - encoded_at)

    def _copy(self, chunks: Seq[Chunk]) -> None:
        """Beginnings that were computed for another sequence."""
        for copy in (c.copy for c in chunks if c.copy is not None):
            for cache in self._caches:
                cache[:, :, copy.target, : copy.tokens] = cache[:, :, copy.source, : copy.tokens]

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _encode(self, images: Seq[PromptImage]) -> dict[str, Tensor]:
        """Encodings (1 + deepstack layers, tokens, H) by key: from the cache, or by the tower, several at once."""
        encoded: dict[str, Tensor] = {}
        missing: dict[str, PromptImage] = {}
        for image in images:
            if (known := self.vision.get(image.key)) is None:
                missing[image.key] = image
            else:
                encoded[image.key] = known
        for group in self._groups(list(missing.values())):
            for image, tensor in zip(group, self._see(group), strict=True):
                encoded[image.key] = tensor
                self.vision.put(image.key, tensor)
        return encoded

    def _groups(self, images: Seq[PromptImage]) -> list[list[PromptImage]]:
        """Images that go through the tower together: up to ``vision_patches``, or one larger image."""
        groups: list[list[PromptImage]] = []
        room = 0
        for image in images:
            patches = image.grid[0] * image.grid[1]
            if patches > room:
                groups.append([])
                room = self.config.vision_patches
            groups[-1].append(image)
            room -= patches
        return groups

    def _see(self, images: Seq[PromptImage]) -> list[Tensor]:
        layers = self.model.see(torch.cat([self._patches(i) for i in images]), [i.grid for i in images])
        stacked = torch.stack(layers)
        if stacked.shape[1] != sum(i.tokens for i in images):
            raise RuntimeError(f"{stacked.shape[1]} image embeddings for {sum(i.tokens for i in images)} places")
        # Copies, so that one image in the cache does not hold the memory of all that were encoded with it.
        return [part.contiguous() for part in stacked.split([i.tokens for i in images], dim=1)]

    def _patches(self, image: PromptImage) -> Tensor:
        """Normalised patches (N, 3·patch²) of one image, in cell order, channel first inside a patch."""
        patch = self.rules.budget.patch
        rows, columns = image.grid
        # copy: a resized image is a read-only view of Pillow's memory
        x = torch.from_numpy(image.pixels.copy()).to(self.device)
        x = (x.float() * self.rules.rescale - self._mean) / self._std
        r, c = cell_order(rows, columns, self.rules.budget.merge)
        by_patch = x.view(rows, patch, columns, patch, 3).permute(0, 2, 4, 1, 3).reshape(rows * columns, -1)
        return by_patch.index_select(0, (r * columns + c).to(self.device))

    def _batch(self, chunks: Seq[Chunk], images: dict[str, Tensor]) -> ForwardBatch:
        P = self.config.block_tokens
        tokens: list[int] = []
        positions: list[tuple[int, int, int]] = []
        slots: list[int] = []
        starts, lengths, logit_rows = [0], [], []
        image_rows: list[int] = []
        image_parts: list[Tensor] = []
        for chunk in chunks:
            s, prompt = chunk.sequence, chunk.sequence.prompt
            end = chunk.start + chunk.length
            tokens += s.tokens[chunk.start : end]
            asked = len(prompt.tokens)
            if chunk.start < asked:
                positions += map(tuple, prompt.positions[chunk.start : min(end, asked)].tolist())
            positions += [(prompt.next + i - asked,) * 3 for i in range(max(chunk.start, asked), end)]
            slots += [s.blocks[i // P] * P + i % P for i in range(chunk.start, end)]
            for image in prompt.images:
                a, b = max(chunk.start, image.start), min(end, image.start + image.tokens)
                if a < b:
                    image_rows += range(starts[-1] + a - chunk.start, starts[-1] + b - chunk.start)
                    image_parts.append(images[image.key][:, a - image.start : b - image.start])
            starts.append(starts[-1] + chunk.length)
            lengths.append(end)
            if chunk.ends_sequence:
                logit_rows.append(starts[-1] - 1)
        most = max(len(c.sequence.blocks) for c in chunks)
        tables = [c.sequence.blocks + [self.blocks] * (most - len(c.sequence.blocks)) for c in chunks]
        single = sum(c.length == 1 for c in chunks)

        def on_device(values: object) -> Tensor:
            return torch.tensor(values, dtype=torch.int64).to(self.device, non_blocking=True)

        return ForwardBatch(
            tokens=on_device(tokens),
            positions=on_device(positions),
            layout=PagedLayout(
                starts=tuple(starts),
                lengths=tuple(lengths),
                tables=on_device(tables),
                slots=on_device(slots),
                single=single,
                single_mask=self._single_mask(lengths[:single]),
                runs=_runs(chunks[:single]),
            ),
            logit_rows=on_device(logit_rows),
            image_rows=on_device(image_rows) if image_rows else None,
            image_layers=list(torch.cat(image_parts, dim=1).unbind(0)) if image_parts else [],
        )

    def _single_mask(self, lengths: list[int]) -> Tensor | None:
        if not lengths:
            return None
        beyond = torch.arange(max(lengths))[None] >= torch.tensor(lengths)[:, None]
        mask = torch.zeros(beyond.shape).masked_fill_(beyond, float("-inf"))
        return mask[:, None, None].to(self.device, self.config.torch_dtype)


def _images_in(chunks: Seq[Chunk]) -> list[PromptImage]:
    """The images of which a chunk holds at least one token."""
    return [
        image
        for c in chunks
        for image in c.sequence.prompt.images
        if image.start < c.start + c.length and image.start + image.tokens > c.start
    ]


def _runs(singles: Seq[Chunk]) -> tuple[Run, ...]:
    """Sequences of one block each, neighbours in the cache together; the longer ones, which come last, as one run."""
    runs: list[Run] = []
    for row, chunk in enumerate(singles):
        blocks = chunk.sequence.blocks
        if len(blocks) > 1:
            runs.append(Run(row, len(singles), None))
            break
        if runs and runs[-1].block == blocks[0] - (row - runs[-1].begin):
            runs[-1] = replace(runs[-1], end=row + 1)
        else:
            runs.append(Run(row, row + 1, blocks[0]))
    return tuple(runs)


def _to_host(picked: Picked) -> list[Chosen]:
    tops = zip(picked.top_token.tolist(), picked.top_logprob.tolist(), strict=True)
    rows = zip(picked.token.tolist(), picked.logprob.tolist(), picked.finite.tolist(), tops, strict=True)
    return [Chosen(t, p, finite, list(zip(*top, strict=True))) for t, p, finite, top in rows]
