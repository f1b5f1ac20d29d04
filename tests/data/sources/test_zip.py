"""Zip archives: members by their place, none merged with another, and damage told by member where it can be."""

from __future__ import annotations

import io
import re
import struct
import subprocess
import sys
import warnings
import zipfile
import zlib

import numpy as np
import pytest

from zellige.data.sources import ReadError, open_source
from zellige.data.sources.zip_directory import find_directory


def zip_of(members, compression=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", compression) as archive:
        warnings.simplefilter("ignore")  # of two members of one name
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name) if isinstance(name, str) else name, data, compression)
    return file.getvalue()


def kind_of_reading(source, item):
    with pytest.raises(ReadError) as caught:
        source.read(item)
    return caught.value.kind


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_members_of_any_name_are_items_by_their_place(tmp_path, listed, png, compression):
    names = ["../a.png", "a.png", "/abs/b.png", "b\\c.png", "a.png", "é.png", "e\u0301.png", "A.png", "x#?%41[1].png"]
    data = zip_of([(n, png(k)) for k, n in enumerate(names)], compression)
    (tmp_path / "a.zip").write_bytes(data)
    source, items = listed(tmp_path)
    assert [(i.member, i.ordinal) for i in items] == [(n, k) for k, n in enumerate(names)]
    assert len({i.item_id for i in items}) == len(names)
    for k in (*range(len(names)), 0, 4, 1):
        assert source.read(items[k]) == png(k)
    assert [p.name for p in tmp_path.iterdir()] == ["a.zip"]


def test_a_name_that_is_not_utf8_is_latin_1_and_not_a_code_page(tmp_path, listed, png):
    data = zip_of([("cafX.png", png())]).replace(b"cafX.png", b"caf\xe9.png")
    (tmp_path / "a.zip").write_bytes(data)
    source, (item,) = listed(tmp_path)
    assert item.member == "café.png"
    assert source.read(item) == png()


def test_what_is_no_item_is_counted(tmp_path, listed, png):
    link = zipfile.ZipInfo("link.png")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    inner = zip_of([("a.png", png())])
    members = [
        ("__MACOSX/._a.jpg", b"x"),
        (".DS_Store", b"x"),
        ("in.zip", inner),
        ("in", inner),
        ("notes.txt", b"hello"),
    ]
    (tmp_path / "a.zip").write_bytes(zip_of([*members, (link, b"/etc/hostname"), ("folder/", b""), ("ok", png())]))
    source, items = listed(tmp_path)
    assert [i.member for i in items] == ["ok"]
    assert source.ignored == {
        "hidden": 2,
        "an archive in an archive": 2,
        "not an image": 1,
        "not a regular file": 1,
    }


def test_an_encrypted_member_fails_alone(tmp_path, listed, png):
    data = bytearray(zip_of([("a.png", png()), ("b.png", png(1))]))
    entry = data.index(b"PK\1\2")
    for at in (6, entry + 8):
        data[at] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    source, items = listed(tmp_path)
    assert [i.error_kind for i in items] == ["encrypted", None]
    assert source.read(items[1]) == png(1)


def test_a_wrong_checksum_or_packing_fails_alone(tmp_path, listed, png):
    data = bytearray(zip_of([("a.png", png()), ("b.png", png(1)), ("c.png", png(2))]))
    data[data.index(b"IHDR") + 6] ^= 1
    packed = data.index(b"PK\1\2", data.index(b"PK\1\2") + 4) + 10
    data[packed : packed + 2] = struct.pack("<H", 99)
    (tmp_path / "a.zip").write_bytes(data)
    source, items = listed(tmp_path)
    assert kind_of_reading(source, items[0]) == "unreadable"
    assert kind_of_reading(source, items[1]) == "unsupported_format"
    assert source.read(items[2]) == png(2)


@pytest.mark.parametrize(
    ("cut", "kind"), [(slice(0, 0), "empty"), (slice(0, -10), "truncated"), (slice(0, 40), "truncated")]
)
def test_an_archive_that_cannot_be_opened_is_one_failed_item(tmp_path, listed, png, cut, kind):
    (tmp_path / "a.zip").write_bytes(zip_of([("a.png", png()), ("b.png", png())])[cut])
    (tmp_path / "b.png").write_bytes(png())
    _, items = listed(tmp_path)
    assert [(i.member, i.error_kind) for i in items] == [(None, kind), (None, None)]


