"""A library that crashes on a document, or never comes back, costs that document one failed item."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from zellige.data import decode_pool, header_process
from zellige.data.decode_wire import Failed
from zellige.data.decoded import DecodeError
from zellige.data.header_process import count_pages, read_header
from zellige.data.sources import open_source
from zellige.tasks.decode import probe_item

#: As PDFium would be with a fault: by a word in the file.
HARMFUL = """
import os, signal, sys, time
from zellige.data import decode_worker

def harmful(real):
    def count(file, *more):
        file.seek(0)
        data = file.read()
        file.seek(0)
        if b"crash" in data:
            os.kill(os.getpid(), signal.SIGSEGV)
        if b"forever" in data:
            time.sleep(3600)
        return real(file, *more)
    return count

decode_worker.count_pages = harmful(decode_worker.count_pages)
decode_worker.probe = harmful(decode_worker.probe)
decode_worker.main(int(sys.argv[1]))
"""


@pytest.fixture
def harmful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (script := tmp_path / "harmful.py").write_text(HARMFUL)
    header_process._end()
    monkeypatch.setattr(decode_pool, "COMMAND", (sys.executable, "-P", str(script)))
    yield
    header_process._end()


def pdf(pages: int, word: bytes = b"") -> bytes:
    first, *rest = [Image.new("RGB", (20, 20), "red")] * pages
    first.save(file := io.BytesIO(), "PDF", save_all=True, append_images=rest)
    return file.getvalue() + b"%" + word + b"\n"


def test_crash_while_pages_are_counted_is_one_failed_item(harmful: None, tmp_path: Path) -> None:
    for name, data in {"a.pdf": pdf(2), "b.pdf": pdf(2, b"crash"), "c.pdf": pdf(3)}.items():
        (tmp_path / name).write_bytes(data)
    source = open_source([tmp_path / "a.pdf", tmp_path / "b.pdf", tmp_path / "c.pdf"])
    items = list(source.items())
    assert [(i.uri[-5:], i.page) for i in items if not i.error_kind] == [
        *(("a.pdf", 1), ("a.pdf", 2), ("c.pdf", 1), ("c.pdf", 2), ("c.pdf", 3))
    ]
    (failed,) = (i for i in items if i.error_kind)
    assert (failed.uri[-5:], failed.error_kind) == ("b.pdf", "unreadable")
    assert failed.error == "the process that read its header died (signal SIGSEGV), 2 times"


def test_crash_while_a_dry_run_looks_at_headers_is_one_failed_item(harmful: None, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"crash")
    Image.new("RGB", (30, 20)).save(tmp_path / "b.png")
    source = open_source([tmp_path])
    bad, good = (probe_item(source, item) for item in source.items())
    assert isinstance(bad, Failed)
    assert "SIGSEGV" in bad.message
    assert not isinstance(good, Failed)
    assert (good.width, good.height) == (30, 20)


def test_document_without_end_is_given_up(harmful: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_pages(io.BytesIO(pdf(1)))[0] == 1  # the process has started
    monkeypatch.setattr(decode_pool, "DEADLINE_S", 0.2)
    with pytest.raises(DecodeError, match="within 0 seconds") as given_up:
        count_pages(io.BytesIO(pdf(1, b"forever")))
    assert given_up.value.kind == "timeout"
    monkeypatch.setattr(decode_pool, "DEADLINE_S", 60)
    assert count_pages(io.BytesIO(pdf(1)))[0] == 1


def test_files_in_memory_and_on_disk_and_several_threads_are_answered_each(tmp_path: Path) -> None:
    (path := tmp_path / "a.pdf").write_bytes(pdf(4))
    counts: list[int] = []

    def count(n: int) -> None:
        counts.append(count_pages(io.BytesIO(pdf(n)))[0] - n)
        with path.open("rb") as file:
            file.seek(7)
            counts.append(count_pages(file)[0] - 4)
            assert file.tell() == 7

    threads = [threading.Thread(target=count, args=(n,)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [0] * 6
    probed = read_header(io.BytesIO(pdf(1)), 1)
    assert probed.format == "application/pdf"


def test_process_that_cannot_be_started_says_how_to_try_it(monkeypatch: pytest.MonkeyPatch) -> None:
    header_process._end()
    monkeypatch.setattr(decode_pool, "COMMAND", (sys.executable, "-c", "raise SystemExit(5)"))
    with pytest.raises(ChildProcessError, match=r"try: .* 0"):
        count_pages(io.BytesIO(pdf(1)))


def test_no_pages_is_told_as_before() -> None:
    with pytest.raises(DecodeError) as refused:
        count_pages(io.BytesIO(b"%PDF-1.4\nnothing"))
    assert refused.value.kind in ("truncated", "unreadable")
