from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from checkpoints import SHAPES, Shape, make


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Shape], tuple[Path, Any]]:
    """Folder and transformers model of a shape, made once a session."""
    made: dict[str, tuple[Path, Any]] = {}

    def get(shape: Shape) -> tuple[Path, Any]:
        if shape.name not in made:
            folder = tmp_path_factory.mktemp(shape.name)
            made[shape.name] = (folder, make(folder, shape))
        return made[shape.name]

    return get


@pytest.fixture(params=SHAPES, ids=lambda s: s.name)
def shape(request: pytest.FixtureRequest) -> Shape:
    return request.param
