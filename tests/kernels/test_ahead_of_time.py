"""Every kernel compiles for the cards we serve on a machine that has none, and fits the smallest of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from zellige.kernels.operators import OPERATORS

SCRIPT = Path(__file__).parent / "ahead_of_time.py"
SHARED_BYTES = 99 * 1024


@pytest.mark.long
@pytest.mark.parametrize("arch", [86, 90])
def test_ahead_of_time(arch, tmp_path):
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    how = "all" if os.environ.get("ZELLIGE_TEST_LONG") else "quick"
    done = subprocess.run(
        [sys.executable, SCRIPT, str(arch), how], capture_output=True, text=True, env=env, check=False, timeout=1200
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["operator"] for row in rows} == {op.name for op in OPERATORS}
    if arch == 86:
        assert not [row for row in rows if row["shared_bytes"] > SHARED_BYTES or row["spilled_bytes"]]
