"""Every image that was named or lies in a named folder is an item, once, under its own name."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import tracemalloc
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from zellige.data.decode import decode
from zellige.data.globs import NameFilter
from zellige.data.sources import ReadError, SourceError, SourceOptions, open_source
from zellige.data.sources.files import LARGEST_BYTES
from zellige.data.uri import from_uri

_FILE = io.BytesIO()
Image.new("RGB", (2, 2), "red").save(_FILE, "PNG")
PNG = _FILE.getvalue()


def make(folder: Path, *names: str | bytes, content: bytes = PNG) -> None:
    for name in names:
        path = os.path.join(os.fsencode(folder), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)


def listed(folder: Path, inputs: Sequence[str | bytes | Path] | None = None, **filters: Sequence[str]) -> list[bytes]:
    """Paths of the items, relative to ``folder``."""
    items = open_source(inputs or [folder], SourceOptions(**filters)).items()
    return [os.path.relpath(from_uri(item.uri), os.fsencode(folder)) for item in items]


def test_a_folder_is_walked_in_a_fixed_order(tmp_path):
    make(tmp_path, "b.png", "a.JPG", "sub/c.webp", "sub/deep/d.tiff", "z.gif")
    assert listed(tmp_path) == [b"a.JPG", b"b.png", b"z.gif", b"sub/c.webp", b"sub/deep/d.tiff"]
    assert listed(tmp_path) == listed(tmp_path)
    item = next(iter(open_source([tmp_path]).items()))
    assert (item.size_bytes, item.member, item.page, item.error_kind) == (len(PNG), None, None, None)


NAMES = [
    b"caf\xe9.jpg",
    b"a\nb.jpg",
    b" lead trail .jpg",
    "\u00e9.jpg".encode(),
    "e\u0301.jpg".encode(),
    b"-x.jpg",
    b"%41.jpg",
    b"A.jpg",
    b"a.jpg",
    b"a.png",
    b"x#y?.jpg",
    b"100%.jpg",
    b"[1].jpg",
    b"*.jpg",
    b"back\\slash.jpg",
    b"s\xff\xfe/in.jpg",
]


def test_names_of_any_bytes_are_items_of_their_own_and_read_by_those_bytes(tmp_path):
    for number, name in enumerate(NAMES):
        make(tmp_path, name, content=PNG + bytes([number]))
    source = open_source([tmp_path])
    found = {os.path.relpath(from_uri(i.uri), os.fsencode(tmp_path)): source.read(i)[-1] for i in source.items()}
    assert found == {name: number for number, name in enumerate(NAMES)}
    for number, name in enumerate(NAMES):  # and each when named alone, as bytes and as the shell gives it
        path = os.path.join(os.fsencode(tmp_path), name)
        for given in (path, os.fsdecode(path), Path(os.fsdecode(path))):
            alone = open_source([given])
            assert [alone.read(i)[-1] for i in alone.items()] == [number]
        again = open_source(open_source([path]).inputs)
        assert [again.read(i)[-1] for i in again.items()] == [number]


def test_loops_pipes_and_broken_links_are_harmless_and_counted(tmp_path):
    make(tmp_path, "loop/a.jpg", "d.jpg/inside.png", ".hidden/x.png", ".y.png", "__MACOSX/._a.jpg")
    (tmp_path / "loop/sub").mkdir()
    (tmp_path / "loop/sub/up").symlink_to("..")
    (tmp_path / "dangling.png").symlink_to("nowhere.png")
    (tmp_path / "self.png").symlink_to("self.png")
    os.mkfifo(tmp_path / "f.jpg")
    source = open_source([tmp_path])
    names = [os.path.relpath(from_uri(i.uri), os.fsencode(tmp_path)) for i in source.items()]
    assert names == [b"d.jpg/inside.png", b"loop/a.jpg"]
    assert source.ignored == {"broken link": 2, "not a regular file": 1, "hidden": 3, "folder seen already": 1}


def test_a_linked_folder_is_entered_and_a_real_one_comes_first(tmp_path):
    make(tmp_path, "other/o.png", "in/zz/a.png")
    (tmp_path / "in/aa").symlink_to("zz")
    (tmp_path / "in/far").symlink_to("../other")
    (tmp_path / "in/file.png").symlink_to("../other/o.png")
    assert listed(tmp_path / "in") == [b"file.png", b"zz/a.png", b"far/o.png"]


def test_bytes_decide_where_the_suffix_does_not(tmp_path):
    make(tmp_path, "noext", "photo.dat", "cat.jpg.bak")
    make(tmp_path, "notes.txt", "data", content=b"hello")
    make(tmp_path, "empty", "empty.png", content=b"")
    source = open_source([tmp_path])
    names = [os.path.basename(from_uri(i.uri)) for i in source.items()]
    assert names == [b"cat.jpg.bak", b"empty.png", b"noext", b"photo.dat"]
    assert source.ignored == {"not an image": 3}


def test_a_named_file_is_an_item_whatever_it_is(tmp_path):
    make(tmp_path, "notes.md", ".hidden.png", content=b"hello")
    assert listed(tmp_path, [tmp_path / "notes.md", tmp_path / ".hidden.png"]) == [b"notes.md", b".hidden.png"]


@pytest.mark.parametrize("name", ["missing.png", "file.png/below.png", "nul\0.png"])
def test_a_missing_input_is_one_failed_item(tmp_path, name):
    make(tmp_path, "file.png")
    items = list(open_source([f"{tmp_path}/{name}", tmp_path]).items())
    assert [i.error_kind for i in items] == ["not_found", None]
    assert items[0].error


def test_a_file_that_goes_or_turns_into_something_else_fails_alone(tmp_path):
    make(tmp_path, "a.png", "b.png", "c.png")
    source = open_source([tmp_path])
    gone, folder, pipe = source.items()
    (tmp_path / "a.png").unlink()
    (tmp_path / "b.png").unlink()
    (tmp_path / "b.png").mkdir()
    (tmp_path / "c.png").unlink()
    os.mkfifo(tmp_path / "c.png")
    kinds = []
    for item in (gone, folder, pipe):
        with pytest.raises(ReadError) as caught:
            source.read(item)
        kinds.append(caught.value.kind)
    assert kinds == ["not_found", "unreadable", "unreadable"]


def test_a_file_too_long_to_hold_fails_alone(tmp_path):
    make(tmp_path, "a.png", "b.png")
    os.truncate(tmp_path / "b.png", LARGEST_BYTES + 1)  # a sparse file: it takes no room on the disk
    source = open_source([tmp_path])
    short, long = source.items()
    assert source.read(short) == PNG
    with pytest.raises(ReadError, match="more than the limit") as error:
        source.read(long)
    assert error.value.kind == "too_large"


def test_a_named_pipe_is_a_failed_item(tmp_path):
    os.mkfifo(tmp_path / "p.png")
    assert [i.error_kind for i in open_source([tmp_path / "p.png"]).items()] == ["unreadable"]


def test_a_folder_that_cannot_be_listed_is_a_failed_item(tmp_path, monkeypatch):
    make(tmp_path, "locked/a.png", "open/b.png")
    scandir = os.scandir

    def refuse(path: bytes) -> object:
        if path.endswith(b"/locked/"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    items = list(open_source([tmp_path]).items())
    assert [(os.path.basename(from_uri(i.uri)), i.error_kind) for i in items] == [
        (b"locked", "unreadable"),
        (b"b.png", None),
    ]
    assert "Permission denied" in (items[0].error or "")


def test_what_is_named_twice_is_one_item(tmp_path, monkeypatch):
    make(tmp_path, "in/a.png", "in/b.png")
    monkeypatch.chdir(tmp_path)
    source = open_source(["in", tmp_path / "in/a.png", "./in/../in"])
    assert len(list(source.items())) == 2
    assert source.ignored == {"named twice": 3}


def test_inputs_are_kept_absolute(tmp_path, monkeypatch):
    make(tmp_path, "in/a b.png")
    monkeypatch.chdir(tmp_path)
    source = open_source(["in"])
    assert source.inputs == (f"file://{tmp_path}/in",)
    assert source.describe() == source.inputs[0]
    monkeypatch.chdir("/")
    assert [i.uri for i in open_source(source.inputs).items()] == [f"file://{tmp_path}/in/a%20b.png"]


def test_addresses_we_cannot_read_are_wrong_usage(tmp_path, monkeypatch):
    with pytest.raises(SourceError, match="nosuch:// addresses"):
        open_source(["nosuch://example.org/a.png"])
    with pytest.raises(SourceError, match="no input"):
        open_source([])
    with pytest.raises(SourceError, match="empty name"):
        open_source([""])
    with pytest.raises(SourceError, match="no name of a file"):
        open_source(["\ud800.png"])
    monkeypatch.chdir(tmp_path)
    make(tmp_path, "http:/a.png")  # a folder may be called so
    assert listed(tmp_path, ["http://a.png"]) == [b"http:/a.png"]


def test_filters_choose_by_name_and_by_path(tmp_path):
    make(tmp_path, "a.png", "a.jpg", "sub/a.png", "sub/deep/b.png", "[x].png")
    assert listed(tmp_path, include=["*.jpg"]) == [b"a.jpg"]
    assert listed(tmp_path, include=["sub/*.png"]) == [b"sub/a.png"]
    assert listed(tmp_path, include=["sub/**"], exclude=["b.*"]) == [b"sub/a.png"]
    assert listed(tmp_path, exclude=["**/deep/*", "*.jpg"]) == [b"[x].png", b"a.png", b"sub/a.png"]
    source = open_source([tmp_path / "a.png"], SourceOptions(exclude=("a*",)))
    assert list(source.items()) == []
    assert source.ignored == {"excluded": 1}


@pytest.mark.parametrize(
    ("glob", "name", "wanted"),
    [
        ("*.png", "x/y.png", True),
        ("x/*.png", "x/y/z.png", False),
        ("x/**/*.png", "x/z.png", True),
        ("x/**/*.png", "x/y/w/z.png", True),
        ("a?.png", "a/.png", False),
        ("[ab].png", "b.png", True),
        ("[!ab].png", "b.png", False),
        ("[!ab].png", "c.png", True),
        ("[[].png", "[.png", True),
        ("[]a].png", "].png", True),
        ("[^x].png", "^.png", True),
        ("[a-c]1.png", "b1.png", True),
        ("a.png", "aXpng", False),
        ("[.png", "[.png", True),
        ("a\nb*", "a\nbc", True),
        ("é*", "é1", True),
    ],
)
def test_globs(glob, name, wanted):
    assert NameFilter([glob], []).wants(os.fsencode(name)) is wanted


def test_what_is_read_decodes(tmp_path):
    make(tmp_path, "a.jpg")  # a PNG by its bytes
    source = open_source([tmp_path])
    assert decode(source.read(next(source.items()))).format == "image/png"


def test_folders_nested_deeper_than_python_recurses(tmp_path):
    depth, here = sys.getrecursionlimit() + 50, os.open(tmp_path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        here, parent = os.open("d", os.O_RDONLY, dir_fd=here), here
        os.close(parent)
    os.close(os.open("deep.png", os.O_CREAT, dir_fd=here))
    os.close(here)
    try:
        assert [i.uri[-9:] for i in open_source([tmp_path]).items()] == ["/deep.png"]
    finally:  # pytest's own cleaning up recurses
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)


def test_a_folder_of_very_many_files_is_walked_in_little_memory(tmp_path):
    count = 3000
    (tmp_path / f"{0:040d}.jpg").write_bytes(b"\xff\xd8\xff")
    for n in range(1, count):
        os.link(tmp_path / f"{0:040d}.jpg", tmp_path / f"{n:040d}.jpg")
    source = open_source([tmp_path])
    assert sum(1 for _ in source.items()) == count
    tracemalloc.start()
    deque(source.items(), maxlen=0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200 * count


def test_a_file_of_which_the_system_tells_nothing_is_a_failed_item_if_it_may_be_an_image(tmp_path, monkeypatch):
    for name in ("a.jpg", "b.zip", "c.txt"):
        (tmp_path / name).write_bytes(b"x")
    stat = os.stat

    def refused(path: Any, **how: Any) -> Any:
        if os.fsencode(path).endswith((b"a.jpg", b"b.zip", b"c.txt")):
            raise PermissionError(errno.EACCES, "Permission denied")
        return stat(path, **how)

    source = open_source([tmp_path])
    monkeypatch.setattr("zellige.data.sources.files.os.stat", refused)
    found = [(item.uri.rpartition("/")[2], item.error_kind, item.error) for item in source.items()]
    assert found == [(name, "unreadable", "Permission denied") for name in ("a.jpg", "b.zip")]
    assert source.ignored == {"not an image": 1}
