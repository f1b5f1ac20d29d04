"""Folders written by ``save_to_disk`` of ``datasets``, read back."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from PIL import Image

from zellige.data.decode import decode
from zellige.data.sources.base import ReadError
from zellige.data.sources.hf_folders import dataset_files
from zellige.data.sources.options import SourceOptions
from zellige.data.sources.storage import local_file
from zellige.data.sources.tables import TableContainer

datasets = pytest.importorskip("datasets")


def png(width: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, 2)).save(file, "PNG")
    return file.getvalue()


def made(widths: range) -> datasets.Dataset:
    columns = {"image": [{"bytes": png(w), "path": None} for w in widths], "label": [f"is {w}" for w in widths]}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})
    return datasets.Dataset.from_dict(columns, features=features)


def listed(folder: Path) -> list[str] | None:
    return dataset_files(lambda name: (folder / name).read_bytes() if (folder / name).exists() else None)


def rows(folder: Path) -> list[tuple[int, str]]:
    found = []
    for name in listed(folder) or ():
        table = TableContainer(local_file(os.fsencode(folder / name)), SourceOptions(keep=("label",)))
        found += [(decode(table.read(item)).width, dict(item.metadata)["label"]) for item in table.items()]
    return found


def test_data_set_of_several_files_is_read_in_order(tmp_path: Path) -> None:
    made(range(1, 13)).save_to_disk(tmp_path / "d", num_shards=3)
    (tmp_path / "d" / "cache-0123.arrow").write_bytes(b"what map() left behind is none of it")
    assert len(listed(tmp_path / "d") or ()) == 3
    assert rows(tmp_path / "d") == [(w, f"is {w}") for w in range(1, 13)]


def test_splits_are_read_in_the_order_of_the_data_set(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": made(range(5, 8)), "a test": made(range(1, 3))}).save_to_disk(tmp_path / "d")
    assert [width for width, _ in rows(tmp_path / "d")] == [5, 6, 7, 1, 2]


def test_selected_rows_are_those_that_are_read(tmp_path: Path) -> None:
    made(range(1, 10)).select([7, 1]).save_to_disk(tmp_path / "d")
    assert [width for width, _ in rows(tmp_path / "d")] == [8, 2]


def test_other_folders_are_none(tmp_path: Path) -> None:
    assert listed(tmp_path) is None
    (tmp_path / "state.json").write_text('{"step": 7}')
    assert listed(tmp_path) is None


@pytest.mark.parametrize(
    "state", ["{", '{"_data_files": [{"filename": "../x.arrow"}]}', '{"_data_files": [{}, {"a": 1}]}']
)
def test_damaged_list_of_files_is_named(tmp_path: Path, state: str) -> None:
    (tmp_path / "state.json").write_text(state)
    if "../" in state or state == "{":
        with pytest.raises(ReadError, match=r"state\.json"):
            listed(tmp_path)
    else:
        assert listed(tmp_path) == ["None"]


def test_what_is_listed_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "state.json").write_text(
        '{"_data_files": [{"filename": "x.arrow"}, {"filename": "x.arrow"}]}'
    )
    assert listed(tmp_path / "train") == ["x.arrow"]
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "train"]}')
    assert listed(tmp_path) == ["train/x.arrow"]


def test_split_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(ReadError, match=r"train/state\.json"):
        listed(tmp_path)
