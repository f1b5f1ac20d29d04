"""A file that was changed between plan and decode: an item never gets the bytes of another."""

from __future__ import annotations

import io
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zellige.data.sources import ReadError, SourceOptions, open_source


def zip_of(members):
    with zipfile.ZipFile(file := io.BytesIO(), "w") as archive:
        for name, data in members:
            archive.writestr(name, data)
    return file.getvalue()


def test_member_that_moved_fails_and_one_that_did_not_is_read(tmp_path, listed, png, make_tar):
    before = [(f"{name}.png", png(number)) for number, name in enumerate("abcd")]
    moved = [before[0], ("zzz.png", png(9)), *before[1:]]
    packers = {"p.zip": zip_of, "p.tar": make_tar, "p.tar.gz": lambda members: make_tar(members, "w:gz")}
    for name, pack in packers.items():
        for given in (f"{tmp_path}/{name}", *([f"wds:{tmp_path}/{name}"] if "tar" in name else [])):
            (tmp_path / name).write_bytes(pack(before))
            source, items = listed(given)
            (tmp_path / name).write_bytes(pack(moved))
            later = open_source(source.inputs)
            assert later.read(items[0]) == png(0)
            for item in (items[3], items[1], items[2]):
                with pytest.raises(ReadError, match="changed after it was listed"):
                    later.read(item)


def test_row_whose_kept_cells_are_others_now_fails(tmp_path, listed, png):
    def write(ids):
        pq.write_table(pa.table({"id": ids, "image": [png(n) for n in range(len(ids))]}), tmp_path / "t.parquet")

    write(["a", "b"])
    source, items = listed(tmp_path / "t.parquet", keep=("id",))
    assert [source.read(item) for item in items] == [png(0), png(1)]
    write(["a", "zzz", "b"])
    later = open_source(source.inputs, SourceOptions(keep=("id",)))
    assert later.read(items[0]) == png(0)
    with pytest.raises(ReadError, match="changed after it was listed"):
        later.read(items[1])