def test_an_archive_without_an_image_is_one_failed_item_and_garbage_too(tmp_path, listed):
    (tmp_path / "a.zip").write_bytes(zip_of([]))
    (tmp_path / "b.zip").write_bytes(b"no zip at all")
    _, items = listed(tmp_path)
    assert [i.error_kind for i in items] == ["empty", "unreadable"]


def test_filters_are_for_the_members(tmp_path, listed, png):
    (tmp_path / "a.zip").write_bytes(zip_of([("x/a.png", png()), ("b.jpg", png())]))
    assert [i.member for i in listed(tmp_path, include=("x/*",))[1]] == ["x/a.png"]
    assert [i.member for i in listed(tmp_path / "a.zip", exclude=("*.jpg",))[1]] == ["x/a.png"]


def test_pages_of_documents_inside_are_items(tmp_path, listed, png):
    from PIL import Image

    file = io.BytesIO()
    first, *rest = (Image.new("RGB", (4, 4), c) for c in ("red", "green", "blue"))
    first.save(file, "TIFF", save_all=True, append_images=rest)
    (tmp_path / "a.zip").write_bytes(zip_of([("s.tif", file.getvalue()), ("a.png", png())], zipfile.ZIP_DEFLATED))
    source, items = listed(tmp_path)
    assert [(i.member, i.ordinal, i.page) for i in items] == [
        ("s.tif", 0, 1),
        ("s.tif", 0, 2),
        ("s.tif", 0, 3),
        ("a.png", 1, None),
    ]
    assert source.read(items[2]) == file.getvalue()


def test_office_files_are_no_archives_of_images(tmp_path, listed, png):
    (tmp_path / "a.docx").write_bytes(zip_of([("word/media/a.png", png())]))
    source, items = listed(tmp_path)
    assert (items, source.ignored) == ([], {"not an image": 1})


def member(name: str | bytes, data: bytes, flags: int = 0) -> tuple[bytes, bytes]:
    """A stored member and its entry in the list, made by hand; the entry is for offset 0."""
    raw = name.encode() if isinstance(name, str) else name
    about = struct.pack("<3H2H3L2H", 20, flags, 0, 0, 33, zlib.crc32(data), len(data), len(data), len(raw), 0)
    entry = b"PK\1\2" + struct.pack("<H", 20) + about + struct.pack("<3H2L", 0, 0, 0, 0, 0) + raw
    return b"PK\3\4" + about + raw + data, entry


def test_entries_are_those_that_zipfile_finds(tmp_path, png):
    random = np.random.default_rng(0)
    members = [(f"{n}{'x' * int(random.integers(0, 300))}.png", png(n)) for n in range(3000)]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            info = zipfile.ZipInfo(name)
            info.extra, info.comment = b"\x99\x99\4\0four", random.bytes(int(random.integers(0, 50)))
            archive.writestr(info, data)
        archive.comment = b"a comment that is longer than the record that it follows"
    for before in (b"", b"#!/bin/sh\n" * 100):
        data = before + file.getvalue()
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            wanted = archive.infolist()
        found = [info for _, info in find_directory(io.BytesIO(data)).entries()]
        for name in ("orig_filename", "header_offset", "file_size", "compress_size", "CRC", "compress_type"):
            assert [getattr(i, name) for i in found] == [getattr(i, name) for i in wanted]
    (tmp_path / "a.zip").write_bytes(data.replace(b"a comment that", b"PK\5\6mment that"))
    source = open_source([tmp_path])
    items = list(source.items())
    for k in (2999, 0, 1023, 1024, 2048, 5, 2999):
        assert source.read(items[k]) == members[k][1]


def test_names_of_any_bytes_whatever_their_flags_say(tmp_path, listed, png):
    made = [member(b"\x82\xff.png", png(), 0x800), member("é.png", png(1), 0x800), member(b"\x82.png", png(2))]
    body, entries = b"", b""
    for data, entry in made:
        entries += entry[:42] + struct.pack("<L", len(body)) + entry[46:]
        body += data
    end = b"PK\5\6" + struct.pack("<4H2LH", 0, 0, 3, 3, len(entries), len(body), 0)
    (tmp_path / "a.zip").write_bytes(body + entries + end)
    source, items = listed(tmp_path)
    assert [i.member for i in items] == ["\x82\xff.png", "é.png", "\x82.png"]
    assert [source.read(i) for i in items] == [png(), png(1), png(2)]


