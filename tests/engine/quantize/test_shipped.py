"""The checkpoint that ships, quantised: the shares of equal tokens that are promised. Long."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zellige.engine.connect import DEMO_MODEL
from zellige.engine.quantize.plan import make_plan
from zellige.engine.quantize.run import quantize_and_judge


@pytest.mark.long
@pytest.mark.skipif(not os.environ.get("ZELLIGE_TEST_LONG"), reason="a minute a case; ZELLIGE_TEST_LONG=1")
@pytest.mark.parametrize(("experts_bits", "share"), [(4, 0.98), (3, 0.95), (2, 0.90)])
def test_quantised_weights_keep_the_likeliest_token(tmp_path: Path, experts_bits: int, share: float) -> None:
    plan = make_plan(4, experts_bits, [], [], None, None)
    report = quantize_and_judge(
        DEMO_MODEL, tmp_path / "q", plan, samples=48, judges=60, device=None, dtype=None, tell=lambda _: None
    )
    assert report["quality"]["quantized"]["agreement"] >= share
    assert report["quality"]["noise_floor"]["agreement"] >= 0.999
    assert report["bytes"] < 0.7 * report["bytes_before"]
