"""``zellige bench pipeline``: what the run around the engine costs, with an engine that answers at once.

- throughput: a whole caption run (planning, decoding, tiling, committing) of JPEGs of one megapixel, beside a bare loop
  in as many processes that decodes the same files with Pillow, resizes them to what the model sees and hashes them;
- memory: what a run and its processes hold resident in its first tenth, and how much more later;
- listing: a source of many entries written into a run, from the first entry to the last.
"""

from __future__ import annotations

import io
import json
import os
import platform
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from zellige.data.decode_pool import default_workers
from zellige.data.ledger import Store
from zellige.data.schema import Item, Question, Recipe
from zellige.engine.api import Answer, Delta, ModelIdentity, Request, RunMeter, Usage
from zellige.flows.bench_loops import BUDGET, decode, decode_resize_hash, seconds_of
from zellige.flows.pipeline import run_job
from zellige.tasks.host import host_engine
from zellige.tasks.job import Job
from zellige.tasks.watch import Tally, Watch, watched_by

ONE_MEGAPIXEL, SMALL = (1160, 900), (96, 64)
#: Images that are drawn; the files are these, each with a comment of its own so that no two are the same.
DRAWN = 16
#: Items of the other two measures, as multiples of ``items``.
MEMORY_TIMES, LISTING_TIMES = 10, 200
RATIO_AT_LEAST, GROWTH_MB_AT_MOST, LISTING_S_AT_MOST, LISTING_MB_AT_MOST = 0.75, 50, 60, 500
_SAMPLE_EVERY_S = 0.25

Row = dict[str, Any]


class BenchError(Exception):
    """A run of the bench did not answer every item, so its speed says nothing."""


class InstantEngine:
    """Answers every request with one sentence, at once."""

    async def answer(self, request: Request) -> Answer:
        return Answer("a picture of noise", "stop", Usage(1, 6, 5), mean_logprob=-0.1)

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        answer = await self.answer(request)
        yield Delta(answer.text, answer)

    async def meter(self, run_id: str) -> RunMeter:
        return RunMeter()

    async def identity(self) -> ModelIdentity:
        return ModelIdentity("instant", "0" * 32, "float32", BUDGET, 4096)

    async def close(self) -> None:
        pass


