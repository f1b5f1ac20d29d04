"""Zip archives: members by their place, none merged with another, and damage told by member where it can be."""

from __future__ import annotations

import io
import struct
import warnings
import zipfile

import pytest

from zellige.data.sources import ReadError


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
