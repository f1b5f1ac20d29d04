"""Faults that only a device shows: accesses that its memory refuses, indices that overflow, threads that race."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from zellige.engine.api import Request, RequestFatal, Sampling, ask
from zellige.engine.child import process
from zellige.engine.child.engine import ProcessEngine
from zellige.engine.connect import EngineSpec, open_local

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


def test_an_illegal_access_of_one_request_among_eight_costs_that_request_alone(monkeypatch):
    """The device's context dies twice; seven are answered as without it, and one after them too."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(process, "COMMAND", (sys.executable, str(SCRIPT.with_name("device_child.py"))))

    def question(number: int, **more: str) -> Request:
        pixels = np.random.default_rng(number).integers(0, 255, (64 + 32 * number, 96, 3), dtype=np.uint8)
        asked = ask("Describe the image.", pixels, sampling=Sampling(max_tokens=24, ignore_eos=True), run_id="run")
        return replace(asked, **more)

    async def work(engine: ProcessEngine):
        expected = await asyncio.gather(*(engine.answer(question(i)) for i in range(8)))
        innocent = [engine.answer(question(i)) for i in range(7)]
        guilty = engine.answer(question(7, request_id="guilty", run_id="guilty run"))
        got = await asyncio.gather(*innocent, guilty, return_exceptions=True)
        after = await engine.answer(question(7))
        meter, stats = await engine.meter("guilty run"), engine.stats()
        await engine.close()
        return expected, got, after, meter, stats

    engine = open_local(EngineSpec(device="cuda", dtype="float32", limits=(("child", True),)))
    assert isinstance(engine, ProcessEngine)
    expected, got, after, meter, stats = asyncio.run(work(engine))
    fatal = got.pop()
    assert isinstance(fatal, RequestFatal)
    assert "rms_norm" in str(fatal)
    assert "bfloat16 [3, 64]" in str(fatal)
    assert [a.token_ids for a in (*got, after)] == [a.token_ids for a in expected]
    assert {k.operator for k in meter.kernels if k.verdict == "failed"} == {"rms_norm"}
    assert (stats.failure, stats.pause) == (None, None)
