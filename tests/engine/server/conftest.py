from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from server_harness import FakeEngine, LiveServer

from zellige.engine.connect import EngineSpec, open_local


@pytest.fixture(scope="session")
def demo() -> Iterator[LiveServer]:
    """The checkpoint that ships, behind a real port."""
    engine = open_local(EngineSpec())
    with LiveServer(lambda: engine) as server:
        yield server


@pytest.fixture
def fake() -> Iterator[LiveServer]:
    """An engine that says what it is told, behind a real port."""
    engine = FakeEngine()
    with LiveServer(lambda: engine) as server:
        yield server
