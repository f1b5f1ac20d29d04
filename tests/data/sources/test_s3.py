"""Buckets of a real S3-speaking server: listed, read, and every way in which they cannot be had told by item."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from PIL import Image

from zellige.data.sources import ReadError, open_source, storage
from zellige.data.sources.storage import remote_url
from zellige.engine import connect
from zellige.engine.api import Answer, ModelIdentity, Request, RunMeter, Usage, VisionBudget
from zellige.flows.pipeline import run_job
from zellige.tasks.job import Job

pytest.importorskip("s3fs", reason="s3fs is not installed (pip install 'zellige[s3]')")

KEYS = ["a.png", "b#1.png", "c?x=1.png", "d%41.png", "e[1].png", "é ü.png", "*.png", "+&=.png", "sub/x y/f.png"]


def _module() -> Any:
    path = Path(__file__).parents[1] / "s3_server.py"
    spec = importlib.util.spec_from_file_location("s3_server", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["s3_server"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    s3_server, folder = _module(), tmp_path_factory.mktemp("s3")
    if problem := s3_server.why_not(folder):
        pytest.skip(problem)
    with s3_server.s3_server(folder) as running:
        yield running


@pytest.fixture
def use(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """``use(NAME=value, …)``: the server by the usual variables, with some of them changed."""

    def point(**changes: str) -> None:
        import s3fs

        for name, value in (server.variables | changes).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(storage, "_SYSTEMS", {})
        s3fs.S3FileSystem.clear_instance_cache()

    point()
    yield point
    point()


@pytest.fixture
def bucket(use: Callable[..., None], png: Callable[..., bytes]) -> Any:
    """``put(key, bytes)`` into a bucket of this test's own at ``bucket.url``, which holds ``KEYS``."""
    system, name = storage.filesystem("s3://"), f"bucket-{uuid.uuid4()}"
    system.mkdir(name)

    class Bucket:
        url = f"s3://{name}"

        def put(self, key: str, data: bytes) -> None:
            system.pipe(f"{name}/{key}", data)

    held = Bucket()
    for number, key in enumerate(KEYS):
        held.put(key, png(number))
    return held


def test_a_bucket_is_walked_and_keys_are_literal(bucket: Any, listed: Any, png: Callable[..., bytes]) -> None:
    bucket.put("notes.txt", b"hello")
    bucket.put("sub/.hidden.png", png())
    source, items = listed(bucket.url)
    found = {remote_url(i.uri).removeprefix(f"{bucket.url}/"): source.read(i) for i in items}
    assert found == {key: png(number) for number, key in enumerate(KEYS)}
    assert source.ignored == {"not an image": 1, "hidden": 1}
    assert all(item.size_bytes == len(png()) for item in items)
    assert listed(*source.inputs)[1] == items


def test_each_key_can_be_named_alone_and_globs_match(bucket: Any, listed: Any, png: Callable[..., bytes]) -> None:
    for number, key in enumerate(KEYS):
        source, (item,) = listed(f"{bucket.url}/{key}")
        assert source.read(item) == png(number)
    assert [remote_url(i.uri) for i in listed(f"{bucket.url}/**/f.p?g")[1]] == [f"{bucket.url}/sub/x y/f.png"]
    assert len(listed(f"{bucket.url}/sub")[1]) == 1


def _zip(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def test_archives_and_tables_in_a_bucket_are_opened(
    bucket: Any, listed: Any, make_tar: Callable[..., bytes], png: Callable[..., bytes]
) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (1300, 1300, 3), dtype=np.uint8))
    noise.save(large := io.BytesIO(), "PNG")  # 5 MB: read in several requests
    bucket.put("in/a.zip", _zip({"x.png": png(1), "big.png": large.getvalue()}))
    bucket.put("in/b.tar", make_tar([("x.png", png(2)), ("y.png", png(3))]))
    bucket.put("in/c.tar.gz", make_tar([("z.png", png(4))], "w:gz"))
    pq.write_table(pa.table({"image": [png(5), png(6)], "n": ["5", "6"]}), table := io.BytesIO())
    bucket.put("in/d.parquet", table.getvalue())
    source, items = listed(f"{bucket.url}/in")
    assert [(i.uri.rpartition("/")[2], i.member, i.ordinal) for i in items] == [
        ("a.zip", "x.png", 0),
        ("a.zip", "big.png", 1),
        ("b.tar", "x.png", 0),
        ("b.tar", "y.png", 1),
        ("c.tar.gz", "z.png", 0),
        ("d.parquet", None, 0),
        ("d.parquet", None, 1),
    ]
    assert [source.read(i) for i in items] == [png(1), large.getvalue(), *map(png, range(2, 7))]
    kept = listed(f"{bucket.url}/in/d.parquet", keep=("n",))[1]
    assert [dict(i.metadata) for i in kept] == [{"n": "5"}, {"n": "6"}]


