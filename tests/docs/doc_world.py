"""The folder that the commands of the docs are typed in, and what stands there for the docs' placeholders."""

from __future__ import annotations

import base64
import io
import json
import re
import tarfile
import zipfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from zellige.engine.api import Answer, Delta, KernelHealth, ModelIdentity, Request, RunMeter, Usage, VisionBudget
from zellige.engine.connect import DEMO_MODEL

#: Which pattern becomes what, one after the other. {RUN} is a finished run of captions with a truncated file, {OTHER}
#: one like it, {SPARE} one that may go, {SERVER} the address of a server, {PICTURE} a picture as a data URI,
#: {NEW} a name that is not taken.
PLACEHOLDERS: Sequence[tuple[str, str]] = (
    (r"\bruns delete RUN\b", "runs delete --yes {SPARE}"),
    (r"\bRUN2\b", "{OTHER}"),
    (r"(?<!\{)\bRUN\b", "{RUN}"),
    (r"\bINPUT\.\.\.", "photos/"),
    (r"\bSTORE\b", "answers"),
    (r"--to FORMAT DEST\b", "--to jsonl dest.jsonl"),
    (r"--to DIR\b", "--to {NEW}"),
    (r"\bFILE\.html\b", "file.html"),
    (r"\bIMAGE\b", "photos/red.png"),
    (r"\b(MODEL|DIR)\b|(?<!\S)engine/demo/model\b", str(DEMO_MODEL)),
    (r"--device cuda(:\d)?", "--device cpu"),
    (r"\bs3://", "memory://"),
    (r"error_kind = 'length'", "error_kind = 'truncated'"),
    (r"--engine '?http://\S+", "--engine {SERVER}"),
    (r'base_url="[^"]+"', 'base_url="{SERVER}"'),
    (r"data:image/png;base64,…", "{PICTURE}"),
)
#: What is typed behind a command here: no server of Prefect's, one process, few samples.
MORE: Mapping[str, str] = {
    r"zellige (caption|ask|read)\b": " --no-prefect --workers 1 --quiet",
    r"zellige quantize\b": " --samples 1 --report-samples 0",
}
PICTURE_FOLDERS = ("photos", "scans", "receipts", "forms", "demo/images/scenes", "demo/images/documents")


def filled(text: str, names: Mapping[str, str]) -> str:
    """``text`` as it is typed here; ``names`` are the words in braces."""
    for pattern, value in PLACEHOLDERS:
        text = re.sub(pattern, lambda _, value=value: value, text)
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text + "".join(more for pattern, more in MORE.items() if re.match(pattern, text))


def picture(colour: tuple[int, int, int]) -> bytes:
    """A small PNG of one colour."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64), colour).save(file, "PNG")
    return file.getvalue()


def data_uri() -> str:
    return f"data:image/png;base64,{base64.b64encode(picture((1, 2, 3))).decode()}"


def draw(folder: Path) -> None:
    """Every input that the docs name, each with a picture or two; the bucket is in this process's memory."""
    red, blue = picture((200, 30, 30)), picture((30, 30, 200))
    for name in PICTURE_FOLDERS:
        (folder / name).mkdir(parents=True)
        (folder / name / "red.png").write_bytes(red)
        (folder / name / "blue-invoice.jpg").write_bytes(blue)
    (folder / "photos" / "cut.png").write_bytes(picture((0, 0, 0))[:-20])
    with zipfile.ZipFile(folder / "pages.zip", "w") as archive:
        archive.writestr("1.png", red)
    Image.new("RGB", (96, 64), (9, 99, 9)).save(folder / "report.pdf")
    (folder / "shards").mkdir()
    with tarfile.open(folder / "shards" / "0.tar", "w") as shard:
        shard.add(folder / "scans" / "red.png", "0.png")
    pq.write_table(pa.table({"image": [red, blue], "label": ["red", "blue"]}), folder / "table.parquet")
    (folder / "again.csv").write_text("uri\nscans/red.png\n")
    (folder / "keys.txt").write_text("ada:secret\n")
    (folder / "questions.jsonl").write_text(
        '{"question_id": "total", "question": "What is the total?"}\n'
        '{"question_id": "vendor", "question": "Who is the vendor?", "uri": "*invoice*"}\n'
    )
    schema = {"type": "object", "properties": {"vendor": {"type": "string"}}, "required": ["vendor"]}
    (folder / "schema.json").write_text(json.dumps(schema))
    fsspec.filesystem("memory").pipe_file("/bucket/photos/red.png", red)


class Parrot:
    """An engine that answers at once: the least JSON that meets the schema, where there is one."""

    async def answer(self, request: Request) -> Answer:
        schema = None if request.grammar is None else json.loads(request.grammar.source)
        text = "a red square" if schema is None else json.dumps(least(schema))
        return Answer(text, "stop", Usage(4, 10, 3), mean_logprob=-0.1)

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        answer = await self.answer(request)
        yield Delta(answer.text, answer)

    async def meter(self, run_id: str) -> RunMeter:
        health = KernelHealth(
            "silu_mul", "cuda:0", 9, 1, 1e-3, 8e-3, 0, 0, 0, 0, device_ms=0.1, bytes=4096, verdict="healthy"
        )
        return RunMeter(kernels=(health,))

    async def identity(self) -> ModelIdentity:
        return ModelIdentity("parrot", "f00d", "float32", VisionBudget(16, 2, 1024, 200_704), 512)

    async def close(self) -> None:
        pass


def least(schema: Mapping[str, Any]) -> Any:
    """The smallest value of a schema of objects, lists and plain values."""
    kind = schema["type"] if isinstance(schema["type"], str) else schema["type"][-1]
    plain = {"array": [], "string": "", "number": 0, "integer": 0, "boolean": False, "null": None}
    return {key: least(schema["properties"][key]) for key in schema["required"]} if kind == "object" else plain[kind]