def test_numbers_of_zip64_are_read(tmp_path, listed, png):
    data, entry = member("a.png", png())
    size = struct.pack("<L", 0xFFFFFFFF)
    extra = struct.pack("<2H3Q", 1, 24, len(png()), len(png()), 0)
    entry = (
        entry[:20] + size * 2 + entry[28:30] + struct.pack("<H", len(extra)) + entry[32:42] + size + entry[46:] + extra
    )
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, len(entry), len(data))
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(data) + len(entry), 1)
    small = b"PK\5\6" + struct.pack("<4H2LH", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    (tmp_path / "a.zip").write_bytes(data + entry + end + locator + small)
    source, (item,) = listed(tmp_path)
    assert item.size_bytes == len(png())
    assert source.read(item) == png()


def test_a_damaged_list_keeps_the_members_before_the_damage(tmp_path, listed, png):
    data = bytearray(zip_of([(f"{n}.png", png(n)) for n in range(4)]))
    third = [m.start() for m in re.finditer(b"PK\1\2", bytes(data))][2]
    data[third] = 0
    (tmp_path / "a.zip").write_bytes(data)
    source, items = listed(tmp_path)
    assert [(i.member, i.error_kind) for i in items] == [("0.png", None), ("1.png", None), (None, "unreadable")]
    assert "first 2 members" in items[2].error
    assert source.read(items[1]) == png(1)


def test_a_list_shorter_than_it_should_be_is_told(tmp_path, listed, png):
    data = bytearray(zip_of([(f"{n}.png", png(n)) for n in range(4)]))
    data[-14:-10] = struct.pack("<2H", 5, 5)
    (tmp_path / "a.zip").write_bytes(data)
    _, items = listed(tmp_path)
    assert [i.error_kind for i in items] == [None] * 4 + ["unreadable"]


def test_a_zip_of_very_many_members_is_listed_in_little_memory(tmp_path):
    count = 200_000
    with (tmp_path / "a.zip").open("wb") as file:
        data, entry = member("000000.png", b"x")
        for n in range(count):
            file.write(data.replace(b"000000", b"%06d" % n))
        start = file.tell()
        for n in range(count):
            file.write(entry[:42] + struct.pack("<L", n * len(data)) + b"%06d.png" % n)
        size = file.tell() - start
        file.write(struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, start))
        file.write(struct.pack("<4sLQL", b"PK\6\7", 0, start + size, 1))
        file.write(b"PK\5\6" + struct.pack("<4H2LH", 0, 0, 0xFFFF, 0xFFFF, size, 0xFFFFFFFF, 0))
    program = (
        "import re, sys; from pathlib import Path; from zellige.data.sources import open_source\n"
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])\n"
        "source, before, count = open_source(sys.argv[1:]), peak(), 0\n"
        "for last in source.items(): count += 1\n"
        "print(count, peak() - before)\n"
        "print(source.read(last), source.read(next(source.items())), peak() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, check=True, text=True
    ).stdout.split()
    assert done[:1] + done[2:4] == [str(count), "b'x'", "b'x'"]
    assert int(done[1]) < 10_000, "kB to list them"
    assert int(done[4]) < 30_000, "kB to read them too"


def test_a_long_member_that_is_no_image_is_not_unpacked(tmp_path, listed, png, monkeypatch):
    members = [("bomb.png", bytes(1 << 20)), ("long.png", png() + bytes(1 << 20)), ("a.png", png())]
    (tmp_path / "a.zip").write_bytes(zip_of(members, zipfile.ZIP_DEFLATED))
    monkeypatch.setattr("zellige.data.sources.base.LOOKED_AT_BYTES", 1000)
    source, (bomb, *others) = listed(tmp_path)
    assert kind_of_reading(source, bomb) == "unreadable"
    assert [source.read(item) for item in others] == [data for _, data in members[1:]]
