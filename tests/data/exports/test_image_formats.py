"""WebDataset and Hugging Face folders, read back by their own libraries."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
import webdataset
from PIL import Image

from zellige.data.exports import Exported, ExportError, ExportOptions, export_run
from zellige.data.ledger import Run
from zellige.data.schema import ANSWERS, Question

Answered = Callable[..., Run]
ASKED = (Question("colour", "Which colour?"), Question("a/b.c", "Which shape?"))


def export(run: Run, to: str, dest: Path, **options: Any) -> Exported:
    return export_run(run, to, dest, ExportOptions(**options))


def samples(folder: Path) -> list[dict[str, Any]]:
    urls = sorted(str(p) for p in folder.glob("*.tar"))
    return list(webdataset.WebDataset(urls, shardshuffle=False, empty_check=False))


def load(folder: Path, cache: Path) -> datasets.Dataset:
    return datasets.load_dataset(str(folder), split="train", cache_dir=str(cache))


def test_webdataset_reads_the_original_bytes_answers_and_rows(images: Path, answered: Answered, tmp_path: Path) -> None:
    done = export(answered(images, questions=ASKED), "webdataset", out := tmp_path / "wds")
    found = samples(out)
    assert done.rows == len(found) == len({s["__key__"] for s in found}) == 10
    assert done.left_out == {"failed": 2}
    for sample in found:
        row = json.loads(sample["json"])
        suffix = row["name"].rpartition(".")[2]
        assert sample[suffix] == (images / row["name"]).read_bytes()
        assert sample["txt"].decode() == row["answer"]
        assert row["metadata"] == {"licence": "CC0"}
    decoded = webdataset.WebDataset([str(p) for p in out.glob("*.tar")], shardshuffle=False).decode("rgb8")
    assert all(next(s[k] for k in ("jpg", "png", "webp") if k in s).shape == (6, 8, 3) for s in decoded)


def test_webdataset_shards_are_whole_samples_of_about_the_size_asked_for(
    images: Path, answered: Answered, tmp_path: Path
) -> None:
    done = export(answered(images), "webdataset", out := tmp_path / "wds", shard_bytes=10_000)
    sizes = [p.stat().st_size for p in sorted(out.glob("shard-??????.tar"))]
    assert done.files == len(sizes) > 1
    for path in out.glob("*.tar"):
        with tarfile.open(path) as tar:
            assert len(tar.getnames()) % 3 == 0
    assert len(samples(out)) == 5


def test_a_file_that_changed_or_went_since_is_left_out_and_named(
    images: Path, answered: Answered, tmp_path: Path
) -> None:
    run = answered(images)
    (images / "a.png").write_bytes((images / "b.webp").read_bytes())
    (images / "x" / "a.jpg").unlink()
    done = export(run, "webdataset", tmp_path / "wds")
    assert done.rows == 3
    assert done.left_out == {
        "failed": 1,
        "the image has changed since": 1,
        "the image cannot be read any more": 1,
    }
    assert any("a.png" in problem for problem in done.problems)


def test_hf_folder_is_loaded_with_images_and_typed_columns(images: Path, answered: Answered, tmp_path: Path) -> None:
    done = export(answered(images, questions=ASKED), "hf", out := tmp_path / "hf")
    loaded = load(out, tmp_path / "cache")
    assert done.rows == len(loaded) == 10
    assert set(loaded.column_names) == {"image", *ANSWERS.names, "review", "model_answer"}
    assert isinstance(loaded.features["image"], datasets.Image)
    assert loaded.features["created_at"].dtype == "timestamp[us, tz=UTC]"
    assert loaded.features["mean_logprob"].dtype == "float64"
    raw = loaded.cast_column("image", datasets.Image(decode=False))
    for shown, stored in zip(loaded, raw, strict=True):
        assert shown["image"].size == (8, 6)
        assert stored["image"]["bytes"] == (images / stored["image"]["path"]).read_bytes()
        assert json.loads(shown["metadata"]) == {"licence": "CC0"}
        assert shown["tiles"] == []
    card = (out / "README.md").read_text()
    assert "demo" in card
    assert "left out: 2, failed" in card


def test_the_card_lists_the_features_that_the_files_have(images: Path, answered: Answered, tmp_path: Path) -> None:
    export(answered(images), "hf", out := tmp_path / "hf")
    from huggingface_hub import DatasetCard

    info = DatasetCard.load(out / "README.md").data["dataset_info"]
    listed = datasets.Features._from_yaml_list(info["features"])
    (path,) = (out / "data").glob("*.parquet")
    assert listed == datasets.Features.from_arrow_schema(pq.read_schema(path))


def test_hf_of_a_run_without_answers_keeps_its_columns(images: Path, answered: Answered, tmp_path: Path) -> None:
    export(answered(images / "broken.jpg"), "hf", out := tmp_path / "hf")
    (path,) = (out / "data").iterdir()  # load_dataset itself refuses a split without rows
    table = pq.read_table(path)
    assert table.num_rows == 0
    assert set(table.column_names) == {"image", *ANSWERS.names, "review", "model_answer"}


def test_hf_files_are_of_about_the_size_asked_for(
    images: Path, answered: Answered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zellige.data.exports.hf._GROUP_ROWS", 2)
    done = export(answered(images), "hf", out := tmp_path / "hf", shard_bytes=1)
    names = sorted(p.name for p in (out / "data").iterdir())
    assert names == [f"train-{n:05d}-of-00003.parquet" for n in range(3)]
    assert done.files == 3
    assert len(load(out, tmp_path / "cache")) == 5


def test_a_page_is_exported_as_it_was_drawn(answered: Answered, tmp_path: Path, images: Path) -> None:
    from zellige.data.schema import Item
    from zellige.data.uri import to_uri

    pages = [Image.fromarray(np.full((6, 8, 3), shade, np.uint8)) for shade in (10, 200)]
    pages[0].save(document := images / "doc.tif", save_all=True, append_images=pages[1:])
    items = [Item(to_uri(document), page=page) for page in (1, 2)]
    export(answered(document, items=items), "webdataset", out := tmp_path / "wds")
    shades = [np.asarray(Image.open(io.BytesIO(s["png"])))[0, 0, 0] for s in samples(out)]
    assert shades == [10, 200]
    assert [json.loads(s["json"])["name"] for s in samples(out)] == ["doc.page-0001.tif", "doc.page-0002.tif"]


def test_the_folder_one_stands_in_may_be_filled(
    images: Path, answered: Answered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = answered(images)
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    export(run, "webdataset", Path())
    assert sorted(p.name for p in here.iterdir()) == [".zellige-export.json", "shard-000000.tar"]


def test_an_image_that_raises_what_no_source_should_costs_itself_alone(
    images: Path, answered: Answered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zellige.data.sources.inputs import InputSource

    read = InputSource.read

    def faulty(self: InputSource, item: Any) -> bytes:
        if item.uri.endswith("b.webp"):
            raise ZeroDivisionError("a fault")
        return read(self, item)

    run = answered(images)
    monkeypatch.setattr(InputSource, "read", faulty)
    done = export(run, "hf", tmp_path / "hf")
    assert (done.rows, done.left_out["the image cannot be read any more"]) == (4, 1)
    assert "ZeroDivisionError" in done.problems[0]


@pytest.mark.parametrize("to", ["webdataset", "hf"])
def test_a_folder_is_replaced_when_told_but_never_one_with_other_files(
    to: str, images: Path, answered: Answered, tmp_path: Path
) -> None:
    run, out = answered(images), tmp_path / "out"
    export(run, to, out)
    with pytest.raises(ExportError, match="not empty"):
        export(run, to, out)
    export(run, to, out, overwrite=True)
    (out / "mine.txt").write_text("mine")
    with pytest.raises(ExportError, match=r"mine\.txt"):
        export(run, to, out, overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["images", "out", "store"]
