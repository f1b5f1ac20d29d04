"""Inputs that name nothing, or are read as what they are not: told with what to do, and no run is left."""

from __future__ import annotations

import json
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from typer.testing import CliRunner

from zellige.data.sources import SourceError, open_source, storage
from zellige.flows.cli import app
from zellige.flows.pipeline import run_job
from zellige.tasks.job import Job, WrongUseError

Draw = Callable[..., Path]


def told(*arguments: str | Path, code: int) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*map(str, arguments), "--json", "--quiet"])
    assert done.exit_code == code, done.output
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def places(draw: Draw, tmp_path: Path) -> dict[str, str]:
    folder = draw("a.png").parent
    (folder / "empty.txt").write_text("")
    (folder / "blank.jsonl").write_text("\n\n")
    (folder / "names.csv").write_text("name,colour\na.png,red\n")
    (folder / "gone.txt").write_text("\n".join(f"gone{n}.png" for n in range(9)))
    return {"FOLDER": str(folder), "STORE": str(tmp_path / "store")}


def rows_of(done: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ds.dataset(Path(done["parts"]).parent, format="parquet").to_table().to_pylist()
    return rows


def filled(text: str, places: dict[str, str]) -> str:
    for name, path in places.items():
        text = text.replace(name, path)
    return text


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (["FOLDER/*.jpg"], "no file matches"),
        (["FOLDER/*.jpg", "FOLDER/x.png"], "did you mean 'a.png'"),
        (["FOLDER/empty.txt"], "names no file; put one name on a line"),
        (["FOLDER/blank.jsonl"], "names no file"),
        (["FOLDER/gone.txt"], "and 4 more; names in a list are relative to the list's own folder"),
        (["memory://nowhere/a.png"], "there is nothing at this address"),
        (["list:FOLDER/a.png"], "is image/png, and no list of names"),
        (["wds:FOLDER/a.png"], "name it without wds:"),
        (["batch:FOLDER/a.png"], "is image/png, and no file of batch requests"),
        (["list:FOLDER"], "is a folder; name a file after list:"),
        (["FOLDER/names.csv"], "no column of names, but name, colour; name one with --column"),
        (["FOLDER/names.csv", "--column", "nome"], "no column 'nome', but name, colour"),
    ],
)
@pytest.mark.parametrize("dry", [False, True])
def test_inputs_that_name_nothing_are_wrong_use_and_leave_no_run(
    fake: Any, places: dict[str, str], inputs: list[str], says: str, dry: bool
) -> None:
    how = ["--dry-run"] if dry else ["--store", places["STORE"], "--no-prefect"]
    found = told("caption", *(filled(i, places) for i in inputs), *how, code=2)
    assert says in found["error"]
    assert not Path(places["STORE"]).exists()
    assert fake.opened == []


def test_column_of_a_list_is_the_one_that_is_named(fake: Any, places: dict[str, str]) -> None:
    inputs = (f"{places['FOLDER']}/names.csv", "--column", "name", "--keep", "colour")
    done = told("caption", *inputs, "--store", places["STORE"], "--no-prefect", code=0)
    (row,) = rows_of(done)
    assert (done["ok"], dict(row["metadata"])) == (1, {"colour": "red"})
    again = told("caption", *inputs, "--resume", done["run_id"], "--store", places["STORE"], "--no-prefect", code=0)
    assert again["run_id"] == done["run_id"]
    assert "--questions" in told("ask", *inputs, "--store", places["STORE"], "--no-prefect", code=2)["error"]


