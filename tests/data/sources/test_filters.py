"""``--include`` and ``--exclude`` over what holds many images: archives by the names inside, tables by their own."""

from __future__ import annotations

import io
import zipfile

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest


def zip_of(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.png", data)
    return file.getvalue()


def table_of(*images):
    pq.write_table(pa.table({"image": list(images)}), file := io.BytesIO())
    return file.getvalue()


@pytest.fixture(params=["local", "remote"])
def folder(request, tmp_path):
    """(``put(name, bytes)``, the address of the folder that they lie in)."""
    if request.param == "local":

        def put(name, data):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(data)

        yield put, tmp_path
        return
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    yield (lambda name, data: memory.pipe(f"/filtered/{name}", data)), "memory://filtered"
    memory.store.clear()


def test_a_table_is_taken_by_its_own_name(folder, listed, png):
    put, place = folder
    put("a.png", png())
    put("t.parquet", table_of(png(1), png(2)))
    put("sub/u.parquet", table_of(png(3)))
    source, items = listed(place, include=("*.png",))
    assert [(i.uri.rpartition("/")[2], i.ordinal) for i in items] == [("a.png", None)]
    assert source.ignored == {"excluded": 2}
    for glob in ("sub/**", "sub/*.parquet", "u.*"):
        assert [(i.uri.rpartition("/")[2], i.ordinal) for i in listed(place, include=(glob,))[1]] == [("u.parquet", 0)]
    source, items = listed(f"{place}/t.parquet", include=("*.png",))
    assert (items, source.ignored) == ([], {"excluded": 1})
    assert len(listed(f"{place}/t.parquet", include=("t.*",))[1]) == 2


def test_an_archive_without_what_is_included_is_passed_by_and_counted(folder, listed, png):
    put, place = folder
    put("a.png", png())
    put("empty.zip", zip_of())
    put("nothing.zip", b"")
    put("other.zip", zip_of(b=png()))
    source, items = listed(place, include=("a*.png",))
    assert [i.uri.rpartition("/")[2] for i in items] == ["a.png"]
    assert source.ignored == {"excluded": 3}
    assert [i.error_kind for i in listed(place, include=("*.zip",))[1]] == ["empty", "empty", None]


def test_an_archive_that_cannot_be_read_fails_whatever_is_included(folder, listed, png):
    put, place = folder
    put("cut.zip", zip_of(a=png())[:-10])
    assert [i.error_kind for i in listed(place, include=("a.png",))[1]] == ["truncated"]


def test_an_archive_whose_path_is_included_is_taken_whole(folder, listed, png):
    put, place = folder
    put("sub/x.zip", zip_of(a=png(), b=png(1)))
    put("y.zip", zip_of(c=png()))
    source, items = listed(place, include=("sub/**",))
    assert [i.member for i in items] == ["a.png", "b.png"]
    assert source.ignored == {"excluded": 1}
    assert source.read(items[1]) == png(1)


def test_a_saved_data_set_is_filtered_by_the_names_of_its_files(tmp_path, listed, png):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"image": [png()]}).save_to_disk(str(tmp_path / "saved"))
    assert len(listed(tmp_path)[1]) == len(listed(tmp_path, include=("*.arrow",))[1]) == 1
    for options in ({"include": ("*.png",)}, {"exclude": ("saved/**",)}):
        source, items = listed(tmp_path, **options)
        assert (items, source.ignored) == ([], {"excluded": 1})
