"""How fast the engine is with a model of full size: ``zellige bench engine --shape qwen3-vl-30b-a3b --random-weights``.

A request is one image of 1024 × 1024 and some 40 tokens of text, or text alone. ``transformers`` generate runs on the
same weights first, in a process of its own, and its logits judge ours: past TOLERANCE no speed is reported.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from zellige.engine.api import Answer, ModelIdentity, Request, Sampling, ask
from zellige.engine.bench_shape_peer import Peer
from zellige.engine.checkpoint import Checkpoint
from zellige.engine.config import EngineConfig
from zellige.engine.local import LocalEngine
from zellige.engine.models.qwen3_vl import load_model
from zellige.engine.processor import Processor
from zellige.engine.random_weights import RandomWeights
from zellige.engine.runner import Runner
from zellige.engine.shapes import SHAPES, write_shape
from zellige.kernels.meter import METER

SIDE, TEXT_TOKENS, NEW_TOKENS = 1024, 40, 32
#: Requests at once with images, and with text alone.
WITH_IMAGES, TEXT_ONLY = (1, 16, 64, 256), (1, 64)
#: Tokens generated where decoding alone is measured.
LONG = 257
#: Relative L2 of the first logits between two engines in bfloat16.
TOLERANCE = 5e-2


@dataclass(frozen=True)
class Row:
    """One measure of one engine. ``seconds`` is the median of the rounds."""

    what: str
    engine: str
    value: float
    unit: str
    seconds: float
    more: dict[str, Any]


def picture(number: int) -> NDArray[np.uint8]:
    """A smooth random image, each number another."""
    rng = np.random.default_rng(number)
    coarse = torch.from_numpy(rng.random((1, 3, 16, 16), dtype=np.float32))
    fine = torch.nn.functional.interpolate(coarse, (SIDE, SIDE), mode="bilinear", align_corners=False)
    return np.ascontiguousarray((fine[0] * 255).byte().permute(1, 2, 0).numpy())


def words(number: int) -> str:
    """Random letters of which some TEXT_TOKENS tokens are made."""
    rng = np.random.default_rng(number + 1_000_000)
    return " ".join("".join(chr(97 + c) for c in rng.integers(0, 26, 3)) for _ in range(TEXT_TOKENS // 3))


class Ours:
    """The engine with random weights of a shape."""

    def __init__(self, folder: Path, device: str) -> None:
        config = EngineConfig.load(device)
        checkpoint = Checkpoint(folder)
        processor = Processor(checkpoint)
        model = load_model(RandomWeights(config.torch_device, config.torch_dtype), checkpoint.config)
        self.runner = Runner(model, processor.rules, replace(config, prefix_cache_bytes=0))
        identity = ModelIdentity(
            name=folder.name,
            fingerprint="random",
            dtype=config.dtype,
            vision=processor.budget,
            max_context=min(model.text.context, self.runner.blocks * config.block_tokens),
        )
        self.processor = processor
        self.engine = LocalEngine(processor, self.runner, identity, frozenset())

    async def answers(self, requests: Sequence[Request]) -> tuple[float, list[Answer]]:
        """Seconds until all are answered. Nothing is remembered of images seen before."""
        self.runner.images.cache.clear()
        begin = time.perf_counter()
        answers = await asyncio.gather(*(self.engine.answer(r) for r in requests))
        return time.perf_counter() - begin, answers

    def first_logits(self, request: Request) -> torch.Tensor:
        """Logits behind the prompt, float32 on the host."""
        prompt = self.processor.prepare(request)
        return self.runner.alone(prompt, prompt.tokens, lambda _, x: x, self.runner.config.step_tokens).float().cpu()


def request(number: int, tokens: int, image: bool) -> Request:
    sampling = Sampling(max_tokens=tokens, ignore_eos=True)
    return ask(words(number), *([picture(number % 256)] if image else []), sampling=sampling)


async def measure(ours: Ours, rounds: int) -> list[Row]:
    """All measures of the engine, warm."""
    rows = []
    for count in WITH_IMAGES:
        one, many = ([request(i, n, True) for i in range(count)] for n in (1, NEW_TOKENS))
        await ours.answers(many)  # compiles and captures
        first = [await ours.answers(one) for _ in range(rounds)]
        whole = [await ours.answers(many) for _ in range(rounds)]
        seconds = statistics.median(s for s, _ in whole)
        token_s = statistics.median(a.first_token_s for _, answers in first for a in answers)
        decoding = seconds - statistics.median(s for s, _ in first)
        more = {
            "first_token_ms": round(token_s * 1e3, 1),
            "tokens_per_s": round(count * NEW_TOKENS / seconds, 1),
            "decode_tokens_per_s": round(count * (NEW_TOKENS - 1) / decoding, 1),
        }
        rows.append(Row(f"{count} with images", "zellige", round(count / seconds, 2), "images/s", seconds, more))
    for count in TEXT_ONLY:
        rows += await _decoding(ours, count, rounds)
    return rows


async def _decoding(ours: Ours, count: int, rounds: int) -> list[Row]:
    """Tokens after the first of text prompts, with the meter off and sampling in turns."""
    requests = [request(i, LONG, False) for i in range(count)]
    first = [request(i, 1, False) for i in range(count)]
    await ours.answers(requests)  # compiles and captures
    await ours.answers(first)
    begun = statistics.median([(await ours.answers(first))[0] for _ in range(rounds)])
    times: dict[str, list[float]] = {"off": [], "sampled": []}
    for _ in range(rounds):
        for level, seen in times.items():
            METER.level = "off" if level == "off" else "sampled"
            seconds, _ = await ours.answers(requests)
            seen.append(seconds - begun)
    off, sampled = (statistics.median(times[level]) for level in ("off", "sampled"))
    step = sampled / (LONG - 1)
    alone = ours.runner.graphs.seconds(count) if ours.runner.graphs is not None else step
    more = {
        "ms_a_step": round(step * 1e3, 2),
        "graph_ms": round(alone * 1e3, 2),
        "host_share": round(1 - alone / step, 3),
        "meter_cost": round(sampled / off - 1, 4),
    }
    tokens = count * (LONG - 1)
    return [Row(f"{count} text prompts", "zellige", round(tokens / sampled, 1), "tokens/s", sampled, more)]


def compare(shape: str, device: str, rounds: int, alone: bool) -> tuple[list[Row], float | None]:
    """Rows of both engines and the relative L2 between their first logits (None without the peer)."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_shape(shape, Path(temporary) / shape)
        rows: list[Row] = []
        theirs = None
        if not alone:
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                theirs, told = process.submit(_peer, folder, device, rounds).result()
                rows += [Row(*r) for r in told]
        ours = Ours(folder, device)
        error = None
        if theirs is not None:
            mine = ours.first_logits(request(0, 1, True))
            error = float((mine.double() - theirs.double()).norm() / theirs.double().norm())
        print(f"memory: {ours.runner.memory}; first logits: relative L2 {error}", flush=True)
        rows += asyncio.run(_measured(ours, rounds))
        return rows, error


