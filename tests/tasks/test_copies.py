"""Copies of an image are asked about once; each has the answer, or the error, in a row of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import pytest
from PIL import Image

from zellige.data.ledger import Store
from zellige.engine import connect
from zellige.engine.api import Answer, ImagePart, ModelIdentity, Request, RunMeter, Usage, VisionBudget
from zellige.flows.pipeline import run_job
from zellige.tasks.copies import Answers, copied
from zellige.tasks.job import Job
from zellige.tasks.merge import Merged


class Counting:
    """An engine that answers with the number of the request."""

    def __init__(self) -> None:
        self.asked = 0

    async def answer(self, request: Request) -> Answer:
        self.asked += 1
        number = self.asked
        await asyncio.sleep(0.02)
        assert isinstance(request.messages[-1].parts[0], ImagePart)
        return Answer(f"answer {number}", "stop", Usage(4, 9, 2), mean_logprob=-0.1, engine_s=0.5)

    async def meter(self, run_id: str) -> RunMeter:
        return RunMeter()

    async def identity(self) -> ModelIdentity:
        return ModelIdentity("counting", "f", "float32", VisionBudget(16, 2, 32 * 32, 128 * 128), 4096)

    async def close(self) -> None:
        pass


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Counting:
    counting = Counting()
    monkeypatch.setattr(connect, "open_engine", lambda spec: counting)
    return counting


Rows = list[dict[str, object]]


@pytest.fixture
def caption(tmp_path: Path, engine: Counting) -> Callable[..., Rows]:
    """Runs the caption flow over seven files: three copies of a, two of b (large, tiled) and a broken one twice."""
    folder = tmp_path / "images"
    folder.mkdir()
    a, b = (np.random.default_rng(i).integers(0, 256, (s, s, 3), dtype=np.uint8) for i, s in ((0, 64), (1, 300)))
    for name, pixels in {"1": a, "2": b, "3": a, "5": a, "6": b}.items():
        Image.fromarray(pixels).save(folder / f"{name}.png")
    for name in ("4.png", "7.png"):
        (folder / name).write_bytes((folder / "2.png").read_bytes()[:2000])

    def run(**options: object) -> Rows:
        store = tmp_path / f"store{len(list(tmp_path.iterdir()))}"
        job = Job(task="caption", store=str(store), inputs=(str(folder),), **options)  # type: ignore[arg-type]
        done = run_job(job)
        assert (done["ok"], done["failed"]) == (5, 2)
        run_of = Store(store).open_run(done["run_id"])
        table = ds.dataset(store / "runs" / run_of.run_id / "parts", format="parquet").to_table()
        rows: Rows = sorted(table.to_pylist(), key=lambda row: row["uri"])
        return rows

    return run


@pytest.mark.parametrize("shard_items", [256, 2, 1])
def test_copies_are_asked_once_and_share_the_answer(
    caption: Callable[..., Rows], engine: Counting, shard_items: int
) -> None:
    rows = caption(shard_items=shard_items, workers=2)
    one, two, three, four, five, six, seven = rows
    assert len({row["item_id"] for row in rows}) == len({row["row_id"] for row in rows}) == 7
    assert one["answer"] == three["answer"] == five["answer"]
    assert two["answer"] == six["answer"]
    assert two["tiles"] == six["tiles"]
    tiles = two["tiles"]
    assert isinstance(tiles, list)
    assert engine.asked == 1 + len(tiles) + 1  # a; the views of b; and the summary of b's tiles
    # What was asked is paid for once: the copies' rows say that nothing was.
    for copies in ((one, three, five), (two, six)):
        paid = sorted((r["completion_tokens"], r["attempts"]) for r in copies)
        assert all(p == (0, 0) for p in paid[:-1])
        assert paid[-1] > (0, 0)
    assert four["error_kind"] == seven["error_kind"] == "truncated"
    assert four["content_sha256"] == seven["content_sha256"]


def test_each_copy_is_asked_about_where_that_is_wanted(caption: Callable[..., Rows], engine: Counting) -> None:
    rows = caption(dedupe=False, raw=True)
    assert engine.asked == 5
    assert len({row["answer"] for row in rows if row["status"] == "ok"}) == 5


def test_question_that_does_not_concern_an_item_is_skipped_and_decodes_nothing(
    tmp_path: Path, engine: Counting
) -> None:
    for name in ("a.png", "b.png"):
        Image.new("RGB", (64, 64)).save(tmp_path / name)
    (tmp_path / "c.png").write_bytes(b"no picture")
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question": "all?", "uri": "[ab].png"}\n{"question": "one?", "uri": "b.png"}\n')
    store = tmp_path / "store"
    inputs = tuple(str(tmp_path / f"{name}.png") for name in "abc")
    done = run_job(Job(task="ask", store=str(store), inputs=inputs, questions_file=str(questions)))
    assert (done["ok"], done["failed"], done["skipped"]) == (3, 0, 3)
    table = ds.dataset(store / "runs" / done["run_id"] / "parts", format="parquet").to_table().to_pylist()
    told = [(row["uri"][-5:], row["question"], row["status"], row["decode_s"] is None) for row in table]
    assert told == [
        ("a.png", "all?", "ok", False),
        ("a.png", "one?", "skipped", True),
        ("b.png", "all?", "ok", False),
        ("b.png", "one?", "ok", False),
        ("c.png", "all?", "skipped", True),
        ("c.png", "one?", "skipped", True),
    ]
    assert engine.asked == 2


def merged(answer: str) -> Merged:
    return Merged(answer, "stop", -0.1, (), Usage(1, 2, 3), 0.5, 2, None, None)


def test_answers_that_are_kept_are_bounded_and_the_latest_used() -> None:
    async def work() -> None:
        answers = Answers(most=2)
        for name in "abc":
            assert answers.of((name, None, "q")) is None
            answers.settle((name, None, "q"), merged(name))
        kept = answers.of(("c", None, "q"))
        assert kept is not None
        assert (await kept).answer == "c"
        assert answers.of(("a", None, "q")) is None
        assert answers.of(("c", 2, "q")) is None

    asyncio.run(work())


def test_what_was_given_up_or_failed_is_asked_again() -> None:
    async def work() -> None:
        answers, key = Answers(), ("a", None, "q")
        assert answers.of(key) is None
        waiting = answers.of(key)
        assert waiting is not None
        answers.settle(key, ValueError("bad"))
        with pytest.raises(ValueError, match="bad"):
            await waiting
        assert answers.of(key) is None
        answers.settle(key, None)
        assert answers.of(key) is None

    asyncio.run(work())


def test_copy_says_that_it_cost_nothing() -> None:
    copy = copied(merged("a"))
    assert (copy.answer, copy.usage, copy.engine_s, copy.attempts) == ("a", Usage(), 0.0, 0)
