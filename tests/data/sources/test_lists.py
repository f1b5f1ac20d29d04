"""Lists of names and globs as inputs."""

from __future__ import annotations

import base64
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zellige.data.sources import SourceError


@pytest.fixture
def photos(tmp_path, png):
    for name in ("p/a.png", "p/b.png", "p/d/c.png", "p/[1].png"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_bytes(png())
    return tmp_path


def names(folder, items):
    return [i.uri.removeprefix(f"file://{folder}/") for i in items]


def test_a_text_file_lists_one_name_a_line(photos, listed, monkeypatch):
    lines = ["p/b.png", "", f"{photos}/p/a.png", "missing.png", f"file://{photos}/p/%5B1%5D.png", "p/b.png"]
    (photos / "list.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    monkeypatch.chdir("/")
    source, items = listed(photos / "list.txt")
    assert names(photos, items) == ["p/b.png", "p/a.png", "missing.png", "p/%5B1%5D.png"]
    assert [i.error_kind for i in items] == [None, None, "not_found", None]
    assert source.ignored == {"named twice": 1}
    assert source.inputs == (f"list:file://{photos}/list.txt",)
    assert listed(*source.inputs)[1] == items
    assert source.local_path(items[0]) == f"{photos}/p/b.png".encode()


def test_names_of_any_letters_are_taken_as_they_are(tmp_path, listed, png):
    strange = [b"caf\xe9.png", b" lead trail .png", "a\u2028b\u0085c.png".encode(), b"x#y?%41.png", b"*.png"]
    for name in strange:
        (tmp_path / "x").mkdir(exist_ok=True)
        (tmp_path / "x" / os.fsdecode(name)).write_bytes(png())
    (tmp_path / "l.txt").write_bytes(b"".join(b"x/" + n + b"\n" for n in strange))
    source, items = listed(tmp_path / "l.txt")
    assert [i.error_kind for i in items] == [None] * len(strange)
    assert [source.read(i) for i in items] == [png()] * len(strange)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_tables_of_names_have_a_column_and_keep_others(photos, listed, kind):
    rows = [
        {"n": 1, "image_path": "p/a.png", "title": "A, or\u2028so"},
        {"n": 2, "image_path": "p/d/c.png", "title": "B"},
    ]
    path = photos / f"rows.{kind}"
    if kind == "csv":
        path.write_text('n,image_path,title\n1,p/a.png,"A, or\u2028so"\n2,p/d/c.png,B\n', encoding="utf-8")
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    source, items = listed(path, keep=("title", "n"))
    assert names(photos, items) == ["p/a.png", "p/d/c.png"]
    assert [dict(i.metadata) for i in items] == [{"title": "A, or\u2028so", "n": "1"}, {"title": "B", "n": "2"}]
    assert source.inputs == (f"list:file://{path}",)
    with pytest.raises(SourceError, match="title"):
        listed(f"list:{path}", column="picture")


def test_rows_without_a_name_are_failed_items_of_their_own(photos, listed):
    (photos / "l.jsonl").write_text('{"path": "p/a.png"}\nnot json\n{"path": null}\n"p/b.png"\n[1]\n')
    _, items = listed(photos / "l.jsonl")
    assert [i.error_kind for i in items] == [None, "unreadable", "unreadable", None, "unreadable"]
    assert len({i.item_id for i in items}) == 5
    assert [i.ordinal for i in items] == [None, 1, 2, None, 4]


def test_a_csv_of_one_column_may_have_no_header(photos, listed):
    (photos / "l.csv").write_text("p/a.png\np/b.png\n")
    assert names(photos, listed(photos / "l.csv")[1]) == ["p/a.png", "p/b.png"]
    (photos / "m.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SourceError, match="--column"):
        listed(photos / "m.csv")


def test_in_a_walked_folder_lists_are_no_inputs(photos, listed):
    (photos / "p/list.txt").write_text("d/c.png\n")
    (photos / "p/list.csv").write_text("path\nd/c.png\n")
    pq.write_table(pa.table({"url": ["d/c.png"]}), photos / "p/list.parquet")
    source, items = listed(photos / "p")
    assert len(items) == 4
    assert source.ignored == {"not an image": 2, "a list": 1}


def test_a_list_may_name_archives_and_folders(photos, listed, make_tar, png):
    (photos / "t.tar").write_bytes(make_tar([("x.png", png())]))
    (photos / "l.txt").write_text("t.tar\np/d\n")
    assert [(i.uri.rpartition("/")[2], i.member) for i in listed(photos / "l.txt")[1]] == [
        ("t.tar", "x.png"),
        ("c.png", None),
    ]


def test_a_list_that_is_missing_is_one_failed_item(photos, listed):
    assert [i.error_kind for i in listed(photos / "gone.txt")[1]] == ["not_found"]


def test_globs_stay_in_their_folder_unless_they_say_otherwise(photos, listed, monkeypatch):
    monkeypatch.chdir(photos)
    assert names(photos, listed("p/*.png")[1]) == ["p/%5B1%5D.png", "p/a.png", "p/b.png"]
    source, items = listed("p/**/*.png")
    assert names(photos, items) == ["p/%5B1%5D.png", "p/a.png", "p/b.png", "p/d/c.png"]
    assert names(photos, listed("*/d")[1]) == ["p/d/c.png"]
    assert names(photos, listed("p/[ab].png", exclude=("b*",))[1]) == ["p/a.png"]
    monkeypatch.chdir("/")
    assert listed(*source.inputs)[1] == items


def test_a_name_that_exists_is_no_glob(photos, listed):
    assert names(photos, listed(photos / "p/[1].png")[1]) == ["p/%5B1%5D.png"]


def test_a_glob_that_finds_nothing_is_one_failed_item(photos, listed):
    assert [i.error_kind for i in listed(photos / "p/*.gif")[1]] == ["not_found"]
    assert [i.error_kind for i in listed(photos / "nowhere/*.gif")[1]] == ["not_found"]


@pytest.mark.parametrize("form", ["{}", "data:image/png;base64,{}"])
def test_parquet_of_images_written_as_text_is_a_table_and_no_list(photos, listed, png, form):
    text = form.format(base64.b64encode(png(3)).decode())
    pq.write_table(pa.table({"image": [None, text, "../p/a.png"]}), photos / "p/t.parquet")
    for given in (photos / "p/t.parquet", photos / "p"):
        source, items = listed(given)
        rows = [item for item in items if item.uri.endswith("t.parquet")]
        assert [item.ordinal for item in rows] == [0, 1, 2]
        assert [source.read(item) for item in rows[1:]] == [png(3), png()]


def test_names_in_parquet_may_be_any_bytes(tmp_path, listed, png):
    (tmp_path / os.fsdecode(b"caf\xe9.png")).write_bytes(png(1))
    raw = pa.array([b"caf\xe9.png"]).view(pa.string())
    pq.write_table(pa.table({"path": raw, "k": raw, "n": [7]}), tmp_path / "list.parquet")
    source, (item,) = listed(tmp_path / "list.parquet", keep=("k", "n"))
    assert source.read(item) == png(1)
    assert dict(item.metadata) == {"k": os.fsdecode(b"caf\xe9.png"), "n": "7"}


def test_an_image_written_out_in_a_list_is_one_failed_item_of_its_row(photos, listed):
    (photos / "l.jsonl").write_text('{"path": "p/a.png"}\n{"path": "data:image/png;base64,iVBORw0KGgo="}\n')
    _, (whole, failed) = listed(photos / "l.jsonl")
    assert whole.error_kind is None
    assert (failed.ordinal, failed.error_kind) == (1, "unreadable")
    assert "Parquet" in failed.error


def test_parquet_with_a_damaged_name_of_a_column_is_one_failed_item(tmp_path, listed, png):
    (tmp_path / "a.png").write_bytes(png())
    pq.write_table(pa.table({"path": ["a.png"], "kept": ["x"]}), tmp_path / "l.parquet", store_schema=False)
    data = (tmp_path / "l.parquet").read_bytes()
    (tmp_path / "l.parquet").write_bytes(data.replace(b"kept", b"k\x93pt"))
    (item,) = listed(tmp_path / "l.parquet")[1]
    assert item.error_kind == "unreadable"
    _, (image, table) = listed(tmp_path)
    assert (image.error_kind, table.error_kind) == (None, "unreadable")
