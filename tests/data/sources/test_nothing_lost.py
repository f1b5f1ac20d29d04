"""What a walk or a list could lose without a word: slips of the pen, tables in doubt, ids named twice, stores."""

from __future__ import annotations

import base64

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zellige.data.ledger import Store
from zellige.data.schema import Item, Question


def table(place, **columns):
    pq.write_table(pa.table(columns), place)


def test_a_store_below_the_input_is_left_out(tmp_path, listed, png, recipe):
    (tmp_path / "a.png").write_bytes(png())
    run = Store(tmp_path / "answers").create_run(recipe, [Item("file:///x")], shard_items=1, inputs=["x"])
    table(run.path / "parts" / "p.parquet", image=[png()])
    source, items = listed(tmp_path)
    assert [item.uri for item in items] == [f"file://{tmp_path}/a.png"]
    assert source.ignored == {"a store of answers": 1}


def test_a_walked_table_without_the_named_column_fails(tmp_path, listed, png):
    table(tmp_path / "a.parquet", image=[png()])
    table(tmp_path / "b.parquet", typo=[png()])
    _, (failed, read) = listed(tmp_path, column="typo")
    assert "no column typo" in failed.error
    assert failed.uri.endswith("a.parquet")
    assert read.error_kind is None


@pytest.mark.parametrize("case", ["two", "list", "base64"])
def test_a_walked_table_that_may_hold_images_is_no_silence(tmp_path, listed, png, case):
    columns = {
        "two": {"left": [png()], "right": [png(1)]},
        "list": {"views": pa.array([[png()]], pa.list_(pa.binary()))},
        "base64": {"blob": [base64.b64encode(png()).decode()]},
    }
    table(tmp_path / "t.parquet", **columns[case])
    _, (failed,) = listed(tmp_path)
    assert "--column" in failed.error
    assert next(iter(columns[case])) in failed.error


def test_a_walked_table_of_text_and_numbers_is_left_out(tmp_path, listed):
    table(tmp_path / "t.parquet", id=[1], caption=["word " * 2000])
    source, items = listed(tmp_path)
    assert (items, source.ignored) == ([], {"a table without images": 1})


@pytest.mark.parametrize("name", ["l.csv", "l.jsonl", "l.parquet"])
def test_a_column_to_keep_that_a_list_lacks_fails_as_in_a_table(tmp_path, listed, png, name):
    (tmp_path / "a.png").write_bytes(png())
    if name == "l.parquet":
        table(tmp_path / name, path=["a.png"], id=["1"])
    else:
        (tmp_path / name).write_text("path,id\na.png,1\n" if name == "l.csv" else '{"path": "a.png", "id": "1"}\n')
    assert [item.error_kind for item in listed(tmp_path / name, keep=("id",))[1]] == [None]
    _, (failed,) = listed(tmp_path / name, keep=("idd",))
    assert (failed.error_kind, "--keep: there is no column idd" in failed.error) == ("not_found", True)


def test_an_image_named_twice_with_different_ids_is_a_failed_row(tmp_path, listed, png):
    (tmp_path / "a.png").write_bytes(png())
    (tmp_path / "l.csv").write_text("path,id\na.png,1\na.png,2\na.png,1\n")
    source, items = listed(tmp_path / "l.csv", keep=("id",))
    assert [(dict(item.metadata)["id"], item.error_kind) for item in items] == [("1", None), ("2", "unreadable")]
    assert "named before" in items[1].error
    assert source.ignored == {"named twice": 1}
    assert len({item.item_id for item in items}) == 2


@pytest.mark.parametrize(
    ("glob", "left"), [("x", ["y/x2.png"]), ("x/", ["y/x2.png"]), ("./y", ["x/a.png", "x/z/b.png"])]
)
def test_an_excluded_folder_is_left_out_with_all_below(tmp_path, listed, png, make_tar, glob, left):
    members = ["x/a.png", "x/z/b.png", "y/x2.png"]
    for name in members:
        (tmp_path / "f" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "f" / name).write_bytes(png())
    (tmp_path / "t.tar").write_bytes(make_tar([(name, png()) for name in members]))
    uris = [item.uri.removeprefix(f"file://{tmp_path}/f/") for item in listed(tmp_path / "f", exclude=(glob,))[1]]
    assert uris == left
    assert [item.member for item in listed(tmp_path / "t.tar", exclude=(glob,))[1]] == left


def test_a_questions_glob_may_begin_with_the_folder_itself():
    assert Question("q", "?", "./a.png").concerns(Item("file:///p/a.png"))
    assert not Question("q", "?", "./a.png").concerns(Item("file:///p/b.png"))