def test_a_cut_archive_in_a_bucket_is_told(
    bucket: Any, listed: Any, make_tar: Callable[..., bytes], png: Callable[..., bytes]
) -> None:
    bucket.put("in/a.tar", make_tar([("x.png", png(1)), ("y.png", png(2))])[:1600])
    bucket.put("in/b.zip", _zip({"x.png": png(1)})[:-10])
    _, items = listed(f"{bucket.url}/in")
    assert [(i.member, i.error_kind) for i in items] == [
        ("x.png", None),
        ("y.png", "truncated"),
        (None, "truncated"),
        (None, "truncated"),
    ]


def test_a_wrong_secret_is_told(bucket: Any, listed: Any, use: Callable[..., None]) -> None:
    use(AWS_SECRET_ACCESS_KEY="wrong")
    for given in (bucket.url, f"{bucket.url}/a.png"):
        _, (item,) = listed(given)
        assert item.error_kind == "unreadable"
        assert any(word in item.error.lower() for word in ("denied", "forbidden", "signature")), item.error


def test_a_bucket_or_key_that_is_not_there_is_told(bucket: Any, listed: Any) -> None:
    for given in ("s3://no-such-bucket", "s3://no-such-bucket/a.png", f"{bucket.url}/gone.png", f"{bucket.url}/no/*"):
        _, (item,) = listed(given)
        assert item.error_kind == "not_found", (given, item)


def test_a_server_that_is_not_there_is_told(bucket: Any, listed: Any, use: Callable[..., None]) -> None:
    _, (there,) = listed(f"{bucket.url}/a.png")
    use(AWS_ENDPOINT_URL="http://127.0.0.1:1", AWS_MAX_ATTEMPTS="1")
    _, (item,) = listed(f"{bucket.url}/a.png")
    assert item.error_kind == "timeout"
    assert "127.0.0.1:1" in item.error
    with pytest.raises(ReadError) as caught:
        open_source([bucket.url]).read(there)
    assert caught.value.kind == "timeout"


class Instant:
    """An engine that says how large the picture was that it was shown."""

    async def answer(self, request: Request) -> Answer:
        pixels = request.messages[-1].parts[0].pixels  # type: ignore[union-attr]
        return Answer(f"{pixels.shape[1]} x {pixels.shape[0]}", "stop", Usage(4, 9, 2), mean_logprob=-0.1)

    async def meter(self, run_id: str) -> RunMeter:
        return RunMeter()

    async def identity(self) -> ModelIdentity:
        return ModelIdentity("instant", "f", "float32", VisionBudget(16, 2, 32 * 32, 128 * 128), 4096)

    async def close(self) -> None: ...


def test_a_bucket_is_captioned_and_every_item_ends_as_a_row(
    bucket: Any, make_tar: Callable[..., bytes], png: Callable[..., bytes], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(connect, "open_engine", lambda spec: Instant())
    Image.new("RGB", (64, 96), "red").save(whole := io.BytesIO(), "PNG")
    bucket.put("in/a.png", whole.getvalue())
    bucket.put("in/b.png", whole.getvalue()[:-30])
    bucket.put("in/c.tar", make_tar([("x.png", whole.getvalue()), ("y.png", b"<html>")]))
    job = Job(task="caption", store=str(tmp_path / "store"), inputs=(f"{bucket.url}/in",), workers=1)
    done = run_job(job)
    assert (done["state"], done["ok"], done["failed"]) == ("finished", 2, 2)
    parts = tmp_path / "store" / "runs" / done["run_id"] / "parts"
    rows = sorted(ds.dataset(parts, format="parquet").to_table().to_pylist(), key=lambda r: (r["uri"], r["ordinal"]))
    assert [(r["uri"].rpartition("/")[2], r["member"], r["answer"], r["error_kind"]) for r in rows] == [
        ("a.png", None, "64 x 96", None),
        ("b.png", None, None, "truncated"),
        ("c.tar", "x.png", "64 x 96", None),
        ("c.tar", "y.png", None, "unsupported_format"),
    ]
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in (parts.parent / "recipe.json").read_text()
