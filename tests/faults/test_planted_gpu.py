"""Faults that only a device shows: accesses that its memory refuses, indices that overflow, threads that race."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
SCRIPT = Path(__file__).parent / "device.py"


@pytest.mark.parametrize(
    ("what", "verdicts"),
    [
        ("illegal access", {"failed"}),
        # Wherever the wrapped index points: into other memory, or where there is none.
        ("index of 32 bits", {"failed", "suspect"}),
        ("overlapping writes", {"suspect"}),
    ],
)
def test_a_fault_that_only_a_device_shows_is_caught_by_name(what, verdicts):
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, SCRIPT, what], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["verdict"] in verdicts
    assert {operator for operator, _ in told["faults"]} == {"rms_norm"}
