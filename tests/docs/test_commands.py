"""Every command and every piece of Python in README.md and docs/ runs as it stands there, placeholders replaced."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from doc_snippets import PAGES, ROOT, Snippet, snippets
from doc_surface import unknown
from doc_world import Parrot, data_uri, draw, filled
from server_harness import LiveServer
from typer.testing import CliRunner

from zellige.engine import connect
from zellige.engine.connect import EngineSpec, open_local
from zellige.flows.cli import app

#: Commands that are not run here, and why. Of those of zellige the names of commands and options are looked up.
NOT_RUN: Mapping[str, str] = {
    r"source ": "the tests run in that environment",
    r"make ": "make itself runs the tests; here its targets are looked up",
    r"(\w+=\S+ )?(\.venv/bin/)?pytest ": "these are the tests; here the folders are looked up",
    r"zellige doctor": "minutes in Triton's interpreter, or a GPU: tests/flows/test_doctor.py",
    r"zellige bench": "minutes, or a GPU: tests/flows/test_bench_pipeline.py, tests/engine",
    r"(prefect|export PREFECT_\w+=\S+|zellige deploy)\b": "Prefect's server and worker: tests/flows/test_deploy.py",
    r"(ray|dask) |zellige caption (s3://photos/|.*--loops )": "a cluster: tests/flows/test_scale_out.py",
    r"transformers serve": "a server that is not ours: tests/engine/remote/test_peers.py",
}
#: What a piece of Python prints, where that is fixed.
PRINTS: Mapping[str, str] = {"answers.md": r"stop \{'colour': '(red|green|blue)', 'sides': [3-9]\} \d+\n"}


@dataclass
class Desk:
    """A folder with the inputs, a store with three runs, a server; and how a line is typed there."""

    names: dict[str, str]
    #: What ran: the same line on another page says nothing new.
    done: set[str] = field(default_factory=set)

    def type(self, line: str) -> str:
        """Run one command of zellige or Python in this process, another in a shell; its output."""
        words = shlex.split(line)
        if words[:2] == ["python", "-c"]:
            return self.python(words[2])
        if words[0] != "zellige":
            done = subprocess.run(["bash", "-ec", line], capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, f"{line}\n{done.stderr}"
            return done.stdout
        with pytest.MonkeyPatch.context() as patch:
            _quick(patch, self.names["SERVER"])
            result = CliRunner().invoke(app, words[1:])
        # One of the photos is cut short, which is told by exit code.
        expected = {0, 3} if re.search(r"photos/|again\.csv|--resume", line) else {0}
        assert result.exit_code in expected, f"{line}\n{result.output[-2000:]}"
        return result.output

    def python(self, text: str) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(text, "docs", "exec"), {"__name__": "docs"})
        return out.getvalue()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("docs")
    draw(folder)
    with pytest.MonkeyPatch.context() as patch, LiveServer(lambda: open_local(EngineSpec())) as server:
        patch.chdir(folder)
        desk = Desk({"SERVER": f"{server.url}/v1", "PICTURE": data_uri()})
        for name in ("RUN", "OTHER", "SPARE"):
            desk.type(filled("zellige caption photos/ --store answers", {}))
            (desk.names[name],) = {p.name for p in Path("answers/runs").iterdir()} - set(desk.names.values())
        yield desk


def _quick(patch: pytest.MonkeyPatch, server: str) -> None:
    """What would take long, or for ever, ends at once: a parrot answers, but for the server, and servers are left."""

    def open_engine(spec: EngineSpec) -> Any:
        return opened(spec) if spec.urls == (server,) else Parrot()

    def left(code: int) -> None:
        raise SystemExit(code)

    opened = connect.open_engine
    patch.setattr(connect, "open_engine", open_engine)
    patch.setattr(
        "zellige.engine.server.run.serve", lambda opener, *, on_listening, **_: on_listening("http://127.0.0.1")
    )
    patch.setattr("zellige.flows.serve_command.os._exit", left)
    patch.setattr("zellige.flows.review_command._until_told", lambda: None)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_a_page_tells_to_type_runs(page: Path, desk: Desk) -> None:
    for snippet in snippets(page):
        if snippet.text in desk.done:
            continue
        desk.done.add(snippet.text)
        text = filled(snippet.text, desk.names | {"NEW": f"new-{len(desk.done)}"})
        if snippet.kind == "python":
            said = _in_full(snippet, desk.python, text)
            if page.name in PRINTS:
                assert re.fullmatch(PRINTS[page.name], said), said
        elif any(re.match(pattern, snippet.text) for pattern in NOT_RUN):
            _look_up(snippet)
        else:
            _in_full(snippet, desk.type, text)


def _in_full(snippet: Snippet, run: Callable[[str], str], text: str) -> str:
    try:
        return run(text)
    except Exception as error:
        raise AssertionError(f"{snippet}\n{error}") from error


def test_each_reason_not_to_run_a_command_is_of_one_that_the_docs_name() -> None:
    named = [snippet.text for page in PAGES for snippet in snippets(page) if snippet.kind == "shell"]
    assert [pattern for pattern in NOT_RUN if not any(re.match(pattern, text) for text in named)] == []


def _look_up(snippet: Snippet) -> None:
    """What is not run names at least what there is."""
    words = shlex.split(snippet.text)
    if words[0] == "zellige":
        assert unknown(words) == [], snippet
    elif words[0] == "make":
        subprocess.run(["make", "-n", "-C", ROOT, *words[1:]], check=True, capture_output=True, timeout=60)
    elif "pytest" in snippet.text:
        assert all((ROOT / word).exists() for word in words if word.startswith("tests")), snippet
