"""``--retry`` opens again what failed while planning: what is found in it now joins the run, and nothing else moves."""

from __future__ import annotations

import io
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from zellige.data.ledger import Store
from zellige.data.schema import AnswerRow, ErrorKind, Item, Question, Recipe
from zellige.data.sources import open_source
from zellige.flows.pipeline import run_job
from zellige.tasks.job import Job

Draw = Callable[..., Path]
Rows = Callable[[Path, str], list[dict[str, Any]]]


def picture(colour: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (40, 40), (colour, 0, 0)).save(file, "PNG")
    return file.getvalue()


def zip_of(path: Path, count: int) -> bytes:
    with zipfile.ZipFile(path, "w") as archive:
        for n in range(count):
            archive.writestr(f"{n}.png", picture(n))
    return path.read_bytes()


def tar_of(path: Path, count: int) -> bytes:
    with tarfile.open(path, "w") as archive:
        for n in range(count):
            info = tarfile.TarInfo(f"{n}.png")
            info.size = len(data := picture(100 + n))
            archive.addfile(info, io.BytesIO(data))
    return path.read_bytes()


def pdf_of(path: Path, pages: int) -> bytes:
    first, *rest = (Image.new("RGB", (40, 40), (200 + n, 0, 0)) for n in range(pages))
    first.save(path, save_all=True, append_images=rest)
    return path.read_bytes()


def names(found: list[dict[str, Any]]) -> list[tuple[str, str | None, int | None, str]]:
    return sorted((r["uri"].rpartition("/")[2], r["member"], r["page"], r["status"]) for r in found)  # type: ignore[type-var]


@pytest.fixture
def folder(draw: Draw) -> Path:
    draw("b/a.png")
    return draw("b/z.png").parent.parent


def retry(store: Path, run_id: str, kind: str = "failed", **more: Any) -> dict[str, Any]:
    return run_job(Job("caption", str(store), resume=run_id, retry=(kind,), **more))


def test_repaired_containers_and_documents_are_planned_again_and_other_rows_stay(
    fake: Any, folder: Path, tmp_path: Path, rows: Rows
) -> None:
    """Also where --include has a folder in it, which says nothing about a file that is opened alone."""
    whole = {
        "b/x.zip": zip_of(folder / "b/x.zip", 5),
        "b/y.tar": tar_of(folder / "b/y.tar", 4),
        "b/p.pdf": pdf_of(folder / "b/p.pdf", 3),
    }
    (folder / "b/x.zip").write_bytes(whole["b/x.zip"][:-30])
    (folder / "b/y.tar").write_bytes(whole["b/y.tar"][: 2 * 1024 + 600])
    (folder / "b/p.pdf").write_bytes(b"%PDF-1.4\nnot much of one")
    store = tmp_path / "store"
    job = Job("caption", str(store), (str(folder),), include=("b/*.p*", "*.png"), shard_items=3)
    first = run_job(job)
    before = {r["row_id"]: r for r in rows(store, first["run_id"])}
    assert (first["ok"], first["failed"]) == (4, 4)
    for name, data in whole.items():
        (folder / name).write_bytes(data)
    done = retry(store, first["run_id"])
    found = rows(store, first["run_id"])
    assert (done["state"], done["items"], done["ok"], done["failed"]) == ("finished", 2 + 5 + 4 + 3, 14, 0)
    assert names(found) == names(
        rows(store, run_job(Job("caption", str(store), (str(folder),), include=job.include))["run_id"])
    )
    assert len({r["row_id"] for r in found}) == 14
    after = {r["row_id"]: r for r in found}
    assert all(after[row] == r for row, r in before.items() if r["status"] == "ok")
    assert done["errors"] == {}


def test_what_is_still_no_good_says_what_is_wrong_now(fake: Any, folder: Path, tmp_path: Path, rows: Rows) -> None:
    store, odd = tmp_path / "store", folder / "p.pdf"
    odd.write_bytes(b"%PDF-1.4\nnot much of one")
    first = run_job(Job("caption", str(store), (str(folder),)))
    odd.unlink()
    done = retry(store, first["run_id"])
    assert (done["items"], done["failed"], done["errors"]) == (3, 1, {"not_found": 1})
    pdf_of(odd, 2)
    done = retry(store, first["run_id"], "not_found")
    assert (done["items"], done["ok"], done["failed"]) == (4, 4, 0)
    again = retry(store, first["run_id"])
    assert (again["items"], again["ok"]) == (4, 4)


def test_archive_that_only_lacked_its_end_is_no_failure_any_more(fake: Any, tmp_path: Path, rows: Rows) -> None:
    store, path = tmp_path / "store", tmp_path / "t.tar"
    whole = tar_of(path, 2)
    path.write_bytes(whole[: 2 * 1024])
    first = run_job(Job("caption", str(store), (str(path),)))
    assert (first["ok"], first["failed"]) == (2, 1)
    path.write_bytes(whole)
    done = retry(store, first["run_id"])
    assert (done["ok"], done["failed"], done["skipped"]) == (2, 0, 1)
    assert [r["error"] for r in rows(store, first["run_id"]) if r["status"] == "skipped"] == [
        "opened again, and what it holds is in the run already"
    ]


