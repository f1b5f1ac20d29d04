"""Tar archives: every image member is an item, and a cut archive says so wherever it is cut."""

from __future__ import annotations

import io
import struct
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from zellige.data.sources import ReadError, open_source, tar_reader, zstd

COMPRESSIONS = [
    *(("w", "a.tar"), ("w:gz", "a.tar.gz"), ("w:gz", "a.tgz"), ("w:bz2", "a.tar.bz2"), ("w:xz", "a.tar.xz")),
    *(("w:zst", "a.tar.zst"), ("w:zst", "a.tzst")),
]


@pytest.mark.parametrize(("mode", "name"), COMPRESSIONS)
def test_members_are_items_in_order_and_read_by_their_place(tmp_path, listed, png, make_tar, mode, name):
    images = [(f"d/{n:02}.png", png(n)) for n in range(12)]
    (tmp_path / name).write_bytes(make_tar([images[0], ("d/notes.txt", b"hello"), *images[1:]], mode))
    for given in (tmp_path, tmp_path / name):
        source, items = listed(given)
        assert [(i.member, i.ordinal) for i in items] == [(n, k + (k > 0)) for k, (n, _) in enumerate(images)]
        assert {i.uri for i in items} == {f"file://{tmp_path}/{name}"}
        assert source.ignored == {"not an image": 1}
        for item, (_, data) in [*zip(items, images, strict=True), *zip(items[::-1], images[::-1], strict=True)]:
            assert source.read(item) == data
            assert source.local_path(item) is None


def test_a_tar_is_known_by_its_bytes(tmp_path, listed, png, make_tar):
    (tmp_path / "plain").write_bytes(make_tar([("a.png", png())]))
    (tmp_path / "packed.dat").write_bytes(make_tar([("a.png", png())], "w:gz"))
    (tmp_path / "not.gz").write_bytes(b"\x1f\x8b and no more")
    source, items = listed(tmp_path)
    assert [i.uri.rpartition("/")[2] for i in items] == ["packed.dat", "plain"]
    assert [source.read(i) for i in items] == [png(), png()]


