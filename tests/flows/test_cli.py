"""The command line: its frozen surface, how light it is, its exit codes and what it prints where."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from PIL import Image, ImageDraw
from typer.testing import CliRunner

from zellige.data.uri import to_uri
from zellige.flows.cli import app

SURFACE = Path(__file__).with_name("cli_surface.json")
Draw = Callable[..., Path]


def surface() -> dict[str, list[str]]:
    """Every command with its arguments and options, as the parser has them."""
    found: dict[str, list[str]] = {}

    def walk(name: str, command: Any) -> None:
        for child, sub in getattr(command, "commands", {}).items():
            walk(f"{name} {child}", sub)
        if not hasattr(command, "commands"):
            found[name] = sorted(
                " ".join([*parameter.opts, *parameter.secondary_opts])
                if parameter.param_type_name == "option"
                else f"{parameter.name}{'...' if parameter.nargs == -1 else ''}"
                for parameter in command.params
            )

    walk("zellige", typer.main.get_command(app))
    return dict(sorted(found.items()))


def test_commands_and_options_are_those_of_the_snapshot() -> None:
    """A change of the surface is a decision: make it here as well."""
    assert surface() == json.loads(SURFACE.read_text())


@pytest.mark.parametrize("arguments", [[], ["caption"], ["ask"], ["runs"], ["runs", "list"], ["runs", "show"]])
def test_help_is_printed_for_every_command(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, [*arguments, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.stdout


def test_version_is_that_of_the_package() -> None:
    told = Told("--version")
    assert (told.code, told.out.strip()) == (0, f"zellige {version('zellige')}")


def test_help_imports_nothing_heavy() -> None:
    script = """
import sys
sys.argv = ["zellige", "caption", "--help"]
from zellige.flows.cli import main
try:
    main()
except SystemExit as e:
    assert e.code == 0
