"""A finished run over pictures on disk, made without an engine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from zellige.data.ledger import Run, Store
from zellige.data.schema import AnswerRow, ErrorKind, Item, Question, Recipe
from zellige.data.sources import open_source

CAPTION = (Question("caption"),)
ASKED = (Question("colour", "Which colour?"), Question("a/b.c", "Which shape?"))


def draw(path: Path, shade: int = 10) -> Path:
    """A small picture at ``path``, in the format of its suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((6, 8, 3), shade, np.uint8)).save(path)
    return path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Five pictures in two folders, two of them with one stem, and a broken one."""
    folder = tmp_path / "images"
    for shade, name in enumerate(("a.jpg", "a.png", "b.webp", "x/a.jpg", "x/c d.png")):
        draw(folder / name, 40 * shade)
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    return folder


@pytest.fixture
def answered(tmp_path: Path) -> Callable[..., Run]:
    """``answered(inputs)``: a run over them; ``broken`` names fail, ``text`` gives the answers."""

    def make(
        *inputs: Path,
        questions: Sequence[Question] = CAPTION,
        text: Callable[[Item, Question], str] = lambda item, q: f"{q.question_id} of {item.uri.rpartition('/')[2]}",
        items: Sequence[Item] | None = None,
        shard_items: int = 4,
        leave: int = 0,
        **changes: Any,
    ) -> Run:
        task = "caption" if list(questions) == list(CAPTION) else "ask"
        settings: dict[str, Any] = {
            "task": task,
            "questions": tuple(questions),
            "prompt": "Say `it`.\n```",
            "tiling": "auto",
            "sampling": {},
            "preprocessing": {},
            "model_name": "demo",
            "model_fingerprint": "f" * 32,
            "model_dtype": "float32",
        }
        recipe = Recipe(**(settings | changes))
        source = open_source(inputs)
        run = Store(tmp_path / "store").create_run(
            recipe, source.items() if items is None else items, shard_items=shard_items, inputs=source.inputs
        )
        for _ in range(run.shard_count - leave):
            lease = run.lease()
            assert lease is not None
            lease.commit([_row(run, source, item, q, text) for item in lease.shard.items for q in questions])
        run.close()
        return run

    return make


def _row(run: Run, source: Any, item: Item, question: Question, text: Any) -> AnswerRow:
    common = {"width": 8, "height": 6, "metadata": {"licence": "CC0", **dict(item.metadata)}}
    if "broken" in item.uri:
        failure = {"error_kind": ErrorKind.TRUNCATED, "error": "cut"}
        return AnswerRow.of(run.run_id, run.recipe, item, question, "failed", **common, **failure)
    digest = hashlib.sha256(source.read(item)).hexdigest() if item.uri.startswith("file:///tmp") else None
    usage = {"finish_reason": "stop", "prompt_tokens": 9, "completion_tokens": 3, "mean_logprob": -0.25}
    answer = {"answer": text(item, question), "content_sha256": digest, "attempts": 1}
    return AnswerRow.of(run.run_id, run.recipe, item, question, "ok", **common, **answer, **usage)
