"""A fake engine, pictures, and the command with that engine inside."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pytest
from PIL import Image

from zellige.engine import connect
from zellige.engine.connect import EngineSpec
from zellige.tasks.host import close_engines

FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")
Row = dict[str, Any]


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fake_engine", FAKE_ENGINE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fake_engine"] = module
    spec.loader.exec_module(module)
    return module


@dataclass
class Fake:
    """The module of the fake engine, and the engines that were opened while a test ran."""

    module: ModuleType
    opened: list[Any] = field(default_factory=list)
    specs: list[EngineSpec] = field(default_factory=list)

    def open(self, spec: EngineSpec) -> Any:
        self.specs.append(spec)
        self.opened.append(self.module.FakeEngine(spec.model or "fake"))
        return self.opened[-1]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """Every engine that is opened in this test is a fake one, and none that an earlier test of this process opened."""
    close_engines()
    engine = Fake(_load())
    monkeypatch.setattr(connect, "open_engine", engine.open)
    monkeypatch.setattr("zellige.tasks.answer.FIRST_PAUSE_S", 0.001)
    yield engine
    close_engines()


@pytest.fixture
def draw(tmp_path: Path) -> Callable[..., Path]:
    """Writes a PNG of one colour into ``tmp_path/images``; ``first`` is its first pixel."""

    def draw_one(
        name: str, colour: tuple[int, int, int] = (10, 20, 30), size: tuple[int, int] = (64, 48), **kw: Any
    ) -> Path:
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.full((size[1], size[0], 3), colour, np.uint8)
        if "first" in kw:
            pixels[0, 0] = kw["first"]
        Image.fromarray(pixels).save(path)
        return path

    return draw_one


@pytest.fixture
def rows() -> Callable[[Path, str], list[Row]]:
    """The answer rows of a run, in the order of the parts."""

    def read(store: Path, run_id: str) -> list[Row]:
        return ds.dataset(store / "runs" / run_id / "parts", format="parquet").to_table().to_pylist()

    return read


@dataclass
class Zellige:
    """The command in a process of its own, with the fake engine; ``home`` keeps what Prefect writes."""

    home: Path

    def start(self, *arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
        """Start it in a process group of its own, as a terminal does."""
        mine = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        return subprocess.Popen(
            [sys.executable, str(FAKE_ENGINE), *map(str, arguments)],
            env={**mine, "PREFECT_HOME": str(self.home), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __call__(self, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=180)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def json(self, *arguments: str | Path, code: int = 0) -> dict[str, Any]:
        """The one object that ``--json`` printed; the exit code has to be ``code``."""
        done = self(*arguments, "--json")
        assert done.returncode == code, done.stderr
        value = json.loads(done.stdout)
        assert isinstance(value, dict)
        return value


@pytest.fixture
def zellige(tmp_path: Path) -> Zellige:
    return Zellige(tmp_path / "prefect")
