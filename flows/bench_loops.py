"""The bare loops that a run is compared with. Apart, so that their processes load next to nothing."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from PIL import Image

from zellige.engine.api import VisionBudget

#: What the model of the bench sees: a megapixel, whole.
BUDGET = VisionBudget(patch=16, merge=2, min_pixels=256 * 256, max_pixels=1024 * 1024)


def seconds_of(work: Callable[[str], object], paths: Sequence[str], processes: int) -> float:
    """Seconds of ``work`` over all files, in processes that were started before."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as bare:
        list(bare.map(work, paths[:processes]))
        start = time.perf_counter()
        list(bare.map(work, paths, chunksize=4))
        return time.perf_counter() - start


def decode_resize_hash(path: str) -> str:
    """Decode a file, make it what the model sees, and hash that."""
    with Image.open(path) as image:
        seen = image.convert("RGB").resize(BUDGET.resized(*image.size), Image.Resampling.BICUBIC)
    return hashlib.sha256(seen.tobytes()).hexdigest()


def decode(path: str) -> None:
    """Decode a file, and no more."""
    with Image.open(path) as image:
        image.convert("RGB")
