"""What the engine tells of its kernels is stored with the run, printed, and part of the run's JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from zellige.engine.api import KernelHealth, RunMeter
from zellige.flows.cli import app

HEALTHY = KernelHealth("rms_norm", "cuda:0", 1200, 3, 1e-3, 8e-3, 0, 0, 0, 0, 2.5, 4096, "healthy")
SUSPECT = replace(HEALTHY, operator="silu_mul", max_rel_l2=0.25, guard_hits=16, verdict="suspect")
FAILED = KernelHealth("silu_mul", "cuda:0", 0, 0, None, None, 0, 0, 0, 1, 0.0, 0, "failed")


def ended(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize(
    ("kernels", "lines"),
    [
        ((), []),
        ((HEALTHY,), ["  kernels healthy: 3 of 1,200 launches checked"]),
        (
            (HEALTHY, SUSPECT),
            [
                (
                    "  silu_mul on cuda:0 suspect: 0 launch errors, 0 values not finite, 16 bytes beside outputs, "
                    "0 not repeated, error 0.25 at a tolerance of 0.008"
                ),
                "  kernels suspect: 6 of 2,400 launches checked",
            ],
        ),
        (
            (FAILED,),
            [
                (
                    "  silu_mul on cuda:0 failed: 1 launch errors, 0 values not finite, 0 bytes beside outputs, "
                    "0 not repeated, nothing compared"
                ),
                "  kernels failed: 0 of 0 launches checked",
            ],
        ),
    ],
    ids=["an engine that tells nothing", "healthy", "suspect", "failed"],
)
def test_a_run_says_how_its_kernels_behaved(
    fake: Any, draw: Callable[..., Path], tmp_path: Path, monkeypatch: Any, kernels: Any, lines: list[str]
) -> None:
    async def meter(self: Any, run_id: str) -> RunMeter:
        return RunMeter(kernels=kernels)

    monkeypatch.setattr(fake.module.FakeEngine, "meter", meter)
    store = str(tmp_path / "store")
    done = json.loads(ended("caption", str(draw("a.png")), "--store", store, "--no-prefect", "--json", "--quiet"))
    assert [row["operator"] for row in done["kernels"]] == [k.operator for k in kernels]
    assert done["kernel_verdict"] == (max(k.verdict for k in kernels) if kernels else None)
    shown = ended("runs", "show", done["run_id"], "--store", store).splitlines()
    assert [line for line in shown if "kernels " in line or " on cuda:0 " in line] == lines
    assert shown[-1] == lines[-1] if lines else "rows:" in shown[-1]
