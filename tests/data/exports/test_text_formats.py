"""JSON lines, text files beside images, COCO and batch lines: what is written reads back, what is left out is said."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion
from pycocotools.coco import COCO

from zellige.data.exports import Exported, ExportError, ExportOptions, export_run
from zellige.data.ledger import Run
from zellige.data.schema import ANSWERS, Item, Question

Answered = Callable[..., Run]
ASKED = (Question("colour", "Which colour?"), Question("a/b.c", "Which shape?"))
HARD = 'a\u2028b\u0085c\u2029d\x0be "quoted" \\u2028 \\ é 😀\n'


def export(run: Run, to: str, dest: Path | None, **options: Any) -> Exported:
    return export_run(run, to, dest, ExportOptions(**options))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def texts(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text() for p in sorted(folder.rglob("*.txt"))}


def test_jsonl_holds_every_row_and_column_whatever_a_reader_takes_for_a_line_end(
    images: Path, answered: Answered, tmp_path: Path
) -> None:
    run = answered(images, questions=ASKED, text=lambda item, q: HARD + q.question_id)
    done = export(run, "jsonl", out := tmp_path / "rows.jsonl")
    rows = lines(out)
    assert done.rows == len(rows) == 12
    assert out.read_text(encoding="utf-8").splitlines() == out.read_text(encoding="utf-8").split("\n")[:-1]
    assert {frozenset(r) for r in rows} == {frozenset((*ANSWERS.names, "review", "model_answer"))}
    assert [r["answer"] for r in rows if r["status"] == "ok"] == [HARD + q.question_id for q in ASKED] * 5
    failed = [r for r in rows if r["status"] == "failed"]
    assert [(r["error_kind"], r["error"]) for r in failed] == [("truncated", "cut")] * 2
    assert all(r["metadata"] == {"licence": "CC0"} for r in rows)


def test_an_earlier_export_is_replaced_when_told_and_no_other_file(
    images: Path, answered: Answered, tmp_path: Path
) -> None:
    run, out = answered(images), tmp_path / "rows.jsonl"
    out.write_text("mine")
    with pytest.raises(ExportError, match="--overwrite"):
        export(run, "jsonl", out)
    assert out.read_text() == "mine"
    with pytest.raises(ExportError, match="no export wrote"):
        export(run, "jsonl", out, overwrite=True)
    assert out.read_text() == "mine"
    out.unlink()
    export(run, "jsonl", out)
    export(run, "jsonl", out, overwrite=True)
    assert len(lines(out)) == 6
    with pytest.raises(ExportError, match="is a folder"):
        export(run, "jsonl", tmp_path, overwrite=True)


def test_nothing_is_left_of_an_export_that_could_not_end(images: Path, answered: Answered, tmp_path: Path) -> None:
    run, out = answered(images), tmp_path / "out" / "rows.jsonl"
    part = run.part_path(1)
    part.write_bytes(part.read_bytes()[:4] + b"\xff" * 200 + part.read_bytes()[204:])
    with pytest.raises(ExportError, match="resume"):
        export(run, "jsonl", out)
    assert list(out.parent.iterdir()) == []


def test_rows_of_a_run_that_is_not_finished_are_exported_and_the_rest_is_said(
    images: Path, answered: Answered, tmp_path: Path
) -> None:
    done = export(answered(images, leave=1), "jsonl", tmp_path / "rows.jsonl")
    assert (done.rows, done.items_without_rows) == (4, 2)


def test_text_files_mirror_the_inputs_and_keep_suffixes_where_stems_are_shared(
    images: Path, answered: Answered, tmp_path: Path
) -> None:
    done = export(answered(images), "txt", out := tmp_path / "txt", prefix="<", suffix=">")
    assert texts(out) == {
        "a.jpg.txt": "<caption of a.jpg>",
        "a.png.txt": "<caption of a.png>",
        "b.txt": "<caption of b.webp>",
        "x/a.txt": "<caption of a.jpg>",
        "x/c d.txt": "<caption of c%20d.png>",
    }
    assert (done.rows, done.left_out) == (5, {"failed": 1})


def test_text_files_lie_beside_the_images_and_several_questions_have_a_file_each(
    images: Path, answered: Answered
) -> None:
    export(answered(images, questions=ASKED), "txt", None)
    names = set(texts(images))
    assert {"b.colour.txt", "b.a%2Fb%2Ec.txt", "x/a.colour.txt", "a.png.colour.txt"} <= names
    assert len(names) == 10


@pytest.mark.parametrize(
    ("mode", "expected"), [("skip", "old"), ("overwrite", "new"), ("append", "old\nnew"), ("prepend", "new\nold")]
)
def test_a_text_file_that_exists_is_treated_as_told(
    mode: Any, expected: str, images: Path, answered: Answered, tmp_path: Path
) -> None:
    (out := tmp_path / "txt").mkdir()
    (out / "b.txt").write_text("old")
    done = export(answered(images, text=lambda item, q: "new"), "txt", out, if_exists=mode)
    assert (out / "b.txt").read_text() == expected
    assert done.left_out["its text file exists"] == (mode == "skip")
    assert done.rows + sum(done.left_out.values()) == 6


def test_an_image_is_never_overwritten_by_a_text(tmp_path: Path, answered: Answered, images: Path) -> None:
    (images / "c.txt").write_bytes(before := (images / "a.jpg").read_bytes())
    done = export(answered(images), "txt", None, if_exists="overwrite")
    assert (images / "c.txt").read_bytes() == before
    assert done.rows == 6
    assert (images / "c.txt.txt").read_text() == "caption of c.txt"


MEMBERS = [
    *(Item("file:///data/p.zip", name, n) for n, name in enumerate(("x/a.jpg", "../../evil.jpg", "/etc/abs.jpg"))),
    *(Item("file:///data/p.zip", name, n) for n, name in enumerate(("same.jpg", "same.jpg", "A.jpg", "a.JPG"), 3)),
    Item("file:///data/p.zip", "é.jpg", 7),
    Item("file:///data/p.zip", "e\u0301.jpg", 8),
    Item("file:///data/t.parquet", None, 12),
    Item("file:///data/doc.pdf", page=3),
    Item("file:///data/caf%E9.jpg"),
    Item("file:///data/" + "n" * 251 + ".jpg"),
    Item("file:///data/p.zip", "m" * 5000 + ".jpg", 9),
]


def test_every_member_page_and_cell_has_a_file_of_its_own_inside_the_folder(tmp_path: Path, answered: Answered) -> None:
    run = answered(Path("/data"), items=MEMBERS, text=lambda item, q: item.item_id)
    done = export(run, "txt", out := tmp_path / "deep" / "txt")
    found = texts(out)
    assert done.rows == len(found) == len(MEMBERS)
    assert sorted(found.values()) == sorted(item.item_id for item in MEMBERS)
    assert {"p.zip/x/a.txt", "p.zip/%2E%2E/%2E%2E/evil.txt", "p.zip/etc/abs.txt"} <= set(found)
    assert {"t.parquet/0000012.txt", "doc.page-0003.txt", os.fsdecode(b"caf\xe9.txt")} <= set(found)
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["txt"]


def test_members_of_archives_have_no_place_beside_images(answered: Answered) -> None:
    done = export(answered(Path("/data"), items=MEMBERS[:2]), "txt", None)
    assert done.rows == 0
    assert sum(done.left_out.values()) == 2
    assert "DEST" in done.problems[0]


def test_a_link_that_leads_out_of_the_folder_is_not_followed(tmp_path: Path, images: Path, answered: Answered) -> None:
    (out := tmp_path / "txt").mkdir()
    (outside := tmp_path / "outside").mkdir()
    (out / "x").symlink_to(outside)
    done = export(answered(images), "txt", out)
    assert list(outside.iterdir()) == []
    assert done.left_out["its text file cannot be written"] == 2


def test_coco_captions_are_read_by_pycocotools(images: Path, answered: Answered, tmp_path: Path) -> None:
    done = export(answered(images), "coco", out := tmp_path / "captions.json")
    coco = COCO(str(out))
    assert done.rows == len(coco.getImgIds()) == len(coco.getAnnIds()) == 5
    found = {}
    for image in coco.loadImgs(coco.getImgIds()):
        assert (image["width"], image["height"], image["metadata"]) == (8, 6, {"licence": "CC0"})
        found[image["file_name"]] = [a["caption"] for a in coco.loadAnns(coco.getAnnIds(image["id"]))]
    assert found["x/c d.png"] == ["caption of c%20d.png"]
    assert set(found) == {"a.jpg", "a.png", "b.webp", "x/a.jpg", "x/c d.png"}


def test_coco_refuses_answers_to_questions(images: Path, answered: Answered, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="jsonl"):
        export(answered(images, questions=ASKED), "coco", tmp_path / "captions.json")


def test_coco_of_a_run_without_captions_is_whole(images: Path, answered: Answered, tmp_path: Path) -> None:
    export(answered(images / "broken.jpg"), "coco", out := tmp_path / "captions.json")
    assert COCO(str(out)).getImgIds() == []


def test_batch_lines_are_those_of_the_api(images: Path, answered: Answered, tmp_path: Path) -> None:
    run = answered(images, questions=ASKED, text=lambda item, q: HARD)
    done = export(run, "openai-batch", out := tmp_path / "batch.jsonl")
    found = lines(out)
    assert done.rows == len(found) == len({line["custom_id"] for line in found}) == 12
    failed = [line for line in found if line["response"] is None]
    assert [line["error"]["code"] for line in failed] == ["truncated"] * 2
    for line in found:
        if line in failed:
            continue
        assert (line["error"], line["response"]["status_code"]) == (None, 200)
        completion = ChatCompletion.model_validate(line["response"]["body"], strict=True)
        assert completion.choices[0].message.content == HARD
        assert completion.usage is not None
        assert completion.usage.total_tokens == 12
        assert line["response"]["body"]["metadata"] == {"licence": "CC0"}


def test_unknown_format_and_missing_place_are_wrong_use(images: Path, answered: Answered, tmp_path: Path) -> None:
    run = answered(images)
    with pytest.raises(ExportError, match="webdataset"):
        export(run, "csv", tmp_path / "x")
    with pytest.raises(ExportError, match="DEST"):
        export(run, "jsonl", None)
    with pytest.raises(ExportError, match="local path"):
        export(run, "jsonl", Path("s3://bucket/rows.jsonl"))
