"""Device work: encodes images, runs the decoder over a step's chunks, chooses tokens. Owns the cache's memory."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from zellige.engine.batching import batch_of, with_images
from zellige.engine.config import EngineConfig
from zellige.engine.graphs import DecodeGraphs
from zellige.engine.images import ImageEncoder, touched
from zellige.engine.layers.watch import NonFiniteFound, Watch, stop_at_nonfinite
from zellige.engine.models.batch import ForwardBatch
from zellige.engine.models.qwen3_vl import Qwen3VL
from zellige.engine.processor import ImageRules, Prompt, PromptImage
from zellige.engine.profile import plan_memory
from zellige.engine.sampler import Chosen, StepControls
from zellige.engine.scheduler import Chunk, Sequence
from zellige.kernels.sampling import Picked, pick_tokens


@dataclass(frozen=True)
class StepResult:
    """What a step gave: what was chosen for each chunk that ends its sequence, in order; where the seconds went."""

    chosen: list[Chosen]
    vision_s: float
    decoder_s: float


@dataclass(frozen=True, eq=False)
class Launched:
    """A step on its way."""

    picked: Picked
    clock: _Clock

    def result(self) -> StepResult:
        """Wait for it; a device error of the step is raised here at the latest."""
        chosen = _to_host(self.picked)
        vision_s, decoder_s = self.clock.seconds()
        return StepResult(chosen, vision_s, decoder_s)


class Runner:
    """One model on one device. Not safe to use from several threads at once."""

    def __init__(self, model: Qwen3VL, rules: ImageRules, config: EngineConfig) -> None:
        self.model, self.config = model, config
        self.device, dtype = config.torch_device, config.torch_dtype
        self.images = ImageEncoder(model, rules, self.device, config.vision_patches, config.vision_cache_bytes)
        keeps = model.keeps()
        block_bytes = sum(2 * k.kv_heads * k.head_dim for k in keeps) * config.block_tokens * dtype.itemsize
        #: What the device's memory is for, None where ``cache_bytes`` says what the cache may take.
        self.memory = None
        if config.cache_bytes is None:
            self.memory = plan_memory(model, self.images, rules, config)
            self.blocks = self.memory.blocks(block_bytes, needed=-(-config.step_tokens // config.block_tokens))
        else:
            self.blocks = max(config.cache_bytes // block_bytes, 1)
        remembered = config.prefix_cache_bytes
        self.remembered_blocks = None if remembered is None else remembered // block_bytes
        # One block more than is handed out: rows of a block table that hold nothing point there.
        self._caches = [
            torch.zeros(
                2, k.kv_heads, self.blocks + 1, config.block_tokens, k.head_dim, dtype=dtype, device=self.device
            )
            for k in keeps
        ]
        graphs = self.device.type == "cuda" and model.capturable
        self.graphs = DecodeGraphs(model, self._caches, config) if graphs else None

    @torch.inference_mode()
    def launch(self, chunks: Seq[Chunk], controls: StepControls) -> Launched:
        """Compute the chunks (those of one token first) and choose a token for each that ends its sequence.

        On a GPU the host has work to do meanwhile: it may wait for ``Launched.result`` later.
        """
        clock = _Clock(self.device)
        logits = self.graphs.run(chunks) if self.graphs is not None else None
        if logits is None:
            batch = self.batch(chunks)  # before the images: what it copies to the device waits for nothing there
            batch = with_images(batch, chunks, self.images.encode(_images_in(chunks)))
            clock.tick()
            self._copy(chunks)
            logits = self.model.forward(batch, self._caches)
        else:
            clock.tick()
        return Launched(pick_tokens(logits, controls.on(self.device)), clock)

    @torch.inference_mode()
    def launch_ahead(
        self, before: Launched, rows: Seq[int], chunks: Seq[Chunk], controls: StepControls
    ) -> Launched | None:
        """Decode on from what ``before`` will choose in its ``rows``, not waiting for it; None: not on this device, or
        not in this step."""
        if self.graphs is None:
            return None
        tokens = before.picked.token
        if len(rows) != len(tokens):
            tokens = tokens.index_select(0, torch.tensor(rows).to(self.device))
        clock = _Clock(self.device)
        clock.tick()
        logits = self.graphs.run(chunks, tokens)
        return None if logits is None else Launched(pick_tokens(logits, controls.on(self.device)), clock)

    def batch(self, chunks: Seq[Chunk]) -> ForwardBatch:
        """What the model is given for ``chunks``, without their images."""
        return self._batch(chunks, self.blocks)

    def _batch(self, chunks: Seq[Chunk], spare_block: int) -> ForwardBatch:
        return batch_of(
            chunks,
            block_tokens=self.config.block_tokens,
            spare_block=spare_block,
            device=self.device,
            dtype=self.config.torch_dtype,
        )

    @torch.inference_mode()
    def alone(self, prompt: Prompt, tokens: list[int], watch: Watch, step_tokens: int) -> Tensor:
        """Logits (1, V) behind ``tokens``, computed anew from the pixels on, in steps, in a cache of its own.

        ``watch`` sees what passes; nothing that was remembered is used.
        """
        P = self.config.block_tokens
        blocks = -(-len(tokens) // P)
        caches = [cache.new_zeros(2, cache.shape[1], blocks + 1, P, cache.shape[4]) for cache in self._caches]
        images = {i.key: torch.stack(self.model.see(self.images.patches(i), [i.grid], watch)) for i in prompt.images}
        sequence = Sequence("alone", prompt, tokens, len(tokens), blocks=list(range(blocks)))
        logits = torch.empty(0)
        for begin in range(0, len(tokens), step_tokens):
            chunk = Chunk(sequence, begin, min(step_tokens, len(tokens) - begin))
            logits = self.model.forward(with_images(self._batch([chunk], blocks), [chunk], images), caches, watch)
        return logits

    def first_nonfinite(self, sequence: Sequence) -> str | None:
        """The first place where a NaN or infinity comes up when a sequence is computed again; None: nowhere."""
        try:
            self.alone(sequence.prompt, sequence.tokens, stop_at_nonfinite, self.config.step_tokens)
        except NonFiniteFound as found:
            return str(found)
        return None

    def _copy(self, chunks: Seq[Chunk]) -> None:
        """Beginnings that were computed for another sequence."""
        for copy in (c.copy for c in chunks if c.copy is not None):
            for cache in self._caches:
                cache[:, :, copy.target, : copy.tokens] = cache[:, :, copy.source, : copy.tokens]


class _Clock:
    """Seconds of the device before and after a tick; the host waits for nothing until it reads them."""

    def __init__(self, device: torch.device) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(3)] if device.type == "cuda" else []
        self._times: list[float] = []
        self.tick()

    def tick(self) -> None:
        if self._events:
            self._events[len(self._times)].record()
        self._times.append(time.perf_counter())

    def seconds(self) -> tuple[float, float]:
        """Before the tick, and from it until now."""
        self.tick()
        if self._events:
            first, ticked, last = self._events
            last.synchronize()
            return first.elapsed_time(ticked) / 1e3, ticked.elapsed_time(last) / 1e3
        first_s, ticked_s, last_s = self._times
        return ticked_s - first_s, last_s - ticked_s


def _images_in(chunks: Seq[Chunk]) -> list[PromptImage]:
    """The images of which a chunk holds at least one token."""
    return [i for c in chunks for i in c.sequence.prompt.images if touched(i, c.start, c.start + c.length)]


def _to_host(picked: Picked) -> list[Chosen]:
    # In one piece, which costs one wait; float64 holds every token id.
    token, logprob, finite = torch.stack([t.double() for t in (picked.token, picked.logprob, picked.finite)]).tolist()
    tops: list[list[tuple[int, float]]] = [[] for _ in token]
    if picked.top_token.shape[1]:
        pairs = zip(picked.top_token.tolist(), picked.top_logprob.tolist(), strict=True)
        tops = [list(zip(*pair, strict=True)) for pair in pairs]
    return [Chosen(int(t), p, bool(f), top) for t, p, f, top in zip(token, logprob, finite, tops, strict=True)]
