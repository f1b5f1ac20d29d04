"""Measures the engine against transformers' generate: the same images and threads, in turns, each in its own process.

    zellige bench engine [--model DIR] [--images 64] [--rounds 3] [--out FILE]

Prints a table and, with --out, appends one JSON line a row. Answers are compared first: where they differ from
transformers', no speed is reported.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import platform
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from zellige.engine.api import Sampling, ask
from zellige.engine.connect import DEMO_MODEL
from zellige.engine.local import LocalEngine

PROMPT = "Describe the image."
#: Tokens of an answer where decoding alone is measured.
LONG = 129
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Row:
    """One comparison: medians over the rounds, in the unit named."""

    what: str
    unit: str
    ours: float
    transformers: float
    ratio: float
    equal_answers: str


def scenes(count: int, side: int) -> list[Pixels]:
    """Plain shapes on a plain ground, each image another; enough for captions of ordinary length."""
    rng = np.random.default_rng(side)
    colours = [(215, 35, 35), (40, 160, 60), (40, 80, 215), (240, 215, 40), (130, 50, 170), (20, 20, 20)]
    images = []
    for _ in range(count):
        image = Image.new("RGB", (side, side), tuple(int(c) for c in rng.integers(200, 250, 3)))
        draw = ImageDraw.Draw(image)
        third = side / 3
        for cell in rng.choice(9, rng.integers(1, 5), replace=False):
            x, y = cell % 3 * third, cell // 3 * third
            half = third * rng.uniform(0.2, 0.45)
            box = (x + third / 2 - half, y + third / 2 - half, x + third / 2 + half, y + third / 2 + half)
            shape = draw.ellipse if rng.random() < 0.5 else draw.rectangle
            shape(box, fill=colours[int(rng.integers(len(colours)))])
        images.append(np.asarray(image))
    return images


class Transformers:
    """The peer: generate with SDPA, float32, batches of equal size, images prepared by its own Pillow processor."""

    def __init__(self, folder: Path, batch: int) -> None:
        from transformers import AutoModelForImageTextToText, AutoTokenizer
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        self.model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.images = Qwen2VLImageProcessorPil.from_pretrained(folder)
        self.batch = batch

    @torch.inference_mode()
    def answer(self, images: Sequence[Pixels], tokens: int, *, ignore_eos: bool = False) -> tuple[float, list[str]]:
        """Seconds and captions of images of one size."""
        begun = time.perf_counter()
        texts: list[str] = []
        more = {"eos_token_id": [10**6]} if ignore_eos else {}
        for begin in range(0, len(images), self.batch):
            part = [Image.fromarray(i) for i in images[begin : begin + self.batch]]
            vision = self.images(images=part, return_tensors="pt")
            places = int(vision["image_grid_thw"][0].prod()) // self.images.merge_size**2
            message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": PROMPT}]}
            text: str = self.tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
            text = text.replace("<|image_pad|>", "<|image_pad|>" * places)
            ids = self.tokenizer([text] * len(part), return_tensors="pt")["input_ids"]
            kinds = (ids == self.model.config.image_token_id).int()
            out = self.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                mm_token_type_ids=kinds,
                **vision,
                max_new_tokens=tokens,
                do_sample=False,
                **more,
            )
            texts += self.tokenizer.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)
        return time.perf_counter() - begun, texts


class Ours:
    """The engine, started anew for every measurement, so that no image of an earlier one is still encoded."""

    def __init__(self, folder: Path, batch: int) -> None:
        self.folder = folder

    def answer(self, images: Sequence[Pixels], tokens: int, *, ignore_eos: bool = False) -> tuple[float, list[str]]:
        """Seconds and captions; loading is not counted, nor is a first look at the images' negatives.

        The peer's process has seen images of this size before: memory of its own that it need not ask for again.
        """
        return asyncio.run(self._answer(images, Sampling(max_tokens=tokens, ignore_eos=ignore_eos)))

    async def _answer(self, images: Sequence[Pixels], sampling: Sampling) -> tuple[float, list[str]]:
        engine = LocalEngine.load(self.folder)
        warm = [ask(PROMPT, 255 - i, sampling=Sampling(max_tokens=2)) for i in images]
        await asyncio.gather(*map(engine.answer, warm))
        begin = time.perf_counter()
        answers = await asyncio.gather(*(engine.answer(ask(PROMPT, i, sampling=sampling)) for i in images))
        seconds = time.perf_counter() - begin
        await engine.close()
        return seconds, [a.text for a in answers]


_side: Ours | Transformers


def _start(side: type[Ours | Transformers], folder: Path, batch: int) -> None:
    global _side
    _side = side(folder, batch)


def _measure(images: Sequence[Pixels], tokens: int, ignore_eos: bool = False) -> tuple[float, list[str]]:
    return _side.answer(images, tokens, ignore_eos=ignore_eos)


def compare(folder: Path, images: int, batch: int, rounds: int) -> list[Row]:
    """All rows; ours and the peer take turns, one working while the other waits."""
    spawn = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(1, spawn, _start, (Ours, folder, batch)) as ours,
        ProcessPoolExecutor(1, spawn, _start, (Transformers, folder, batch)) as peer,
    ):
        rows = []
        for side in (448, 224):
            pixels = scenes(images, side)
            for process in (ours, peer):
                process.submit(_measure, pixels[:batch], 2).result()
            mine, theirs, equal = [], [], 0
            for _ in range(rounds):
                seconds, texts = ours.submit(_measure, pixels, 64).result()
                mine.append(seconds)
                seconds, judged = peer.submit(_measure, pixels, 64).result()
                theirs.append(seconds)
                equal = sum(a == b for a, b in zip(texts, judged, strict=True))
            rows.append(_row(f"captions at {side} px", "images/s", images, mine, theirs, f"{equal}/{images}"))

        rows += [_decoding(ours, peer, count, batch, rounds) for count in (batch, 4 * batch)]
        return rows


def _decoding(ours: ProcessPoolExecutor, peer: ProcessPoolExecutor, count: int, batch: int, rounds: int) -> Row:
    """Tokens after the first: the time of LONG tokens less the time of one, no token ending an answer."""
    pixels = scenes(count, 224)
    times: dict[ProcessPoolExecutor, list[float]] = {ours: [], peer: []}
    last: dict[ProcessPoolExecutor, list[str]] = {}
    for _ in range(rounds):
        for process in (ours, peer):
            begun, _ = process.submit(_measure, pixels, 1).result()
            seconds, last[process] = process.submit(_measure, pixels, LONG, True).result()
            times[process].append(seconds - begun)
    equal = sum(a == b for a, b in zip(last[ours], last[peer], strict=True))
    what = f"decoding {count} (theirs {batch} at once)"
    return _row(what, "tokens/s", count * (LONG - 1), times[ours], times[peer], f"{equal}/{count}")


def _row(what: str, unit: str, work: int, mine: list[float], theirs: list[float], equal: str) -> Row:
    ours, peer = work / statistics.median(mine), work / statistics.median(theirs)
    return Row(what, unit, round(ours, 2), round(peer, 2), round(ours / peer, 2), equal)


def bench(
    model: Path | None = None, images: int = 64, batch: int = 16, rounds: int = 3, out: Path | None = None
) -> int:
    """Measure, tell and keep the rows in ``out``; 1 where answers differ."""
    rows = compare(model or DEMO_MODEL, images, batch, rounds)
    where = {"torch": torch.__version__, "threads": torch.get_num_threads(), "machine": platform.machine()}
    wrong = False
    for row in rows:
        same, of = map(int, row.equal_answers.split("/"))
        if same < of * 0.98:
            wrong = True
            print(f"{row.what:32} answers differ ({row.equal_answers} equal): no speed is reported")
            continue
        print(
            f"{row.what:32} {row.ours:10.2f} {row.unit:9} transformers {row.transformers:10.2f}   "
            f"{row.ratio:5.2f} x   equal answers {row.equal_answers}"
        )
        if out:
            with out.open("a") as file:
                file.write(json.dumps({**asdict(row), "images": images, "rounds": rounds, **where}) + "\n")
    return int(wrong)