heavy = {"torch", "prefect", "duckdb", "pyarrow", "numpy", "PIL"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--resume" in done.stdout


def test_plain_run_imports_no_prefect(draw: Draw, tmp_path: Path, zellige: Any) -> None:
    path = draw("a.png")
    script = f"""
import sys, runpy
sys.argv = ["zellige", "caption", {str(path)!r}, "--store", {str(tmp_path / "store")!r}, "--no-prefect"]
try:
    runpy.run_path({str(Path(__file__).with_name("fake_engine.py"))!r}, run_name="__main__")
except SystemExit as e:
    assert e.code == 0, e.code
assert "prefect" not in sys.modules and "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


class Told:
    """What one command in this process printed and how it ended."""

    def __init__(self, *arguments: str | Path) -> None:
        result = CliRunner().invoke(app, list(map(str, arguments)))
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr


def test_all_good_is_exit_code_0_and_says_where_the_rows_are(fake: Any, draw: Draw, tmp_path: Path) -> None:
    told = Told("caption", draw("a.png"), "--store", tmp_path / "store", "--no-prefect")
    assert (told.code, told.out) == (0, "")
    assert "1 ok, 0 failed" in told.err
    assert str(tmp_path / "store" / "runs") in told.err
    assert "items/s" in told.err


def test_some_rows_failed_is_exit_code_3_and_names_the_next_step(fake: Any, draw: Draw, tmp_path: Path) -> None:
    told = Told("caption", draw("a.png"), "/nowhere.png", "--store", tmp_path / "store", "--no-prefect")
    assert told.code == 3
    assert "1 not_found" in told.err
    assert "zellige runs show" in told.err


def test_json_is_one_object_on_stdout(fake: Any, draw: Draw, tmp_path: Path) -> None:
    store = tmp_path / "store"
    told = Told(
        *("ask", draw("a.png"), "/nowhere.png", "--question", "Which?", "--question", "What?"),
        *("--store", store, "--no-prefect", "--json", "--quiet"),
    )
    done = json.loads(told.out)
    assert (done["flow"], done["state"], done["exit_code"], told.code) == ("ask", "finished", 3, 3)
    assert (done["items"], done["rows"], done["ok"], done["failed"], done["skipped"]) == (2, 4, 2, 2, 0)
    assert done["errors"] == {"not_found": 2}
    assert done["throughput"]["items"] == 2
    assert done["throughput"]["items_per_s"] > 0
    assert done["store"] == str(store)
    assert list(Path(done["store"]).glob(f"runs/{done['run_id']}/parts/*.parquet"))
    assert told.err == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["caption", "--store", "STORE"], "--resume"),
        (["caption", "IMAGE"], "--store DIR"),
        (["caption", "IMAGE", "--store", "STORE", "--tile", "7.5"], "auto, off or"),
        (["caption", "nosuch://bucket/x", "--store", "STORE"], "copy the images to a folder"),
        (["caption", "--store", "STORE", "--resume", "no-such-run"], "no-such-run"),
        (["ask", "IMAGE", "--store", "STORE"], "--question TEXT"),
        (["caption", "IMAGE", "--store", "STORE", "--log-file", "/no/such/folder/log"], "name another file"),
        (["caption", "--dry-run", "--resume", "x"], "leave --resume out"),
        (["runs", "list", "--store", "STORE"], "no folder"),
        (["caption", "IMAGE", "--store", "STORE", "--limit", "9" * 30], "--limit 999"),
        (["caption", "IMAGE", "--store", "STORE", "--shard-items", "9" * 30], "--shard-items 999"),
        (["caption", "IMAGE", "--store", "STORE", "--prompt", "caf\udce9"], "no valid text"),
        (["caption", "IMAGE", "--store", "STORE", "--tile", "1"], "smaller than one cell"),
        (["caption", "IMAGE", "--dry-run", "--tile", "1"], "smaller than one cell"),
        (["ask", "IMAGE", "--store", "STORE", "--questions", "/proc/nope.csv"], "nope.csv' does not exist; check"),
    ],
)
def test_wrong_use_is_exit_code_2_and_says_what_to_do(
    fake: Any, draw: Draw, tmp_path: Path, arguments: list[str], says: str
) -> None:
    places = {"STORE": str(tmp_path / "store"), "IMAGE": str(draw("a.png"))}
    plain = [] if arguments[0] == "runs" else ["--no-prefect"]
    told = Told(*[places.get(a, a) for a in arguments], *plain)
    assert (told.code, told.out) == (2, "")
    assert says in told.err
    assert not (tmp_path / "store").exists()


def test_engine_that_cannot_be_opened_is_exit_code_2(draw: Draw, tmp_path: Path) -> None:
    told = Told("caption", draw("a.png"), "--store", tmp_path / "s", "--model", tmp_path / "none", "--no-prefect")
    assert told.code == 2
    assert "engine could not be opened" in told.err
    assert str(tmp_path / "none") in told.err


def test_error_is_one_json_object_too(fake: Any, tmp_path: Path) -> None:
    told = Told("caption", "--store", tmp_path / "store", "--no-prefect", "--json")
    assert json.loads(told.out)["exit_code"] == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["caption", "--nonsense"], "--nonsense"),
        (["caption", "--limit", "many"], "--limit"),
        (["nothing"], "nothing"),
        (["runs", "nothing"], "see zellige runs --help"),
        (["runs", "show"], "RUN"),
        (["export", "x", "--store", "s"], "--to"),
    ],
)
def test_what_the_parser_refuses_is_one_json_object_too(arguments: list[str], says: str) -> None:
    told = Told(*arguments, "--json")
    found = json.loads(told.out)
    assert (told.code, found["exit_code"], found["state"]) == (2, 2, "failed")
    assert says in found["error"]
    assert Told(*arguments).out == ""


def test_store_that_no_folder_can_be_made_for_says_what_to_do(fake: Any, draw: Draw) -> None:
    told = Told("caption", draw("a.png"), "--store", "/proc/zellige", "--no-prefect", "--json")
    assert told.code == 1
    assert "/proc/zellige" in json.loads(told.out)["error"]
    assert "name a store" in json.loads(told.out)["error"]


@pytest.mark.parametrize("wrong", [("--model", "/no/model"), ("--device", "abacus"), ("--dtype", "int3")])
def test_engine_that_cannot_be_opened_is_found_before_prefect_is_started(
    draw: Draw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: tuple[str, str]
) -> None:
    def started(*_: Any) -> None:
        raise AssertionError("a server was started")

    monkeypatch.setattr("zellige.flows.commands.prefect_server", started)
    told = Told("caption", draw("a.png"), "--store", tmp_path / "store", *wrong)
    assert (told.code, "engine could not be opened" in told.err) == (2, True)
    assert not (tmp_path / "store").exists()


def test_dry_run_needs_no_store(fake: Any, draw: Draw) -> None:
    told = Told("caption", draw("a.png"), "--dry-run", "--json")
    found = json.loads(told.out)
    assert (told.code, found["items"], found["calls"], found["vision_tokens"]) == (0, 1, 1, 4)
    assert "1 item, 0 of them unreadable" in (said := Told("caption", draw("a.png"), "--dry-run").out)
    assert "1 view, 1 call, 4 vision tokens" in said
    assert "by 1 item answered to see" in said


def test_dry_run_counts_and_names_what_failed_of_what_it_tried(fake: Any, draw: Draw) -> None:
    cut = draw("cut.png", size=(64, 64))
    cut.write_bytes(cut.read_bytes()[:-30])
    folder = draw("whole.png").parent
    found = json.loads(Told("caption", folder, "--dry-run", "--json").out)
    assert (found["items"], found["unreadable"], len(found["failed"])) == (2, {}, 1)
    assert "1 item failed of those tried:" in (said := Told("caption", folder, "--dry-run").out)
    assert "cut.png: " in said


def test_dry_run_of_read_shows_the_views_that_the_run_shows(
    fake: Any, draw: Draw, tmp_path: Path, rows: Callable[..., Any]
) -> None:
    page = draw("page.png", (255, 255, 255), (400, 300))
    picture = Image.open(page)
    for top in range(20, 280, 24):
        ImageDraw.Draw(picture).text((20, top), "some words of a printed page", fill="black")
    picture.save(page)
    cut = draw("cut.png", size=(64, 64))
    cut.write_bytes(cut.read_bytes()[:-30])
    found = json.loads(Told("read", page, cut, "--dry-run", "--json").out)
    by_size = json.loads(Told("caption", page, "--dry-run", "--json").out)
    told = Told("read", page, "--store", tmp_path / "s", "--no-prefect", "--json", "--quiet")
    (row,) = rows(tmp_path / "s", json.loads(told.out)["run_id"])
    assert len(row["tiles"]) != by_size["views"]
    assert (found["calls"], len(found["failed"])) == (found["views"], 1)
    alone = json.loads(Told("read", page, "--dry-run", "--json").out)
    assert alone["views"] == len(row["tiles"]) > 1


def test_dry_run_says_what_is_passed_by_and_names_every_unreadable_member(fake: Any, draw: Draw) -> None:
    folder = draw("a.png").parent
    (folder / "notes.txt").write_text("no picture")
    with zipfile.ZipFile(folder / "x.zip", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile's, about names that are there twice
        for name in ("one.png", "two.png", "two.png", "two.png"):
            archive.writestr(name, b"no picture")
    found = json.loads(Told("caption", folder, "--dry-run", "--json").out)
    assert (found["items"], len(found["unreadable"]), found["ignored"]) == (5, 4, {"not an image": 1})
    assert [name.partition("x.zip ")[2] for name in found["unreadable"]] == [
        *("one.png", "two.png", "two.png (place 2)", "two.png (place 3)")
    ]
    assert "passed by: 1 not an image" in Told("caption", folder, "--dry-run").out


def test_folder_without_an_image_is_told_as_that(fake: Any, tmp_path: Path) -> None:
    (folder := tmp_path / "letters").mkdir()
    (folder / "notes.txt").write_text("no picture")
    says = f"no image found in {folder}; passed by: 1 not an image"
    assert Told("caption", folder, "--dry-run").out.strip() == says
    told = Told("caption", folder, "--store", tmp_path / "store", "--no-prefect")
    assert (told.code, says in told.err) == (0, True)


def test_runs_are_listed_and_shown(fake: Any, draw: Draw, tmp_path: Path) -> None:
    store = tmp_path / "store"
    for arguments in (["caption"], ["ask", "--question", "Which?"]):
        Told(*arguments, draw("a.png"), "/nowhere.png", "--store", store, "--no-prefect")
    runs = json.loads(Told("runs", "list", "--store", store, "--json").out)
    assert [r["flow"] for r in runs] == ["caption", "ask"]
    assert {"run_id", "flow", "state", "items", "ok", "failed", "skipped", "started_at"} <= runs[0].keys()
    listed = Told("runs", "list", "--store", store)
    assert all(r["run_id"] in listed.out for r in runs)
    shown = Told("runs", "show", runs[0]["run_id"], "--store", store)
    assert (shown.code, shown.err) == (0, "")
    assert "1 ok, 1 failed (1 not_found)" in shown.out
    assert " /nowhere.png [" in shown.out
    as_json = json.loads(Told("runs", "show", runs[1]["run_id"], "--store", store, "--json").out)
    assert (as_json["ok"], as_json["failures"][0]["error_kind"]) == (1, "not_found")
    assert Told("runs", "show", "nothing", "--store", store).code == 2


def test_resuming_a_finished_run_does_nothing_and_has_the_exit_code_of_the_run(
    fake: Any, draw: Draw, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    first = Told("caption", draw("a.png"), "/nowhere.png", "--store", store, "--no-prefect", "--json")
    run_id = json.loads(first.out)["run_id"]
    again = Told("caption", "--resume", run_id, "--store", store, "--json", "--quiet")
    assert (again.code, json.loads(again.out)["failed"], len(fake.opened)) == (3, 1, 1)
    assert json.loads(again.out)["exit_code"] == 3
    quiet = Told("caption", "--resume", run_id, "--store", store, "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (3, "", "")
    elsewhere = Told("caption", draw("b.png"), "--resume", run_id, "--store", store, "--no-prefect")
    assert (elsewhere.code, "was begun otherwise: INPUT" in elsewhere.err) == (2, True)
    good = json.loads(Told("caption", draw("a.png"), "--store", store, "--no-prefect", "--json", "--quiet").out)
    assert Told("caption", "--resume", good["run_id"], "--store", store).code == 0
    other = Told("caption", "--resume", run_id, "--store", store, "--prompt", "Other.")
    assert other.code == 2
    assert 'prompt: "Other." != "Describe the image."' in other.err


@pytest.mark.parametrize("command", [["list"], ["show", "x"]])
def test_runs_of_no_store_is_one_line_and_no_trace(zellige: Any, tmp_path: Path, command: list[str]) -> None:
    done = zellige("runs", *command, "--store", tmp_path / "none")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)


def test_store_that_is_a_file_is_told(fake: Any, draw: Draw, tmp_path: Path) -> None:
    told = Told("caption", draw("a.png"), "--store", draw("b.png"), "--no-prefect")
    assert told.code == 1
    assert "a file is where a folder should be" in told.err


def test_glob_that_prefect_cannot_store_is_told_before_its_server_starts(fake: Any, draw: Draw, tmp_path: Path) -> None:
    told = Told("caption", draw("a.png"), "--store", tmp_path / "store", "--include", "caf\udce9*")
    assert told.code == 2
    assert "include" in told.err
    assert "--no-prefect" in told.err
    assert not (tmp_path / "store").exists()


def test_reader_that_goes_away_ends_nothing(zellige: Any, draw: Draw, tmp_path: Path) -> None:
    store = tmp_path / "store"
    process = zellige.start("caption", draw("a.png"), "--store", store, "--no-prefect", "--json")
    process.stdout.close()
    process.stderr.close()
    assert process.wait(timeout=60) == 0
    assert json.loads(zellige("runs", "list", "--store", store, "--json").stdout)[0]["state"] == "finished"


def test_output_is_told_in_any_encoding(zellige: Any, draw: Draw, tmp_path: Path) -> None:
    store = tmp_path / "store"
    run_id = zellige.json("caption", draw("a.png"), "--store", store, "--no-prefect", "--quiet")["run_id"]
    done = zellige("runs", "show", run_id, "--store", store, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert run_id in done.stdout


def test_warnings_of_libraries_go_to_the_log(
    fake: Any, draw: Draw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warn(*_: Any) -> None:
        warnings.warn("of some library", stacklevel=1)

    monkeypatch.setattr("zellige.tasks.lease.log.info", warn)
    log = tmp_path / "log"
    told = Told("caption", draw("a.png"), "--store", tmp_path / "s", "--no-prefect", "--quiet", "--log-file", log)
    assert (told.code, told.err) == (0, "")
    assert "of some library" in log.read_text()


def test_fault_of_our_own_is_exit_code_1_with_its_trace(
    fake: Any, draw: Draw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("zellige.tasks.lease.commit", broken)
    told = Told("caption", draw("a.png"), "--store", tmp_path / "store", "--no-prefect", "--json", "--quiet")
    assert (told.code, json.loads(told.out)["state"]) == (1, "failed")
    assert "could not go on: oops" in told.err
    assert "--resume" in told.err


def test_log_file_names_what_failed(fake: Any, draw: Draw, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    Told("caption", draw("a.png"), "/nowhere.png", "--store", tmp_path / "s", "--no-prefect", "--log-file", log)
    text = log.read_text()
    assert "file:///nowhere.png" in text
    assert "not_found" in text
    assert "shard 0: 2 rows" in text


def test_options_reach_the_recipe_and_the_engine(fake: Any, draw: Draw, tmp_path: Path) -> None:
    path = draw("a.png")
    draw("b.png")
    told = Told(
        *("caption", path.parent, "--store", tmp_path / "store", "--no-prefect", "--json", "--quiet"),
        *("--prompt", "Say.", "--tile", "64", "--max-tokens", "9", "--temperature", "0.5", "--seed", "3"),
        *("--model", tmp_path / "m", "--device", "cpu", "--dtype", "bfloat16", "--include", "*.png"),
        *("--exclude", "b*", "--shard-items", "7"),
    )
    (spec,) = fake.specs
    assert (spec.model, spec.device, spec.dtype) == (str(tmp_path / "m"), "cpu", "bfloat16")
    from zellige.data.ledger import Store

    run = Store(tmp_path / "store").open_run(json.loads(told.out)["run_id"])
    assert (run.recipe.prompt, run.recipe.tiling, run.shard_items) == ("Say.", 64, 7)
    assert [run.recipe.sampling[k] for k in ("max_tokens", "temperature", "seed")] == [9, 0.5, 3]
    assert [i.uri[-5:] for i in run.items()] == ["a.png"]


def test_file_names_of_any_bytes_are_captioned(zellige: Any, draw: Draw, tmp_path: Path) -> None:
    good = draw("a.png")
    odd = good.parent / b"caf\xe9 \xff#%?.png".decode("utf-8", "surrogateescape")
    good.rename(odd)
    done = zellige.json("caption", odd, "--store", tmp_path / "store", "--no-prefect")
    assert done["ok"] == 1


def test_runs_take_a_store_as_caption_does_also_as_an_address_and_with_a_question_mark(
    fake: Any, draw: Draw, tmp_path: Path
) -> None:
    store = tmp_path / "what?"
    told = Told("caption", draw("a.png"), "--store", to_uri(store), "--no-prefect")
    assert "1 item, 1 row: 1 ok" in told.err
    assert "no index: " in told.err
    assert "runs rebuild" not in told.err
    (run,) = json.loads(Told("runs", "list", "--store", to_uri(store), "--json").out)
    assert "1 ok" in Told("runs", "show", run["run_id"], "--store", store).out
    rebuilt = Told("runs", "rebuild", "--store", store)
    assert (rebuilt.code, "'?' in its name" in rebuilt.err) == (2, True)
    assert Told("runs", "delete", run["run_id"], "--store", store, "--yes").code == 0
    assert json.loads(Told("runs", "list", "--store", store, "--json").out) == []
