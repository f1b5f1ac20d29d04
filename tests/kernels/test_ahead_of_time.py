"""Every kernel compiles for the cards we serve on a machine that has none, and fits the smallest of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from zellige.kernels.operators import OPERATORS

SCRIPT = Path(__file__).parent / "ahead_of_time.py"
SHARED_BYTES = 99 * 1024
ARCHITECTURES = (86, 90)

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """What the compiler and the assembler say of each kernel: of the real sizes, in the long setting of all."""
    cache = str(tmp_path_factory.mktemp("triton"))
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": cache}
    how = "all" if os.environ.get("ZELLIGE_TEST_LONG") else "quick"
    command = [sys.executable, str(SCRIPT), how, *map(str, ARCHITECTURES)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=3000)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.long
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_ahead_of_time_every_operator_compiles(kernels: Rows, arch: int) -> None:
    assert {row["operator"] for row in kernels if row["arch"] == arch} == {op.name for op in OPERATORS} | {"control"}


@pytest.mark.long
def test_ahead_of_time_every_kernel_fits_sm_86_and_spills_nothing(kernels: Rows) -> None:
    small = [row for row in kernels if row["arch"] == 86 and row["operator"] != "control"]
    assert not [row for row in small if row["shared_bytes"] > SHARED_BYTES or row["spilled_bytes"]]
    assert max(row["shared_bytes"] for row in small) > SHARED_BYTES // 2, "tiles that large are what is worth testing"


@pytest.mark.long
def test_ahead_of_time_a_kernel_that_spills_is_seen(kernels: Rows) -> None:
    assert all(row["spilled_bytes"] > 0 for row in kernels if row["operator"] == "control")
