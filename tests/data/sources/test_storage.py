"""Files that lie elsewhere, shown with fsspec's file system in memory."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import pytest

from zellige.data.sources import ReadError, SourceError, open_source
from zellige.data.sources.storage import remote_uri, remote_url

KEYS = ["a.png", "b#1.png", "c?x=1.png", "d%41.png", "e[1].png", "é ü.png", "*.png", "sub/f.png", "sub/.hidden.png"]


@pytest.fixture
def bucket(png):
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    for number, key in enumerate(KEYS):
        memory.pipe(f"/bucket/{key}", png(number))
    memory.pipe("/bucket/notes.txt", b"hello")
    yield memory
    memory.store.clear()


def test_a_folder_elsewhere_is_walked_and_keys_are_literal(bucket, listed, png):
    source, items = listed("memory://bucket")
    found = {remote_url(i.uri).removeprefix("memory://bucket/"): source.read(i) for i in items}
    assert found == {key: png(n) for n, key in enumerate(KEYS) if "hidden" not in key}
    assert source.ignored == {"not an image": 1, "hidden": 1}
    assert all(i.uri.isascii() and i.size_bytes == len(png()) for i in items)
    assert source.local_path(items[0]) is None
    assert listed(*source.inputs)[1] == items


def test_each_key_can_be_named_alone(bucket, png):
    for number, key in enumerate(KEYS):
        source = open_source([f"memory://bucket/{key}"])
        (item,) = source.items()
        assert source.read(item) == png(number)
        (again,) = open_source(source.inputs).items()
        assert again == item
        assert remote_url(item.uri) == f"memory://bucket/{key}"


def test_globs_lists_and_filters_work_elsewhere(bucket, listed):
    assert sorted(i.uri.rpartition("/")[2] for i in listed("memory://bucket/**/[af].png")[1]) == ["a.png", "f.png"]
    bucket.pipe("/bucket/l.txt", b"a.png\nsub/f.png\nmemory://bucket/b#1.png\ngone.png\n")
    assert [(i.uri, i.error_kind) for i in listed("memory://bucket/l.txt")[1]] == [
        ("memory://bucket/a.png", None),
        ("memory://bucket/sub/f.png", None),
        ("memory://bucket/b%231.png", None),
        ("memory://bucket/gone.png", "not_found"),
    ]
    assert [i.uri[-5:] for i in listed("memory://bucket", include=("sub/*",))[1]] == ["f.png"]


def test_archives_elsewhere_are_streamed(bucket, listed, make_tar, png):
    bucket.pipe("/bucket/t.tar.gz", make_tar([("x.png", png(1)), ("y.png", png(2))], "w:gz"))
    source, items = listed("memory://bucket/t.tar.gz")
    assert [(i.uri, i.member) for i in items] == [("memory://bucket/t.tar.gz", n) for n in ("x.png", "y.png")]
    assert [source.read(i) for i in items] == [png(1), png(2)]


def test_what_is_not_there_fails_alone(bucket, listed, png):
    source, items = listed("memory://bucket/gone.png", "memory://bucket/a.png")
    assert [i.error_kind for i in items] == ["not_found", None]
    bucket.rm("/bucket/a.png")
    with pytest.raises(ReadError) as caught:
        source.read(items[1])
    assert caught.value.kind == "not_found"


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(
        fsspec, "filesystem", lambda *a, **k: (_ for _ in ()).throw(ImportError("Install s3fs to access S3"))
    )
    monkeypatch.setattr("zellige.data.sources.storage._SYSTEMS", {})
    with pytest.raises(SourceError, match="s3fs"):
        open_source(["s3://bucket/a.png"])


@pytest.mark.parametrize("url", ["s3://b/a b%20#?.png", "s3://b/é[1].png", "https://h/a%20b.png?x=1&y=[2]#z"])
def test_addresses_survive_their_way_through_a_row(url):
    assert remote_url(remote_uri(url)) == url
    assert remote_uri(url).isascii()


@pytest.fixture
def web(png):
    """A server that has one image, at a path and with a query that must arrive as they are."""
    pytest.importorskip("aiohttp")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            found = self.path == "/a%20b.png?x=1&y=%2F"
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(png()) if found else 0))
            self.end_headers()
            if found and self.command == "GET":
                self.wfile.write(png())

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *args): ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_images_on_the_web_are_items_by_their_address(web, listed, png):
    source, (there, gone) = listed(f"{web}/a%20b.png?x=1&y=%2F", f"{web}/gone.png")
    assert there.uri == f"{web}/a%20b.png?x=1&y=%2F"
    assert source.read(there) == png()
    assert gone.error_kind == "not_found"


def test_a_server_that_is_not_there_fails_the_item(listed):
    pytest.importorskip("aiohttp")
    _, (item,) = listed("http://127.0.0.1:1/a.png")
    assert item.error_kind == "timeout"
    assert "cannot be reached" in item.error
