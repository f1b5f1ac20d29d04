"""What every test of the client has: short looks, an empty environment, and a loop that must end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from zellige.engine.remote import pool
from zellige.engine.remote.config import KEY, KEY_FILE

# The stand-in server and its clients lie here.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY, raising=False)
    monkeypatch.delenv(KEY_FILE, raising=False)
    monkeypatch.setattr(pool, "FIRST_LOOK_S", 0.02)


@pytest.fixture
def go() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine to its end, which must come within half a minute."""

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(asyncio.wait_for(work, 30))

    return run