def test_other_kinds_and_other_files_are_not_looked_at(fake: Any, folder: Path, tmp_path: Path) -> None:
    store, odd = tmp_path / "store", folder / "x.zip"
    odd.write_bytes(b"PK\3\4" + bytes(50))
    first = run_job(Job("caption", str(store), (str(folder),)))
    kind = next(iter(first["errors"]))
    zip_of(odd, 3)
    (folder / "new.png").write_bytes(picture(1))
    assert retry(store, first["run_id"], "timeout")["items"] == 3
    assert retry(store, first["run_id"], kind)["items"] == 5


def test_missing_names_of_a_list_keep_what_the_list_says(fake: Any, draw: Draw, tmp_path: Path, rows: Rows) -> None:
    (folder := draw("a.png").parent).joinpath("l.csv").write_text("path,id\na.png,1\ngone.png,2\nlate.zip,3\n")
    store = tmp_path / "store"
    first = run_job(Job("caption", str(store), (str(folder / "l.csv"),), keep=("id",)))
    assert (first["ok"], first["failed"]) == (1, 2)
    draw("gone.png", (1, 1, 1))
    zip_of(folder / "late.zip", 2)
    done = retry(store, first["run_id"])
    assert (done["ok"], done["failed"]) == (4, 0)
    found = {(r["uri"].rpartition("/")[2], r["member"]): dict(r["metadata"]) for r in rows(store, first["run_id"])}
    assert found["gone.png", None] == {"id": "2"}
    assert found["late.zip", "0.png"] == found["late.zip", "1.png"] == {"id": "3"}


def test_folder_that_could_not_be_listed_is_walked_with_the_filters_of_the_run(folder: Path) -> None:
    source = open_source([folder])
    assert [i.uri for i in source.again((folder / "b").as_uri())] == [
        (folder / "b" / name).as_uri() for name in ("a.png", "z.png")
    ]


def test_limit_holds_for_what_is_planned_again_too(fake: Any, folder: Path, tmp_path: Path) -> None:
    (folder / "x.zip").write_bytes(b"PK\3\4" + bytes(50))
    store = tmp_path / "store"
    first = run_job(Job("caption", str(store), (str(folder),), limit=4))
    zip_of(folder / "x.zip", 9)
    done = retry(store, first["run_id"])
    assert (first["items"], done["items"], done["ok"]) == (3, 4, 4)


def test_retry_killed_while_it_plans_changes_nothing_and_can_be_asked_again(
    fake: Any, folder: Path, tmp_path: Path
) -> None:
    """Items that came on top count from the moment on that the retry itself is written."""
    (folder / "x.zip").write_bytes(b"PK\3\4" + bytes(50))
    store = tmp_path / "store"
    first = run_job(Job("caption", str(store), (str(folder),), shard_items=2))
    zip_of(folder / "x.zip", 9)
    run = Store(store).open_run(first["run_id"])
    leftover = run.path / "retries" / "0001.items.parquet"
    leftover.parent.mkdir()
    shutil.copy(run.path / "items.parquet", leftover)
    assert (run.state(), run.progress().items) == ("finished", 3)
    assert retry(store, first["run_id"])["ok"] == 11


def test_worker_with_the_old_plan_in_hand_commits_and_the_new_item_is_answered_all_the_same(
    folder: Path, tmp_path: Path
) -> None:
    recipe = Recipe("caption", (Question("caption"),), "", "off", {}, {}, "m", "f", "d")
    gone = Item("file:///x.zip", error_kind=ErrorKind.TRUNCATED, error="cut")
    store = Store(tmp_path / "store")
    run = store.create_run(recipe, [Item("file:///a.png"), gone], shard_items=4, inputs=["file:///"])
    lease = run.lease()
    assert lease is not None
    members = [Item("file:///x.zip", f"{n}.png", n) for n in range(3)]
    other = store.open_run(run.run_id)
    assert other.retry({"truncated"}, lambda uri: iter(members)) == 3
    row, lost = (AnswerRow.of(run.run_id, recipe, i, recipe.questions[0], "ok", answer="1") for i in lease.shard.items)
    assert lease.commit([row, lost])
    while (lease := run.lease()) is not None:
        items = lease.shard.items
        assert lease.commit([AnswerRow.of(run.run_id, recipe, i, recipe.questions[0], "ok", answer="2") for i in items])
    assert [i.member for i in run.items()] == [None, "0.png", "1.png", "2.png"]
    assert (run.state(), run.progress().ok, run.progress().rows) == ("finished", 4, 4)
