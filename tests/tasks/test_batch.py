"""A file of OpenAI batch requests from its plan to the batch API's output file: a row and a line a request."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from PIL import Image

from zellige.data.exports import ExportOptions, export_run
from zellige.data.ledger import Store
from zellige.engine import connect
from zellige.engine.api import Answer, ModelIdentity, Request, RunMeter, Usage, VisionBudget
from zellige.flows.pipeline import run_job
from zellige.tasks.job import Job, WrongUseError
from zellige.tasks.plan import check


class Echo:
    """An engine that answers with the question."""

    def __init__(self) -> None:
        self.asked = 0

    async def answer(self, request: Request) -> Answer:
        self.asked += 1
        return Answer(f"to {request.messages[-1].parts[-1].text}", "stop", Usage(4, 9, 2), mean_logprob=-0.1)  # type: ignore[union-attr]

    async def meter(self, run_id: str) -> RunMeter:
        return RunMeter()

    async def identity(self) -> ModelIdentity:
        return ModelIdentity("echo", "f", "float32", VisionBudget(16, 2, 32 * 32, 128 * 128), 4096)

    async def close(self) -> None: ...


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Echo:
    echo = Echo()
    monkeypatch.setattr(connect, "open_engine", lambda spec: echo)
    return echo


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    """Five requests: two about one image, one of them asked twice, a cut image, and a line that is no request."""
    Image.new("RGB", (64, 64), "red").save(file := io.BytesIO(), "PNG")

    def line(custom_id: str, text: str, image: bytes = file.getvalue()) -> str:
        url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
        content = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]
        body = {"model": "m", "messages": [{"role": "user", "content": content}]}
        return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body})

    lines = [line("a", "one?"), line("b", "two?"), line("c", "one?"), line("d", "one?", file.getvalue()[:40]), "{}"]
    (path := tmp_path / "in.jsonl").write_text("\n".join(lines))
    return path


def rows_of(store: Path, run_id: str) -> list[dict[str, Any]]:
    table = ds.dataset(store / "runs" / run_id / "parts", format="parquet").to_table()
    return sorted(table.to_pylist(), key=lambda row: row["ordinal"])


def test_each_request_is_asked_its_own_question_and_exported_by_its_name(
    batch: Path, engine: Echo, tmp_path: Path
) -> None:
    job = Job(task="ask", store=str(tmp_path / "store"), inputs=(str(batch),), workers=1)
    assert check(job)
    done = run_job(job)
    assert (done["state"], done["ok"], done["failed"]) == ("finished", 3, 2)
    assert engine.asked == 2  # c asks what a asks, of the same image
    rows = rows_of(tmp_path / "store", done["run_id"])
    assert [(r["member"], r["question_id"], r["question"], r["answer"], r["error_kind"]) for r in rows] == [
        ("a", "request", "one?", "to one?", None),
        ("b", "request", "two?", "to two?", None),
        ("c", "request", "one?", "to one?", None),
        ("d", "request", "one?", None, "truncated"),
        (None, "request", None, None, "unreadable"),
    ]
    run = Store(tmp_path / "store").open_run(done["run_id"])
    written = export_run(run, "openai-batch", tmp_path / "out.jsonl", ExportOptions())
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert written.rows == len(lines) == 5
    assert [line["custom_id"] for line in lines] == ["a", "b", "c", "d", rows[4]["row_id"]]
    assert lines[1]["response"]["body"]["choices"][0]["message"]["content"] == "to two?"
    assert (lines[3]["response"], lines[3]["error"]["code"]) == (None, "truncated")
    assert lines[4]["error"]["message"].startswith("line 5: ")


def test_questions_of_the_run_take_the_place_of_the_requests_own(batch: Path, engine: Echo, tmp_path: Path) -> None:
    job = Job(task="ask", store=str(tmp_path / "store"), inputs=(str(batch),), questions=("x?", "y?"), workers=1)
    done = run_job(job)
    assert (done["ok"], done["failed"]) == (6, 4)
    run = Store(tmp_path / "store").open_run(done["run_id"])
    export_run(run, "openai-batch", tmp_path / "out.jsonl", ExportOptions())
    names = [json.loads(line)["custom_id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(set(names)) == 10  # two lines a request are told apart


def test_without_a_question_only_requests_can_be_asked(batch: Path, engine: Echo, tmp_path: Path) -> None:
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    with pytest.raises(WrongUseError, match="--question"):
        check(Job(task="ask", store=str(tmp_path / "store"), inputs=(str(batch), str(tmp_path / "a.png"))))