@pytest.mark.parametrize("store", ["memory://x", ""])
def test_store_that_keeps_nothing_is_wrong_use_and_none_is_made(
    fake: Any, places: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    (empty := tmp_path / "empty").mkdir()
    monkeypatch.chdir(empty)
    found = told("caption", places["FOLDER"], "--store", store, "--no-prefect", code=2)
    assert "folder" in found["error"]
    assert not list(empty.iterdir())


def test_deployment_that_names_nothing_leaves_no_run_either(fake: Any, places: dict[str, str]) -> None:
    with pytest.raises(WrongUseError, match="no file matches"):
        run_job(Job("caption", places["STORE"], (f"{places['FOLDER']}/*.jpg",)))
    assert not Path(places["STORE"]).exists()


def test_empty_list_among_other_inputs_is_one_failed_row(fake: Any, places: dict[str, str]) -> None:
    inputs = [filled(i, places) for i in ("FOLDER", "FOLDER/empty.txt", "FOLDER/*.jpg")]
    done = told("caption", *inputs, "--store", places["STORE"], "--no-prefect", code=3)
    assert (done["ok"], done["errors"]) == (1, {"empty": 1, "not_found": 1})


def test_list_found_to_be_none_after_others_leaves_no_run(fake: Any, places: dict[str, str]) -> None:
    """A list elsewhere is opened when its turn comes."""
    import fsspec

    fsspec.filesystem("memory").pipe("/lists/l.csv", b"colour,size\nred,3\n")
    found = told(
        "caption",
        *(places["FOLDER"], "memory://lists/l.csv", "--store", places["STORE"], "--no-prefect"),
        code=2,
    )
    assert "name one with --column" in found["error"]
    assert not list(Path(places["STORE"], "runs").iterdir())


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("x.lst", b"%PDF-1.7\n", "application/pdf"),
        ("x.lst", b"<!doctype html><html>", "text/html"),
        ("x.csv", "path\na.png".encode("utf-16"), "UTF-8"),
        ("x.txt", b"PK\3\4", "application/zip"),
    ],
)
def test_what_is_no_list_is_told_by_its_bytes(tmp_path: Path, name: str, data: bytes, kind: str) -> None:
    (path := tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError, match=kind):
        open_source([f"list:{path}"])


def test_image_named_like_a_list_is_an_image(draw: Draw) -> None:
    path = draw("a.png")
    listed = path.rename(path.with_suffix(".txt"))
    assert [i.uri for i in open_source([listed]).items()] == [listed.as_uri()]


def test_zip_is_no_web_dataset_wherever_it_is(tmp_path: Path) -> None:
    import fsspec

    with zipfile.ZipFile(path := tmp_path / "x.zip", "w") as archive:
        archive.writestr("a.txt", "")
    with pytest.raises(SourceError, match="without wds:"):
        open_source([f"wds:{path}"])
    fsspec.filesystem("memory").pipe("/shards/x.zip", path.read_bytes())
    (item,) = open_source(["wds:memory://shards/x.zip"]).items()
    assert (item.error_kind, item.error) == ("unsupported_format", "no tar; name it without wds:")


class EndpointConnectionError(Exception):
    """As botocore has it."""


class NoCredentialsError(Exception):
    """As botocore has it."""


@pytest.mark.parametrize(
    ("error", "cause", "kind", "says"),
    [
        (FileNotFoundError("http://h/a.png"), ConnectionRefusedError(111, "refused"), "timeout", "check the address"),
        (FileNotFoundError("http://h/a.png"), socket.gaierror(-2, "unknown"), "timeout", "cannot be reached"),
        (EndpointConnectionError("no connection"), None, "timeout", "no connection"),
        (FileNotFoundError("http://h/a.png"), ValueError("404"), None, None),
        (NoCredentialsError("none"), None, "unreadable", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        (PermissionError("Forbidden"), None, "unreadable", "Forbidden"),
    ],
)
def test_server_that_is_not_there_is_no_missing_file(
    monkeypatch: pytest.MonkeyPatch, error: Exception, cause: Exception | None, kind: str | None, says: str | None
) -> None:
    class System:
        def info(self, _: str) -> None:
            raise error from cause

    monkeypatch.setattr(storage, "filesystem", lambda _: System())
    (item,) = open_source(["http://h/a.png"]).items()
    assert item.error_kind == (kind or "not_found")
    assert (says or "nothing at this address") in (item.error or "")


def test_run_over_a_server_that_is_not_there_could_not_begin(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class System:
        def info(self, _: str) -> None:
            raise EndpointConnectionError("no connection")

    monkeypatch.setattr(storage, "filesystem", lambda _: System())
    found = told("caption", "http://h/a.png", "--store", tmp_path / "store", "--no-prefect", code=1)
    assert "check the address and the network" in found["error"]
    assert not (tmp_path / "store").exists()
