"""Trains the small checkpoint from drawn images alone and writes it as a Hugging Face folder.

    python -m zellige.engine.demo.train --out FOLDER                          on one GPU
    torchrun --nproc-per-node 2 -m zellige.engine.demo.train --out FOLDER     on two
    ... --checkpoint FOLDER                                                     goes on from one trained before

The defaults on two H200 made the checkpoint that ships. Images are drawn by processes on the CPU while the GPU trains.
The learning rate follows the clock, so that a run ends on time wherever it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from zellige.engine.demo.architecture import Architecture
from zellige.engine.demo.export import export, restore
from zellige.engine.demo.grids import KINDS, Kind, grids_for
from zellige.engine.demo.net import DemoNet
from zellige.engine.demo.optimizer import FlatParameters, Optimizer
from zellige.engine.demo.packing import prefix_tokens
from zellige.engine.demo.pools import Pools
from zellige.engine.demo.step import Steps
from zellige.engine.demo.stream import Stream
from zellige.engine.demo.world import World

TOKENIZER = Path(__file__).parent / "model" / "tokenizer.json"
#: Highest learning rate, of both optimizers, and the decay of Muon's matrices.
_RATE, _WEIGHT_DECAY = 2e-3, 0.05
_WARM_UP_STEPS = 150
#: Share of the run at full rate; then the rate falls in a straight line to _LAST_RATE of it.
_HOLD, _LAST_RATE = 0.45, 0.01
#: A run that goes on from a checkpoint: highest rate, and it falls from the first step on.
_RATE_ON, _HOLD_ON = 1e-3, 0.05
#: Share of the run over which the reading loss fades to _LAST_READING of its weight.
_READING_FADES, _LAST_READING = 0.6, 0.1


@dataclass(frozen=True)
class Options:
    out: Path
    seconds: float
    steps: int
    device: str
    workers: int
    scale: float
    seed: str
    fonts: Path | None
    checkpoint: Path | None


def parse_options() -> Options:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint and the log")
    parser.add_argument("--seconds", type=float, default=462, help="how long to train, once everything is ready")
    parser.add_argument("--steps", type=int, default=10**9, help="stop after so many steps, if that is sooner")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--workers", type=int, default=14, help="drawing processes a GPU")
    parser.add_argument("--scale", type=float, default=0.6, help="images of a step, as a factor")
    parser.add_argument("--seed", default="1", help="of the drawn images")
    parser.add_argument("--fonts", type=Path, help="folder of font files, besides those installed")
    parser.add_argument("--checkpoint", type=Path, help="folder of a checkpoint to go on from")
    return Options(**vars(parser.parse_args()))


#: When this process began, for the log.
_BEGUN = time.monotonic()


class Log:
    """Lines of JSON, to a file and to the terminal; only the first process writes."""

    def __init__(self, path: Path, writes: bool) -> None:
        self._file = path.open("w") if writes else None

    def write(self, **entry: Any) -> None:
        if self._file is None:
            return
        line = json.dumps({**entry, "wall_s": round(time.monotonic() - _BEGUN, 1)})
        self._file.write(line + "\n")
        self._file.flush()
        print(line, flush=True)


class Training:
    """One process's part of a run."""

    def __init__(self, options: Options, stream: Stream, world: World) -> None:
        self.options, self.stream, self.world = options, stream, world
        options.out.mkdir(parents=True, exist_ok=True)
        self.log = Log(options.out / "training-log.jsonl", world.rank == 0)
        on_gpu = world.device.type == "cuda"
        self.dtype = torch.bfloat16 if on_gpu else torch.float32
        if on_gpu:
            # Graphs are captured on the stream that training runs on.
            torch.cuda.set_stream(torch.cuda.Stream(world.device))
            torch.backends.cuda.matmul.allow_tf32 = True
        torch.manual_seed(world.rank + 1)
        self.net = DemoNet(Architecture())
        self.net.to(world.device, self.dtype)
        if options.checkpoint is not None:
            restore(self.net, options.checkpoint)
        self.flat = FlatParameters(self.net, world.device, self.dtype)
        self.optimizer = Optimizer(self.flat, _WEIGHT_DECAY)
        prefix = prefix_tokens(Tokenizer.from_file(str(TOKENIZER)))
        self.steps = Steps(self.net, prefix, world.device, self.dtype, options.scale)
        self.pools = Pools(stream, world.device, 1.0 if on_gpu else 0.02)
        self.rng = random.Random(f"batches/{options.seed}/{world.rank}")

    def prepare(self) -> None:
        """Compile, capture every graph, and wait for the first images of every kind."""
        begun = time.monotonic()
        if self.world.device.type == "cuda":
            self.steps.compile_blocks()
            for kind in KINDS:
                for grid in (grids_for(kind)[0], grids_for(kind)[-1]):
                    self.steps.warm(kind, grid)
            torch.cuda.synchronize()
            self.log.write(event="compiled", seconds=round(time.monotonic() - begun, 1))
            count = self._capture_all()
            self.steps.plain_blocks()
            memory = torch.cuda.memory_reserved() >> 20
            self.log.write(
                event="captured", graphs=count, seconds=round(time.monotonic() - begun, 1), reserved_mb=memory
            )
        while not self.pools.ready():
            self.pools.drain(timeout=60.0)
        self.flat.gradients.zero_()
        self.steps.read_statistics()
        self.log.write(event="ready", drawn=dict(self.pools.drawn), parameters=self.flat.masters_flat.numel())

    def _capture_all(self) -> int:
        seen: set[tuple[Kind, int]] = set()
        for kind in KINDS:
            # The largest first, so that the shared memory pool is as large as it needs to be at once.
            for grid in sorted(grids_for(kind), key=lambda g: -g.cells):
                if (kind, grid.cells) not in seen:
                    seen.add((kind, grid.cells))
                    with self.pools.lock:
                        self.steps.capture(kind, grid)
                self.pools.drain()
            allocated = torch.cuda.memory_allocated() >> 20
            self.log.write(event="capturing", kind=kind, graphs=len(seen), allocated_mb=allocated)
        torch.cuda.synchronize()
        return len(seen)

    def rate(self, step: int, progress: float) -> float:
        top, hold = (_RATE, _HOLD) if self.options.checkpoint is None else (_RATE_ON, _HOLD_ON)
        fall = 1.0 if progress < hold else max(_LAST_RATE, (1 - progress) / (1 - hold))
        return top * min(1.0, (step + 1) / _WARM_UP_STEPS) * fall

    def run(self) -> int:
        """Train until the time is up; returns the number of steps."""
        begun = last_log = time.monotonic()
        images, step, logged_step = 0, 0, 0
        waits: list[torch.cuda.Event] = []
        while True:
            elapsed = time.monotonic() - begun
            progress = self.world.agree(self._progress(elapsed, step))
            if progress >= 1.0:
                return step
            self._set_stage(progress)
            self.pools.drain()
            for kind in KINDS:
                images += self._batch(kind)
            self.world.average(self.flat.gradients)
            norm = self.optimizer.step(self.rate(step, progress))
            step += 1
            _throttle(waits, self.world.device)
            now = time.monotonic()
            if step % 100 == 0 or self.options.steps < 100:
                pace = round((step - logged_step) / (now - last_log), 2)
                self._report(step, progress, pace, images, float(norm))
                last_log, logged_step = now, step

    def _progress(self, elapsed_s: float, step: int) -> float:
        """How much of the run lies behind, 0..1."""
        return 1.0 if step >= self.options.steps else min(1.0, elapsed_s / self.options.seconds)

    def _set_stage(self, progress: float) -> None:
        if self.options.checkpoint is not None:
            progress = 1.0
        difficulty = min(1.0, 0.15 + 5 * progress)
        self.stream.set_difficulty(difficulty)
        self.steps.augment.difficulty = difficulty
        self.steps.reading_weight.fill_(max(_LAST_READING, 1 - progress / _READING_FADES))

    def _batch(self, kind: Kind) -> int:
        """Run one batch of this kind; returns how many images it had."""
        grid = self.pools.choose(kind, self.rng)
        size = self.steps.batch_size(kind, grid.cells)
        self.steps.run(kind, grid, self.pools.batch(kind, grid, size))
        return size

    def _report(self, step: int, progress: float, pace: float, images: int, norm: float) -> None:
        self.log.write(
            step=step,
            progress=round(progress, 4),
            rate=round(self.rate(step, progress), 6),
            steps_per_s=pace,
            images=images,
            drawn=sum(self.pools.drawn.values()),
            waiting=self.pools.waiting(),
            norm=round(norm, 3),
            **self.steps.read_statistics(),
        )

    def finish(self) -> None:
        """Export what was trained."""
        export(self.flat.state(), self.net.architecture, TOKENIZER, self.options.out)
        self.log.write(event="exported")


def _throttle(waits: list[torch.cuda.Event], device: torch.device) -> None:
    """Let the CPU run no more than three steps ahead of the GPU."""
    if device.type == "cuda":
        event = torch.cuda.Event()
        event.record()
        waits.append(event)
        if len(waits) > 3:
            waits.pop(0).synchronize()


def main() -> None:
    options = parse_options()
    # Batches come in hundreds of shapes; rounding sizes up lets freed memory be used again.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "roundup_power2_divisions:8")
    # Drawing processes are forked before CUDA is touched.
    seed = f"{options.seed}/{World.local_rank()}"
    chunk = 64 if options.device == "cuda" else 4
    stream = Stream(options.workers, seed, TOKENIZER, chunk, options.fonts)
    world = World.join(options.device)
    training = Training(options, stream, world)
    try:
        training.prepare()
        taken = training.run()
        training.log.write(event="trained", steps=taken)
        if world.rank == 0:
            training.finish()
    finally:
        training.pools.close()
        stream.stop()
    world.leave()


if __name__ == "__main__":
    main()