def measure(items: int, told: Callable[[str], None]) -> Iterator[Row]:
    """The rows of the three measures as they are made; ``told`` hears what is being done."""
    for name, sized in (("throughput", items), ("memory", items * MEMORY_TIMES), ("listing", items * LISTING_TIMES)):
        told(f"{name}: {sized:,} items")
        # A process for each: what one leaves in memory is not counted to the next.
        with (
            tempfile.TemporaryDirectory(prefix="zellige-bench-") as folder,
            ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone,
        ):
            found = alone.submit(_MEASURES[name], Path(folder), sized).result()
        yield {
            "bench": "pipeline",
            "measure": name,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "cpus": default_workers(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            **found,
        }


def throughput(folder: Path, items: int) -> Row:
    """Items per second of a run and of the bare loop, and the ratio of the two.

    The engine of a run resizes, so ``ratio_to_decoding`` is to a loop that only decodes: the stricter of the two.
    ``cpu_ratio`` is of the seconds that processors worked, start and end of all processes included: it is the steadier
    where the machine does something else besides.
    """
    images = draw(folder / "images", items, ONE_MEGAPIXEL)
    paths = sorted(str(path) for path in images.iterdir())
    cpu, start = _cpu_s(), time.perf_counter()
    done = _run(folder, images, items)
    pipeline_s, pipeline_cpu_s = time.perf_counter() - start, _cpu_s() - cpu
    cpu = _cpu_s()
    bare_s = seconds_of(decode_resize_hash, paths, default_workers())
    bare_cpu_s = _cpu_s() - cpu
    decoding_s = seconds_of(decode, paths, default_workers())
    ratio = bare_s / pipeline_s
    return {
        "items": items,
        "file_bytes": sum(path.stat().st_size for path in images.iterdir()) // items,
        "bare_items_per_s": round(items / bare_s, 2),
        "pipeline_items_per_s": round(items / pipeline_s, 2),
        "stages_s": {k: round(done["throughput"][k], 3) for k in ("plan_s", "decode_s", "engine_s", "commit_s")},
        "decoding_items_per_s": round(items / decoding_s, 2),
        "ratio": round(ratio, 3),
        "ratio_to_decoding": round(decoding_s / pipeline_s, 3),
        "cpu_ratio": round(bare_cpu_s / pipeline_cpu_s, 3),
        "pipeline_cpu_ms_an_item": round(1000 * pipeline_cpu_s / items, 2),
        "bare_cpu_ms_an_item": round(1000 * bare_cpu_s / items, 2),
        "target": f"ratio >= {RATIO_AT_LEAST}",
        "met": ratio >= RATIO_AT_LEAST,
    }


def memory(folder: Path, items: int) -> Row:
    """Megabytes resident, of all processes together, in a run's first tenth and in the rest of it."""
    images, early, peaks, last = draw(folder / "images", items, SMALL), items // MEMORY_TIMES, [0.0, 0.0], 0.0

    def look(tally: Tally) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= _SAMPLE_EVERY_S or tally.items in (early, items):
            late, last = tally.items > early, now
            peaks[late] = max(peaks[late], resident_mb())

    with watched_by(Watch(on_change=look)):
        _run(folder, images, items)
    growth = peaks[1] - peaks[0]
    return {
        "items": items,
        "first_tenth_mb": round(peaks[0], 1),
        "rest_mb": round(peaks[1], 1),
        "growth_mb": round(growth, 1),
        "target": f"growth < {GROWTH_MB_AT_MOST} MB",
        "met": growth < GROWTH_MB_AT_MOST,
    }


def listing(folder: Path, items: int) -> Row:
    """Seconds and megabytes to write the entries of a made-up source into a new run and count them."""
    source = (Item(f"file:///data/{n // 1000:05d}/image-{n:09d}.jpg", size_bytes=400_000) for n in range(items))
    recipe = Recipe("caption", (Question("caption"),), "", "auto", {}, {}, "instant", "0" * 32, "float32")
    before, start = resident_mb(), time.perf_counter()
    run = Store(folder).create_run(recipe, source, shard_items=256, inputs=["file:///data"])
    listed = run.progress().items
    seconds, peak = time.perf_counter() - start, _status_mb("self", "VmHWM")
    if listed != items:
        raise BenchError(f"{listed:,} of {items:,} entries were listed")
    return {
        "items": items,
        "seconds": round(seconds, 2),
        "before_mb": round(before, 1),
        "peak_mb": round(peak, 1),
        "target": f"< {LISTING_S_AT_MOST} s and < {LISTING_MB_AT_MOST} MB",
        "met": seconds < LISTING_S_AT_MOST and peak < LISTING_MB_AT_MOST,
    }


_MEASURES: dict[str, Callable[[Path, int], Row]] = {"throughput": throughput, "memory": memory, "listing": listing}


def draw(folder: Path, count: int, size: tuple[int, int]) -> Path:
    """``count`` JPEG files with noise, as large as a camera's at that size, no two with the same bytes."""
    folder.mkdir(parents=True)
    random, (width, height) = np.random.default_rng(0), size
    drawn = []
    for _ in range(min(DRAWN, count)):
        slope = np.linspace(0, 160, width)[None, :, None] + np.linspace(0, 60, height)[:, None, None]
        pixels = np.clip(slope + random.normal(16, 10, (height, width, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(file := io.BytesIO(), "JPEG", quality=88)
        drawn.append(file.getvalue())
    for n in range(count):
        data, comment = drawn[n % len(drawn)], n.to_bytes(8, "big")
        (folder / f"{n:07d}.jpg").write_bytes(data[:2] + b"\xff\xfe\x00\x0a" + comment + data[2:])
    return folder


def resident_mb() -> float:
    """Megabytes resident of this process and of all that it started."""
    children: dict[str, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            children.setdefault(parent, []).append(entry.name)
    total, pending = 0.0, [str(os.getpid())]
    while pending:
        process = pending.pop()
        total += _status_mb(process, "VmRSS")
        pending += children.get(process, [])
    return total


def _status_mb(process: str, name: str) -> float:
    try:
        lines = Path(f"/proc/{process}/status").read_text().split("\n")
    except OSError:  # ended meanwhile
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:")), 0.0)


def _run(folder: Path, images: Path, items: int) -> Row:
    job = Job("caption", str(folder / "store"), (str(images),))
    host_engine(job.engine, InstantEngine())
    done = run_job(job)
    if done["ok"] != items:
        raise BenchError(f"{done['ok']:,} of {items:,} items were answered: {done['errors']}")
    return done


def _cpu_s() -> float:
    """Seconds that this process and those that it has seen end have worked."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def as_lines(row: Row) -> list[str]:
    """One measure for people."""
    head = f"{row['measure']:<11}{row['items']:>10,} items   {'met' if row['met'] else 'NOT met'}: {row['target']}"
    figures = {k: v for k, v in row.items() if isinstance(v, float)}
    return [head, "  " + ", ".join(f"{name} {value:g}" for name, value in figures.items())]


def append(path: Path, row: Row) -> None:
    """Add one line of JSON to a file of measurements."""
    with path.open("a", encoding="ascii") as file:
        file.write(json.dumps(row) + "\n")
