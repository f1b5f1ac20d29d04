"""What is at the place of an export already: only an earlier export is ever replaced, and leftovers of a kill go."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zellige.data.exports import Exported, ExportError, ExportOptions, WrongPlace, export_run
from zellige.data.exports.temporary import new_name
from zellige.data.ledger import Run
from zellige.data.schema import Item, Question

Answered = Callable[..., Run]
ASKED = (Question("colour", "Which colour?"), Question("q" * 250, "Which shape?"))
FILES, FOLDERS = ("jsonl", "coco", "openai-batch"), ("webdataset", "hf")
OPENAI_LINE = {"id": f"batch_req_{'0' * 32}", "custom_id": "a", "response": None, "error": None}


def export(run: Run, to: str, dest: Path | None, **options: Any) -> Exported:
    return export_run(run, to, dest, ExportOptions(**options))


def tree(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("to", [*FILES, *FOLDERS, "txt"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_pipe_is_refused_and_stays(
    to: str, overwrite: bool, images: Path, answered: Answered, tmp_path: Path
) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(WrongPlace, match="pipe"):
        export(answered(images), to, pipe, overwrite=overwrite)
    assert stat.S_ISFIFO(pipe.lstat().st_mode)


@pytest.mark.parametrize("to", [*FILES, *FOLDERS])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("target", ["gone", "pipe", "export"])
def test_a_link_is_refused_and_neither_it_nor_its_target_is_touched(
    to: str, overwrite: bool, target: str, images: Path, answered: Answered, tmp_path: Path
) -> None:
    run, link, end = answered(images), tmp_path / "link", tmp_path / target
    link.symlink_to(end)
    if target == "pipe":
        os.mkfifo(end)
    elif target == "export":
        export(run, to, end)
    before = end.lstat() if target != "gone" else None
    with pytest.raises(WrongPlace, match="link to"):
        export(run, to, link, overwrite=overwrite)
    assert link.is_symlink()
    assert (end.lstat() if end.exists() else None) == before


@pytest.mark.parametrize("mode", ["overwrite", "append", "prepend"])
def test_texts_replace_no_link_pipe_or_input(mode: Any, images: Path, answered: Answered, tmp_path: Path) -> None:
    (other := tmp_path / "other").write_text("mine")
    (images / "b.txt").symlink_to(other)
    os.mkfifo(images / "x" / "a.txt")
    (listed := images / "x" / "c d.txt").write_text("".join(f"{p}\n" for p in sorted(images.rglob("*.*g"))))
    before = listed.read_text()
    done = export(answered(images / "b.webp", images / "x" / "a.jpg", listed), "txt", None, if_exists=mode)
    assert (images / "b.txt").is_symlink()
    assert other.read_text() == "mine"
    assert stat.S_ISFIFO((images / "x" / "a.txt").lstat().st_mode)
    assert listed.read_text() == before
    assert done.left_out["its text file cannot be written"] == 3


@pytest.mark.parametrize("to", FILES)
@pytest.mark.parametrize("other", FILES)
def test_any_earlier_export_of_one_file_is_replaced(
    to: str, other: str, images: Path, answered: Answered, tmp_path: Path
) -> None:
    run, out = answered(images), tmp_path / "out"
    export(run, other, out)
    export(run, to, tmp_path / "fresh")
    export(run, to, out, overwrite=True)
    assert out.read_bytes() == (tmp_path / "fresh").read_bytes()


@pytest.mark.parametrize(
    "text",
    [
        '{"image": "a.jpg", "label": "cat"}\n',
        '{"run_id": "r", "row_id": "x", "label": "cat"}\n',
        '{"info": {"description": "zellige run mine"}, "licenses": [], "images": [{"id": 1}]}\n',
        '{"info": {"description": "mine"}, "licenses": [], "images": [\n{}], "annotations": [\n{}]}\n',
        json.dumps(OPENAI_LINE | {"response": {"request_id": "0" * 32, "body": {"id": "chatcmpl-1"}}}) + "\n",
        json.dumps(OPENAI_LINE | {"error": {"code": "batch_expired", "message": ""}}) + "\n",
        "{" * 5000,
    ],
)
def test_a_users_own_json_is_never_replaced(text: str, images: Path, answered: Answered, tmp_path: Path) -> None:
    (out := tmp_path / "labels.jsonl").write_text(text)
    with pytest.raises(ExportError, match="no export wrote"):
        export(answered(images), "jsonl", out, overwrite=True)
    assert out.read_text() == text


@pytest.mark.parametrize("to", ["jsonl", "openai-batch"])
def test_an_export_that_a_user_added_a_line_to_is_not_replaced(
    to: str, images: Path, answered: Answered, tmp_path: Path
) -> None:
    run, out = answered(images), tmp_path / "out"
    export(run, to, out)
    out.write_bytes(out.read_bytes() + b'{"mine": 1}\n')
    with pytest.raises(ExportError, match="no export wrote"):
        export(run, to, out, overwrite=True)
    assert out.read_bytes().endswith(b'{"mine": 1}\n')


@pytest.mark.parametrize("to", FOLDERS)
def test_a_users_own_shards_and_readme_are_never_replaced(
    to: str, images: Path, answered: Answered, tmp_path: Path
) -> None:
    (out := tmp_path / "out").mkdir()
    (out / "README.md").write_text("my data")
    with tarfile.open(out / "shard-000000.tar", "w") as tar:
        tar.add(images / "a.jpg", "a.jpg")
    before = tree(out)
    with pytest.raises(ExportError, match=r"\.zellige-export\.json"):
        export(answered(images), to, out, overwrite=True)
    assert tree(out) == before


@pytest.mark.parametrize("to", FOLDERS)
def test_a_folder_whose_files_a_user_changed_is_not_replaced(
    to: str, images: Path, answered: Answered, tmp_path: Path
) -> None:
    run, out = answered(images), tmp_path / "out"
    export(run, to, out)
    changed = next(p for p in sorted(out.rglob("*")) if p.is_file() and p.suffix in (".tar", ".md"))
    changed.write_bytes(changed.read_bytes() + b"mine")
    with pytest.raises(ExportError, match="was changed"):
        export(run, to, out, overwrite=True)
    changed.unlink()
    export(run, to, out, overwrite=True)


@pytest.mark.parametrize("to", FOLDERS)
def test_an_export_that_a_run_was_made_of_is_not_replaced_by_that_run(
    to: str, images: Path, answered: Answered, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    export(answered(images), to, out)
    shutil.rmtree(tmp_path / "store")
    before = tree(out)
    with pytest.raises(WrongPlace, match="was made of"):
        export(answered(next(out.rglob("*.tar"), next(out.rglob("*.parquet"), None))), to, out, overwrite=True)
    assert tree(out) == before


def test_a_file_that_a_run_was_made_of_is_not_replaced_by_that_run(
    images: Path, answered: Answered, tmp_path: Path
) -> None:
    run, out = answered(images), tmp_path / "out.jsonl"
    export(run, "jsonl", out)
    run.inputs = (*run.inputs, f"list:{out.as_uri()}")
    with pytest.raises(WrongPlace, match="was made of"):
        export(run, "jsonl", out, overwrite=True)


def test_names_too_long_for_a_file_are_cut_and_none_is_lost(tmp_path: Path, answered: Answered) -> None:
    items = [
        *(Item(f"file:///data/{'n' * 244}{n}.jpg") for n in range(2)),
        *(Item(f"file:///data/{'é' * 124}.pdf", page=page) for page in (1, 2)),
        Item("file:///data/short.jpg"),
    ]
    run = answered(Path("/data"), items=items, questions=ASKED, text=lambda item, q: item.item_id + q.question_id)
    found = []
    for out in (tmp_path / "one", tmp_path / "two"):
        done = export(run, "txt", out)
        assert (done.rows, done.left_out) == (10, {})
        found.append(tree(out))
    assert len(found[0]) == len(set(found[0].values())) == 10
    assert found[0] == found[1]
    assert all(name.endswith(".txt") and len(os.fsencode(name)) <= 255 for name in found[0])
    assert "short.colour.txt" in found[0]


@pytest.mark.parametrize("to", [*FILES, *FOLDERS, "txt"])
def test_what_a_kill_left_is_removed_by_the_next_export_there_and_what_another_fills_is_not(
    to: str, images: Path, answered: Answered, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    folder, name = (out, "*.txt") if to == "txt" else (tmp_path, "out")
    folder.mkdir(exist_ok=True)
    (dead := new_name(folder, name)).write_text("half")
    (dead_folder := new_name(folder, name)).mkdir()
    (dead_folder / "shard").write_text("half")
    (alive := new_name(folder, name)).write_text("half")
    (elsewhere := new_name(folder, "another")).write_text("half")
    with alive.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        export(answered(images), to, out)
    assert (dead.exists(), dead_folder.exists()) == (False, False)
    assert (alive.read_text(), elsewhere.read_text()) == ("half", "half")
    assert {p for p in folder.rglob(".export*") if not p.samefile(alive)} == {elsewhere}


def test_a_file_that_appears_while_an_export_is_written_is_kept(
    images: Path, answered: Answered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zellige.data.exports import jsonl

    run, out, plain = answered(images), tmp_path / "out", jsonl.rows

    def rows(of: Run) -> Any:
        yield from plain(of)
        out.write_text("mine")

    monkeypatch.setattr(jsonl, "rows", rows)
    with pytest.raises(ExportError, match="meanwhile"):
        export(run, "jsonl", out)
    assert out.read_text() == "mine"
