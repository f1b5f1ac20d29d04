"""From a step's chunks to what the model is given: tokens, positions, slots, block tables, image rows."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zellige.engine.models.batch import ForwardBatch
from zellige.engine.scheduler import Chunk
from zellige.kernels.paged_attention import PagedLayout, Run


def batch_of(
    chunks: Seq[Chunk],
    *,
    block_tokens: int,
    spare_block: int,
    device: torch.device,
    dtype: torch.dtype,
) -> ForwardBatch:
    """The batch of ``chunks`` (those of one token first) on ``device``, without the encodings of their images.

    ``spare_block`` is the one that nobody owns: rows of a block table that hold nothing point there.
    """
    single = sum(c.length == 1 for c in chunks)
    tokens: list[int] = []
    starts, lengths, logit_rows = [0], [], []
    image_rows: list[NDArray[np.int64]] = []
    for chunk in chunks:
        end = chunk.start + chunk.length
        tokens += chunk.sequence.tokens[chunk.start : end]
        for image in chunk.sequence.prompt.images:
            a, b = max(chunk.start, image.start), min(end, image.start + image.tokens)
            if a < b:
                image_rows.append(np.arange(starts[-1] + a - chunk.start, starts[-1] + b - chunk.start))
        starts.append(starts[-1] + chunk.length)
        lengths.append(end)
        if chunk.ends_sequence:
            logit_rows.append(starts[-1] - 1)
    most = max(len(c.sequence.blocks) for c in chunks)
    tables = [c.sequence.blocks + [spare_block] * (most - len(c.sequence.blocks)) for c in chunks]
    placed = [_place_of_one(c, block_tokens) for c in chunks[:single]]
    spans = [_places(c, block_tokens) for c in chunks[single:]]

    def on_device(values: object) -> Tensor:
        return torch.as_tensor(np.asarray(values, dtype=np.int64)).to(device, non_blocking=True)

    layout = PagedLayout(
        starts=tuple(starts),
        lengths=tuple(lengths),
        tables=on_device(tables),
        slots=on_device(np.concatenate([np.array([p[1] for p in placed], np.int64), *(s[1] for s in spans)])),
        single=single,
        single_mask=None,
    )
    if device.type == "cpu":
        mask = _single_mask(lengths[:single], dtype)
        layout = replace(layout, single_mask=mask, runs=runs(chunks[:single]))
    else:
        device_starts, device_lengths = (torch.tensor(n, dtype=torch.int32).to(device) for n in (starts, lengths))
        layout = replace(layout, starts_device=device_starts, lengths_device=device_lengths)
    positions = [np.array([p[0] for p in placed], np.int64).reshape(-1, 3), *(s[0] for s in spans)]
    return ForwardBatch(
        tokens=on_device(tokens),
        positions=on_device(np.concatenate(positions)),
        layout=layout,
        logit_rows=on_device(logit_rows),
        image_rows=on_device(np.concatenate(image_rows)) if image_rows else None,
        image_layers=[],
    )


def with_images(batch: ForwardBatch, chunks: Seq[Chunk], images: Mapping[str, Tensor]) -> ForwardBatch:
    """The same with the encodings (1 + deepstack layers, tokens, H) of its images, given by content key."""
    parts = []
    for chunk in chunks:
        for image in chunk.sequence.prompt.images:
            a, b = max(chunk.start, image.start), min(chunk.start + chunk.length, image.start + image.tokens)
            if a < b:
                parts.append(images[image.key][:, a - image.start : b - image.start])
    return replace(batch, image_layers=list(torch.cat(parts, dim=1).unbind(0))) if parts else batch


def _place_of_one(chunk: Chunk, block_tokens: int) -> tuple[tuple[int, ...], int]:
    """Position and slot of a chunk of one token; with plain numbers, of which most steps are made."""
    s, at = chunk.sequence, chunk.start
    slot = s.blocks[at // block_tokens] * block_tokens + at % block_tokens
    asked = len(s.prompt.tokens)
    if at < asked:
        return tuple(s.prompt.positions[at].tolist()), slot
    return (s.prompt.next + at - asked,) * 3, slot


def _places(chunk: Chunk, block_tokens: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions (n, 3) and slots (n,) of a chunk; behind the prompt all three positions count on together."""
    prompt, begin, end = chunk.sequence.prompt, chunk.start, chunk.start + chunk.length
    asked = len(prompt.tokens)
    at = np.arange(begin, end)
    slots = np.asarray(chunk.sequence.blocks)[at // block_tokens] * block_tokens + at % block_tokens
    positions = np.repeat((at - asked + prompt.next)[:, None], 3, axis=1)
    positions[: max(asked - begin, 0)] = prompt.positions[begin : min(end, asked)]
    return positions, slots


def _single_mask(lengths: list[int], dtype: torch.dtype) -> Tensor | None:
    """What the sequences of one token see of the longest of them: (S, 1, 1, longest), 0 or -inf."""
    if not lengths:
        return None
    beyond = torch.arange(max(lengths))[None] >= torch.tensor(lengths)[:, None]
    mask = torch.zeros(beyond.shape, dtype=dtype).masked_fill_(beyond, float("-inf"))
    return mask[:, None, None]


def runs(singles: Seq[Chunk]) -> tuple[Run, ...]:
    """Sequences of one block each, neighbours in the cache together; the longer ones, which come last, as one run."""
    found: list[Run] = []
    for row, chunk in enumerate(singles):
        blocks = chunk.sequence.blocks
        if len(blocks) > 1:
            found.append(Run(row, len(singles), None))
            break
        if found and found[-1].block == blocks[0] - (row - found[-1].begin):
            found[-1] = replace(found[-1], end=row + 1)
        else:
            found.append(Run(row, row + 1, blocks[0]))
    return tuple(found)