def test_a_cut_anywhere_keeps_what_is_before_it_and_says_so(tmp_path, png, make_tar):
    members = [("000.png", png(0) + bytes(3000)), ("000.txt", b"x"), ("l" * 120 + ".png", png(1)), ("002.txt", b"y")]
    whole = make_tar(members, format=tarfile.GNU_FORMAT)
    end = whole.rstrip(b"\0").__len__()
    last = (end + 511) // 512 * 512 + 1024
    ends = []
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        ends = [i.offset_data + i.size for i in archive if i.name.endswith(".png")]
    path = tmp_path / "a.tar"
    for cut in [*range(0, len(whole) + 1, 512), 1, 100, 511, 513, 700, 4607, 4609, 4708, last - 1]:
        path.write_bytes(whole[:cut])
        source = open_source([path])
        items = list(source.items())
        good = [i for i in items if i.error_kind is None]
        assert len(good) == sum(cut >= e for e in ends), cut
        assert all(source.read(i).startswith(b"\x89PNG") for i in good)
        of_archive = [i for i in items if i.member is None]
        if cut == 0:
            assert [i.error_kind for i in items] == ["empty"]
        elif cut < last:
            assert [i.error_kind for i in of_archive] == ["truncated"], cut
            assert items[-1] is of_archive[0]
        else:
            assert of_archive == []
        assert {i.error_kind for i in items} <= {None, "truncated", "empty"}


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz", "w:zst"])
def test_a_cut_compressed_tar_keeps_what_is_before_it_and_says_so(tmp_path, listed, png, make_tar, mode):
    noise = bytes(range(256)) * 4
    whole = make_tar([(f"{n}.png", png(n) + noise[n:]) for n in range(20)], mode)
    for cut in (len(whole) - 1, len(whole) // 2, 30):
        (tmp_path / "b.tar.gz").write_bytes(whole[:cut])
        source, items = listed(tmp_path / "b.tar.gz")
        assert items[-1].member is None
        assert items[-1].error_kind == "truncated", cut
        assert all(i.error_kind == "truncated" for i in items[-2:-1] if i.error_kind)
        assert all(source.read(i) for i in items if i.error_kind is None)


def test_a_zstd_tar_of_several_frames_is_read_through_and_its_damage_told(tmp_path, listed, make_tar):
    random = np.random.default_rng(0)
    members = [(f"{n}.png", random.bytes(40_000)) for n in range(12)]
    plain, skipped = make_tar(members), b"\x50\x2a\x4d\x18" + struct.pack("<L", 5) + b"hello"
    frames = [pa.compress(plain[at : at + 99_999], "zstd", asbytes=True) for at in range(0, len(plain), 99_999)]
    (path := tmp_path / "a.tar.zst").write_bytes(skipped.join(frames))
    source, items = listed(path)
    assert [source.read(item) for item in items] == [data for _, data in members]
    path.write_bytes(b"".join(frames[:2]))  # whole frames, and yet cut
    assert [i.error_kind for i in listed(path)[1]] == [None] * 4 + ["truncated", "truncated"]
    damaged = bytearray(frames[1])
    damaged[:8] = bytes(8)
    path.write_bytes(frames[0] + damaged + frames[2])
    assert listed(path)[1][-1].error_kind == "unreadable"


def test_a_damaged_header_ends_the_archive_and_says_where(tmp_path, listed, png, make_tar):
    data = bytearray(make_tar([("a.png", png()), ("b.png", png(1)), ("c.png", png(2))]))
    data[1024 + 150] ^= 0x55
    (tmp_path / "a.tar").write_bytes(data)
    _, items = listed(tmp_path)
    assert [(i.member, i.error_kind) for i in items] == [("a.png", None), (None, "unreadable")]
    assert "byte 1,024" in (items[1].error or "")


def test_only_regular_members_are_read_and_nothing_is_extracted(tmp_path, listed, png):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in ("../evil.png", "/abs/e.png", "back\\slash.png", "same.png", "same.png"):
            info = tarfile.TarInfo(name)
            info.size = len(png())
            archive.addfile(info, io.BytesIO(png()))
        for name, kind in (("soft.png", tarfile.SYMTYPE), ("hard.png", tarfile.LNKTYPE), ("p.png", tarfile.FIFOTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/hostname"
            archive.addfile(info)
        folder = tarfile.TarInfo("folder.png")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.tar").write_bytes(file.getvalue())
    source, items = listed(tmp_path / "in")
    assert [i.member for i in items] == ["../evil.png", "/abs/e.png", "back\\slash.png", "same.png", "same.png"]
    assert len({i.item_id for i in items}) == 5
    assert [source.read(i) for i in items] == [png()] * 5
    assert source.ignored == {"not a regular file": 3}
    assert [p.name for p in tmp_path.iterdir()] == ["in"]
    assert [p.name for p in (tmp_path / "in").iterdir()] == ["a.tar"]


def test_names_of_any_bytes_and_alike_ones_are_items_of_their_own(tmp_path, listed, png, make_tar):
    names = ["A.png", "a.png", "a.jpg", "é.png", "é.png", "caf\udce9.png", "x#y?%41[1].png", "a\nb.png"]
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        data = make_tar([(n, png(k)) for k, n in enumerate(names)], format=form, errors="surrogateescape")
        (tmp_path / "a.tar").write_bytes(data)
        source, items = listed(tmp_path)
        assert [i.member for i in items] == [n.replace("\udce9", "\xe9") for n in names]
        assert [source.read(i) for i in items] == [png(k) for k in range(len(names))]


def test_filters_are_for_the_members_and_an_included_archive_is_taken_whole(tmp_path, listed, png, make_tar):
    (tmp_path / "a.tar").write_bytes(make_tar([("x/a.png", png()), ("x/b.jpg", png()), ("c.png", png())]))
    assert [i.member for i in listed(tmp_path, include=("*.jpg",))[1]] == ["x/b.jpg"]
    assert [i.member for i in listed(tmp_path, exclude=("x/*",))[1]] == ["c.png"]
    assert len(listed(tmp_path, include=("*.tar",))[1]) == 3
    source, items = listed(tmp_path, exclude=("*.tar",))
    assert (items, source.ignored) == ([], {"excluded": 1})
    source, items = listed(tmp_path, include=("*.gif",))
    assert (items, source.ignored) == ([], {"excluded": 3})


def test_hidden_members_and_archives_inside_are_counted(tmp_path, listed, png, make_tar):
    inner = make_tar([("a.png", png())])
    members = [
        ("__MACOSX/._a.png", b"x"),
        (".DS_Store", b"x"),
        ("d/.h.png", png()),
        ("in.tar", inner),
        ("in", b"PK\3\4"),
    ]
    (tmp_path / "a.tar").write_bytes(make_tar([*members, ("./ok.png", png())]))
    source, items = listed(tmp_path)
    assert [i.member for i in items] == ["./ok.png"]
    assert source.ignored == {"hidden": 3, "an archive in an archive": 2}


def test_an_archive_without_an_image_is_one_failed_item(tmp_path, listed, make_tar):
    (tmp_path / "a.tar").write_bytes(make_tar([("a.txt", b"hello")]))
    _, items = listed(tmp_path)
    assert [(i.member, i.error_kind) for i in items] == [(None, "empty")]


def test_a_member_too_long_to_hold_fails_alone(tmp_path, listed, png, make_tar, monkeypatch):
    (tmp_path / "a.tar").write_bytes(make_tar([("a.png", png() + bytes(2000)), ("b.png", png())]))
    source, (long, short) = listed(tmp_path)
    monkeypatch.setattr("zellige.data.sources.base.LARGEST_BYTES", 1000)
    with pytest.raises(ReadError) as caught:
        source.read(long)
    assert caught.value.kind == "too_large"
    assert source.read(short) == png()


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_long_member_that_is_no_image_is_not_unpacked(tmp_path, listed, png, make_tar, monkeypatch, mode):
    members = [("bomb.png", bytes(1 << 20)), ("long.png", png() + bytes(1 << 20)), ("a.png", png())]
    (tmp_path / "a.tar").write_bytes(make_tar(members, mode))
    monkeypatch.setattr("zellige.data.sources.base.LOOKED_AT_BYTES", 1000)
    source, (bomb, *others) = listed(tmp_path)
    with pytest.raises(ReadError, match="not unpacked"):
        source.read(bomb)
    assert [source.read(item) for item in others] == [data for _, data in members[1:]]


def test_threads_reading_a_compressed_tar_start_it_over_rarely(tmp_path, listed, png, make_tar, monkeypatch):
    count = 400
    (tmp_path / "a.tar.gz").write_bytes(make_tar([(f"{n}.png", png(n)) for n in range(count)], "w:gz"))
    source, items = listed(tmp_path)
    headers, lock, real = 0, threading.Lock(), tar_reader.TarReader.at

    def at(reader, place):
        nonlocal headers
        if reader._stream.tell() > place + 5000:
            with lock:
                headers += 1
        return real(reader, place)

    monkeypatch.setattr(tar_reader.TarReader, "at", at)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(source.read, items))
    assert found == [png(n) for n in range(count)]
    assert headers < 5


def test_a_compressed_tar_is_listed_in_one_reading_whatever_its_members_are(
    tmp_path, listed, png, make_tar, monkeypatch
):
    first, *rest = (Image.fromarray(np.random.default_rng(n).integers(0, 256, (90, 90, 3), np.uint8)) for n in range(2))
    first.save(pages := io.BytesIO(), "TIFF", save_all=True, append_images=rest)
    members = [(f"{n}.tif", pages.getvalue()) for n in range(30)] + [(f"{n}", png(n)) for n in range(30)]
    (tmp_path / "a.tar.zst").write_bytes(make_tar([*members, *members], "w:zst"))
    monkeypatch.setattr(zstd, "_DISCARD_BYTES", 8192)
    readings, real = 0, zstd._Zstd._rewind

    def rewind(stream):
        nonlocal readings
        readings += 1
        real(stream)

    monkeypatch.setattr(zstd._Zstd, "_rewind", rewind)
    source, items = listed(tmp_path)
    assert len(items) == 2 * (30 * 2 + 30)
    assert readings < 5
    assert [source.read(i) for i in items[58:62]] == [pages.getvalue()] * 2 + [png(0), png(1)]


def test_an_archive_that_shrank_after_it_was_listed_fails_by_item(tmp_path, listed, png, make_tar):
    path = tmp_path / "a.tar"
    path.write_bytes(make_tar([("a.png", png()), ("b.png", png())]))
    source, items = listed(path)
    path.write_bytes(make_tar([("a.png", png())]))
    assert source.read(items[0]) == png()
    with pytest.raises(ReadError) as caught:
        source.read(items[1])
    assert caught.value.kind == "not_found"
    path.unlink()
    with pytest.raises(ReadError):
        open_source([path]).read(items[0])


def test_listing_needs_no_memory_for_what_it_passed(tmp_path, listed, png, make_tar):
    import tracemalloc

    (tmp_path / "a.tar").write_bytes(make_tar([(f"{n}.png", b"x") for n in range(20_000)]))
    source = open_source([tmp_path])
    tracemalloc.start()
    try:
        assert sum(1 for _ in source.items()) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


def test_an_extended_header_of_any_length_takes_no_memory(tmp_path, listed, png, make_tar):
    import tracemalloc

    long = tarfile.TarInfo("x")
    long.type, long.size = tarfile.GNUTYPE_LONGNAME, 200 << 20
    path = tmp_path / "a.tar"
    path.write_bytes(make_tar([("a.png", png())])[:1024] + long.tobuf(tarfile.GNU_FORMAT))
    with path.open("r+b") as file:
        file.truncate(300 << 20)  # sparse: it takes no room on the disk
    tracemalloc.start()
    try:
        _, items = listed(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()
    assert [(i.member, i.error_kind) for i in items] == [("a.png", None), (None, "unreadable")]
