"""Drawn rows on the device, a ring a kind and grid, filled by a thread while training draws batches from them."""

from __future__ import annotations

import queue
import random
import threading
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zellige.engine.demo.drawing import Rows
from zellige.engine.demo.grids import KINDS, Grid, Kind, choose_grid
from zellige.engine.demo.stream import Ready, Stream

#: Rows kept a ring; at the rate of drawing each is seen once or twice before it is overwritten.
_RING = {"document": 384, "paragraph": 1024, "line": 2048, "scene": 256}


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of one kind and grid on the device, in the order of ``Rows``."""

    images: Tensor
    ids: Tensor
    answers: Tensor
    marks: Tensor
    sheets: Tensor


class _Ring:
    def __init__(self, parts: list[Tensor], capacity: int) -> None:
        self.parts = [torch.zeros((capacity, *part.shape[1:]), dtype=part.dtype, device=part.device) for part in parts]
        self.capacity, self.at, self.filled = capacity, 0, 0

    def add(self, parts: list[Tensor]) -> None:
        count = len(parts[0])
        if self.at + count > self.capacity:
            self.at = 0
        for ring, part in zip(self.parts, parts, strict=True):
            ring[self.at : self.at + count].copy_(part)
        self.filled = max(self.filled, self.at + count)
        self.at = (self.at + count) % self.capacity


class Pools:
    """Rings of rows; ``lock`` is held while rows are copied to the device (a CUDA graph must not be captured then)."""

    def __init__(self, stream: Stream, device: torch.device, scale: float = 1.0) -> None:
        self._stream, self._device, self._scale = stream, device, scale
        self._rings: dict[tuple[Kind, Grid], _Ring] = {}
        self._inbox: queue.Queue[tuple[Ready, list[Tensor]] | BaseException] = queue.Queue(maxsize=64)
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.lock = threading.Lock()
        #: Rows that came in, by kind.
        self.drawn: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self._closed = threading.Event()
        threading.Thread(target=self._load, daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _load(self) -> None:
        try:
            if self._copies is not None:
                torch.cuda.set_device(self._device)
            while not self._closed.is_set():
                try:
                    ready = self._stream.take(1.0)
                except queue.Empty:
                    continue
                parts = self._copied(self._stream.rows(ready))
                self._stream.release(ready)
                self._inbox.put((ready, parts))
        except BaseException as error:
            self._inbox.put(error)
            raise

    def _copied(self, rows: Rows) -> list[Tensor]:
        host = [torch.from_numpy(np.asarray(array)) for array in rows.arrays()]
        if self._copies is None:
            return [part.clone() for part in host]
        with self.lock, torch.cuda.stream(self._copies):
            parts = [part.to(self._device) for part in host]
            self._copies.synchronize()
        return parts

    def drain(self, most: int = 16, timeout: float | None = None) -> None:
        """Move what has arrived into the rings, with a ``timeout`` after waiting; raises what the thread died of."""
        for number in range(most):
            try:
                entry = self._inbox.get(timeout=timeout) if timeout and number == 0 else self._inbox.get_nowait()
            except queue.Empty:
                return
            if isinstance(entry, BaseException):
                raise RuntimeError("the thread that loads drawn images died") from entry
            ready, parts = entry
            key = (ready.kind, ready.grid)
            if key not in self._rings:
                capacity = max(ready.rows, int(_RING[ready.kind] * self._scale))
                self._rings[key] = _Ring(parts, capacity)
            if self._copies is not None:
                for part in parts:
                    part.record_stream(torch.cuda.current_stream())
            self._rings[key].add(parts)
            self.drawn[ready.kind] += ready.rows

    def ready(self) -> bool:
        """Whether there are rows of every kind."""
        return {kind for kind, _ in self._rings} == set(KINDS)

    def choose(self, kind: Kind, rng: random.Random) -> Grid:
        """A grid of which there are rows, chosen as drawing chooses it where that can be."""
        grid = choose_grid(kind, rng)
        if (kind, grid) in self._rings:
            return grid
        return rng.choice([there for of_kind, there in self._rings if of_kind == kind])

    def batch(self, kind: Kind, grid: Grid, size: int) -> Batch:
        """``size`` random rows of one kind and grid."""
        ring = self._rings[kind, grid]
        picks = torch.randint(0, ring.filled, (size,), device=self._device)
        return Batch(*(part.index_select(0, picks) for part in ring.parts))

    def waiting(self) -> int:
        return self._inbox.qsize()
