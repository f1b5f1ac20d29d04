from __future__ import annotations

import sys
from pathlib import Path

import pytest

# The small random checkpoints are made where they are judged.
sys.path.insert(0, str(Path(__file__).parent.parent / "conformance"))

from checkpoints import SHAPES, make


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random mixture-of-experts checkpoint."""
    folder = tmp_path_factory.mktemp("model")
    make(folder, SHAPES[0])
    return folder