async def _measured(ours: Ours, rounds: int) -> list[Row]:
    try:
        return await measure(ours, rounds)
    finally:
        await ours.engine.close()


def _peer(folder: Path, device: str, rounds: int) -> tuple[torch.Tensor, list[tuple[Any, ...]]]:
    peer = Peer(folder, device)
    logits = peer.first_logits(request(0, 1, True))
    return logits, peer.measure([request(i, NEW_TOKENS, True) for i in range(64)], NEW_TOKENS, rounds)


def bench(shape: str, rounds: int = 3, out: Path | None = None, *, device: str = "cuda", alone: bool = False) -> int:
    """Measure, tell and keep the rows in ``out``; 1 where the engines disagree, 2 without a GPU or such a shape."""
    if shape not in SHAPES:
        print(f"shape {shape!r} is not one of {', '.join(SHAPES)}")
        return 2
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return 2
    rows, error = compare(shape, device, rounds, alone)
    if error is not None:
        print(f"first logits against transformers: relative L2 {error:.1e}, allowed {TOLERANCE:.0e}")
        if not error <= TOLERANCE:
            print("the engines disagree: no speed is reported")
            return 1
    card = torch.cuda.get_device_name()
    for row in rows:
        more = json.dumps(row.more)
        print(f"{row.engine:13} {row.what:22} {row.value:10.2f} {row.unit:9} {row.seconds:8.3f} s  {more}")
        if out:
            where = {"shape": shape, "card": card, "torch": torch.__version__, "relative_l2": error}
            with out.open("a") as file:
                file.write(json.dumps(asdict(row) | where) + "\n")
    return 0
