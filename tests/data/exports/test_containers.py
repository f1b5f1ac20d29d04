"""Archives, tables and documents, read again through their sources: each image is the one that was answered."""

from __future__ import annotations

import io
import json
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
from PIL import Image

from zellige.data.exports import ExportOptions, export_run
from zellige.data.ledger import Run

#: Name in the export -> the shade of the picture.
SHADES = {
    "a.jpg": 10,
    "p.zip/x/a.jpg": 20,
    "p.zip/%2E%2E/e.jpg": 40,
    "t.parquet/0000000": 70,
    "t.parquet/0000001": 80,
    "doc.page-0001.pdf": 90,
    "doc.page-0002.pdf": 100,
    "w.tar/k/m.jpg": 60,
}


def picture(shade: int) -> Image.Image:
    return Image.fromarray(np.full((20, 30, 3), shade, np.uint8))


def jpeg(shade: int) -> bytes:
    picture(shade).save(file := io.BytesIO(), "JPEG", quality=95)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (top := tmp_path / "in").mkdir()
    (top / "a.jpg").write_bytes(jpeg(10))
    with warnings.catch_warnings(), zipfile.ZipFile(top / "p.zip", "w") as archive:
        warnings.simplefilter("ignore")
        for name, shade in (("x/a.jpg", 20), ("same.jpg", 30), ("same.jpg", 35), ("../e.jpg", 40)):
            archive.writestr(name, jpeg(shade))
    with tarfile.open(top / "w.tar", "w") as tar:
        entry = tarfile.TarInfo("k/m.jpg")
        entry.size = len(data := jpeg(60))
        tar.addfile(entry, io.BytesIO(data))
    cells = [{"bytes": jpeg(70), "path": "q.jpg"}, {"bytes": jpeg(80), "path": None}]
    pq.write_table(pa.table({"image": cells}), top / "t.parquet")
    picture(90).save(top / "doc.pdf", save_all=True, append_images=[picture(100)])
    return top


def test_each_sample_holds_the_image_that_was_answered(
    folder: Path, answered: Callable[..., Run], tmp_path: Path
) -> None:
    run = answered(folder)
    done = export_run(run, "webdataset", tmp_path / "wds", ExportOptions())
    assert done.left_out == {}
    found: dict[str, int] = {}
    for sample in webdataset.WebDataset([str(p) for p in (tmp_path / "wds").glob("*.tar")], shardshuffle=False):
        data = next(sample[suffix] for suffix in ("jpg", "png") if suffix in sample)
        found[json.loads(sample["json"])["name"]] = int(np.asarray(Image.open(io.BytesIO(data)))[10, 15, 0])
    same = {name: shade for name, shade in found.items() if name.startswith("p.zip/same-")}
    assert sorted(round(shade, -1) if shade != 35 else 35 for shade in same.values()) == [30, 35]
    assert {name: round(found[name], -1) for name in found if name not in same} == SHADES


def test_names_of_a_list_are_below_what_it_names(folder: Path, answered: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    (listed := tmp_path / "lists" / "some.txt").write_text(f"{folder / 'a.jpg'}\n")
    export_run(answered(listed), "txt", out := tmp_path / "txt", ExportOptions())
    assert [p.relative_to(out).as_posix() for p in out.rglob("*.txt")] == ["a.txt"]


def test_names_of_several_inputs_are_below_the_folder_of_both(
    folder: Path, answered: Callable[..., Run], tmp_path: Path, images: Path
) -> None:
    done = export_run(answered(folder / "a.jpg", images), "txt", out := tmp_path / "txt", ExportOptions())
    names = {p.relative_to(out).as_posix() for p in out.rglob("*.txt")}
    assert {"in/a.txt", "images/b.txt", "images/x/a.txt"} <= names
    assert done.rows == len(names)


def test_everything_has_a_text_below_the_folder(folder: Path, answered: Callable[..., Run], tmp_path: Path) -> None:
    run: Any = answered(folder)
    done = export_run(run, "txt", out := tmp_path / "txt", ExportOptions())
    names = {p.relative_to(out).as_posix() for p in out.rglob("*.txt")}
    assert done.rows == len(names) == len(SHADES) + 2
    assert {"t.parquet/0000001.txt", "doc.page-0002.txt", "w.tar/k/m.txt"} <= names
