from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def the_same_numbers_in_every_run() -> None:
    """A tolerance that holds for one draw in a hundred thousand fails a night in the end; these tests draw many."""
    torch.manual_seed(0)
