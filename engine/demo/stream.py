"""Processes that draw training rows into shared memory, and the hand-over of what they drew.

A piece of memory (a slot) is either free, being drawn into by one process, or ready; its number goes round in queues.
"""

from __future__ import annotations

import mmap
import multiprocessing as mp
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from zellige.data.samples.kit import Kit, training_kit
from zellige.engine.demo.drawing import Rows, draw_row
from zellige.engine.demo.grids import Grid, Kind, choose_grid

_SLOT_BYTES = 20 << 20
#: Faces that one process draws with: few, so that its glyph cache is warm soon; together they use them all.
_FACES = 28
#: Most drawings that may fail in a row before a process gives up.
_PATIENCE = 20
#: How often each kind is drawn.
SHARES: dict[Kind, float] = {"document": 0.45, "paragraph": 0.1, "line": 0.2, "scene": 0.25}


@dataclass(frozen=True)
class Ready:
    """A slot that was filled: ``rows`` images of one kind and grid."""

    slot: int
    kind: Kind
    grid: Grid
    rows: int


def _bytes_of(kind: Kind, grid: Grid, rows: int) -> int:
    return sum(int(np.prod(shape)) * np.dtype(kind_).itemsize + 64 for shape, kind_ in Rows.shapes(kind, grid, rows))


class Stream:
    """Starts drawing processes (by fork: before CUDA is touched) and yields what is ready."""

    def __init__(self, workers: int, seed: str, tokenizer: Path, chunk: int = 64, fonts: Path | None = None) -> None:
        context = mp.get_context("fork")
        self._slots = 3 * workers + 8
        self._memory = mmap.mmap(-1, _SLOT_BYTES * self._slots)
        self._free: Any = context.Queue()
        self._ready: Any = context.Queue()
        #: How far training is, 0..1, as difficulty; read by the processes.
        self._difficulty: Any = context.Value("d", 0.15, lock=False)
        self._tokenizer, self._fonts, self._seed, self._chunk = tokenizer, fonts, seed, chunk
        for slot in range(self._slots):
            self._free.put(slot)
        self._processes: list[ForkProcess] = [
            context.Process(target=self._draw, args=(number,), daemon=True) for number in range(workers)
        ]
        for process in self._processes:
            process.start()

    def set_difficulty(self, difficulty: float) -> None:
        self._difficulty.value = difficulty

    def take(self, timeout: float) -> Ready:
        """The next filled slot; raises queue.Empty after ``timeout`` seconds."""
        ready: Ready = self._ready.get(timeout=timeout)
        return ready

    def release(self, ready: Ready) -> None:
        """Give a slot back once its rows were copied."""
        self._free.put(ready.slot)

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()

    def rows(self, ready: Ready) -> Rows:
        """The arrays of a slot, in shared memory."""
        arrays = tuple(self._arrays(ready))
        return Rows(*arrays)

    def _arrays(self, ready: Ready) -> Iterator[NDArray[Any]]:
        start = ready.slot * _SLOT_BYTES
        for shape, kind in Rows.shapes(ready.kind, ready.grid, ready.rows):
            count = int(np.prod(shape))
            yield np.frombuffer(self._memory, kind, count, start).reshape(shape)
            start += -(-count * np.dtype(kind).itemsize // 64) * 64

    def _draw(self, number: int) -> None:
        # The process that feeds the device goes first.
        os.nice(5)
        tokenizer = Tokenizer.from_file(str(self._tokenizer))
        whole = training_kit(f"{self._seed}/{number}", fonts=self._fonts)
        rng = whole.rng
        faces = tuple(rng.sample(whole.faces, min(_FACES, len(whole.faces))))
        kinds = tuple(SHARES)
        try:
            while True:
                slot = self._free.get()
                kind = rng.choices(kinds, [SHARES[k] for k in kinds])[0]
                grid, count = choose_grid(kind, rng), self._chunk
                while _bytes_of(kind, grid, count) > _SLOT_BYTES:
                    count //= 2
                ready = Ready(slot, kind, grid, count)
                rows = self.rows(ready)
                kit = Kit(rng, faces, difficulty=self._difficulty.value)
                for index in range(count):
                    _draw_patiently(kind, grid, kit, tokenizer, rows, index)
                self._ready.put(ready)
        except KeyboardInterrupt:
            return


def _draw_patiently(kind: Kind, grid: Grid, kit: Kit, tokenizer: Tokenizer, rows: Rows, index: int) -> None:
    """Draw a row; a drawing that fails is reported and drawn anew, for the run is worth more than one image."""
    for attempt in range(_PATIENCE):
        try:
            draw_row(kind, grid, kit, tokenizer, rows, index)
            return
        except Exception:
            traceback.print_exc(file=sys.stderr)
            if attempt == _PATIENCE - 1:
                raise
