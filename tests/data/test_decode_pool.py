"""Decoding in other processes: the same pixels, and whatever kills, fills or holds up a worker costs one image."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from zellige.data import decode_pool
from zellige.data.decode import decode
from zellige.data.decode_pool import DecodeFailed, DecodePool, PoolError
from zellige.data.decode_wire import Failed, Header
from zellige.data.schema import ErrorKind
from zellige.data.views import View, ViewRule, views_of
from zellige.engine.api import VisionBudget

RULE = ViewRule("caption", "auto", VisionBudget(16, 2, 32 * 32, 128 * 128))
#: A worker that does to itself what the first bytes of an "image" say, as a faulty decoder would.
HARMFUL = """
import os, signal, sys, time
from zellige.data import decode_worker
decode = decode_worker.decode
def harmful(data, limits, page=None):
    if data.startswith(b"SEGV"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if data.startswith(b"ONCE") and not os.path.exists(data[4:]):
        open(data[4:], "x").close()
        os.kill(os.getpid(), signal.SIGKILL)
    if data.startswith(b"HANG"):
        time.sleep(60)
    if data.startswith(b"FILL"):
        bytearray(4 << 30)
    if data.startswith(b"FAULT"):
        raise KeyError("ours")
    return decode(data if not data.startswith(b"ONCE") else open(data[4:] + b".png", "rb").read(), limits, page)
decode_worker.decode = harmful
decode_worker.main(int(sys.argv[1]))
"""


def png(width: int = 300, height: int = 200, value: int = 0) -> bytes:
    pixels = np.random.default_rng(value).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


async def all_of(pool: DecodePool, source: bytes, *, is_path: bool = False) -> list[tuple[Header, View]] | Failed:
    try:
        found = pool.views(RULE, source, is_path=is_path, page=None, size_bytes=0)
        return [(header, view) async for header, view, _ in found]
    except DecodeFailed as error:
        return error.failed


def run(work: Callable[[DecodePool], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    async def inside() -> Any:
        pool = DecodePool(options.pop("workers", 2), **options)
        try:
            return await asyncio.wait_for(work(pool), 60)
        finally:
            pool.close()

    return asyncio.run(inside())


@pytest.fixture
def harmful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "harmful.py"
    script.write_text(HARMFUL)
    monkeypatch.setattr(decode_pool, "COMMAND", (sys.executable, "-P", str(script)))


def same(found: list[tuple[Header, View]], data: bytes) -> None:
    wanted = list(views_of(decode(data).pixels, RULE))
    assert [view.tile for _, view in found] == [view.tile for view in wanted]
    assert all(np.array_equal(a.pixels, b.pixels) for (_, a), b in zip(found, wanted, strict=True))


def test_views_are_those_of_decoding_here_from_bytes_and_from_a_path_of_any_name(tmp_path: Path) -> None:
    data = png()
    path = os.fsencode(tmp_path) + b"/caf\xe9 [1].jpg"
    Path(os.fsdecode(path)).write_bytes(data)

    async def work(pool: DecodePool) -> None:
        from_bytes, from_path = await all_of(pool, data), await all_of(pool, path, is_path=True)
        assert isinstance(from_bytes, list)
        assert isinstance(from_path, list)
        same(from_bytes, data)
        same(from_path, data)
        assert {header for header, _ in from_path} == {header for header, _ in from_bytes}
        assert len(from_path[0][0].content_sha256) == 64

    run(work)


def test_bad_items_fail_by_kind(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    cut = png()[:5000]

    async def work(pool: DecodePool) -> list[Any]:
        paths = [os.fsencode(tmp_path / name) for name in ("nothing", "pipe")]
        gone = [await all_of(pool, path, is_path=True) for path in paths]
        return gone + [await all_of(pool, data) for data in (b"", b"<html></html>", cut, png(1, 5000))]

    found = run(work)
    assert [failed.kind for failed in found] == [
        ErrorKind.NOT_FOUND,
        ErrorKind.UNREADABLE,
        ErrorKind.EMPTY,
        ErrorKind.UNSUPPORTED_FORMAT,
        ErrorKind.TRUNCATED,
        ErrorKind.ENGINE_REJECTED,
    ]
    assert (found[4].width, found[4].height) == (300, 200)
    assert len(found[4].content_sha256) == 64


@pytest.mark.usefixtures("harmful")
def test_decoder_that_crashes_costs_its_image_and_its_neighbours_are_done() -> None:
    data = png()

    async def work(pool: DecodePool) -> list[Any]:
        return await asyncio.gather(*(all_of(pool, d) for d in (data, b"SEGV", data, data, b"FAULT", data)))

    found = run(work)
    assert found[1].kind is ErrorKind.UNREADABLE
    assert found[1].message == "the decoder died (signal 11, SIGSEGV) on this image, 2 times"
    assert found[4].kind is ErrorKind.UNREADABLE
    assert "KeyError" in found[4].trace
    for i in (0, 2, 3, 5):
        same(found[i], data)


@pytest.mark.usefixtures("harmful")
def test_image_whose_worker_was_killed_once_is_done_by_another(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    Path(f"{mark}.png").write_bytes(png())
    found = run(lambda pool: all_of(pool, b"ONCE" + os.fsencode(mark)))
    assert mark.exists()
    same(found, png())


@pytest.mark.usefixtures("harmful")
def test_memory_and_time_are_bounded() -> None:
    async def work(pool: DecodePool) -> list[Any]:
        return [await all_of(pool, data) for data in (b"FILL", b"HANG", png())]

    begin = time.monotonic()
    fill, hang, fine = run(work, memory_bytes=1 << 30, deadline_s=1.5)
    assert time.monotonic() - begin < 15
    assert (fill.kind, hang.kind) == (ErrorKind.TOO_LARGE, ErrorKind.TIMEOUT)
    same(fine, png())


def pids_of(pool: DecodePool) -> set[int]:
    return {worker._process.pid for worker in pool._all}


def test_worker_killed_between_the_views_of_an_image_is_replaced_and_no_view_comes_twice() -> None:
    data = png()

    async def work(pool: DecodePool) -> None:
        found = []
        views: AsyncIterator[Any] = pool.views(RULE, data, is_path=False, page=None, size_bytes=0)
        async for header, view, _ in views:
            found.append((header, view))
            if len(found) == 2:
                before = pids_of(pool)
                for pid in before:
                    os.kill(pid, signal.SIGKILL)
        same(found, data)
        assert not before & pids_of(pool)

    run(work, workers=1)


def test_views_are_made_only_as_they_are_asked_for_and_a_worker_that_is_told_to_stop_goes_on_with_others() -> None:
    data = png(900, 900)

    async def work(pool: DecodePool) -> None:
        for _ in range(3):
            async with aclosing(pool.views(RULE, data, is_path=False, page=None, size_bytes=0)) as views:
                async for _, view, _ in views:
                    assert view.tile.overview
                    break
            workers = pids_of(pool)
        assert len(workers) == 1
        found = await all_of(pool, png())
        assert isinstance(found, list)
        same(found, png())
        assert pids_of(pool) == workers

    run(work, workers=1)


def test_few_images_start_few_workers() -> None:
    async def work(pool: DecodePool) -> int:
        pool.start_one()
        for value in range(4):
            await all_of(pool, png(value=value))
        return len(pids_of(pool))

    assert run(work, workers=8) == 1


def test_pool_that_cannot_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_pool, "COMMAND", (sys.executable, "-c", "raise SystemExit(5)"))
    with pytest.raises(PoolError, match="exit code 5"):
        run(lambda pool: all_of(pool, png()))


def test_worker_killed_while_it_starts_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "died"
    dies_once = (
        "import os, signal, sys\n"
        f"if not os.path.exists({str(mark)!r}):\n"
        f"    open({str(mark)!r}, 'x').close()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "from zellige.data import decode_worker\n"
        "decode_worker.main(int(sys.argv[1]))\n"
    )
    monkeypatch.setattr(decode_pool, "COMMAND", (sys.executable, "-P", "-c", dies_once))
    data = png()
    same(run(lambda pool: all_of(pool, data)), data)
    assert mark.exists()


PARENT = """
import asyncio, sys
from zellige.data.decode_pool import DecodePool
async def main():
    pool = DecodePool(2)
    workers = [pool._new(), pool._new()]
    for worker in workers:
        await worker.ready()
    print(*(worker._process.pid for worker in workers), flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def test_workers_end_when_their_parent_is_killed() -> None:
    shared_before = set(Path("/dev/shm").iterdir())
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(workers) == 2
    end = time.monotonic() + 10
    while time.monotonic() < end and any(map(_lives, workers)):
        time.sleep(0.02)
    assert not any(map(_lives, workers))
    assert set(Path("/dev/shm").iterdir()) <= shared_before


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_worker_starts_without_what_it_does_not_need() -> None:
    code = "import sys, zellige.data.decode_worker; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "prefect", "duckdb", "pyvips", "fsspec", "zellige.tasks", "zellige.engine"} & set(modules)
