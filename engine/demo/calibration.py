"""Samples to calibrate and to judge a quantised model with: every suite in turn, from both sides of the split."""

from __future__ import annotations

from zellige.data.samples import training_kit
from zellige.engine.demo.suites import SUITES, Case


def calibration_cases(count: int) -> list[Case]:
    """``count`` cases of the training side, which no suite asks."""
    return [SUITES[n % len(SUITES)].draw(training_kit(f"calibration/{n}")) for n in range(count)]


def held_out_cases(count: int) -> list[Case]:
    """``count`` cases of the suites' own side, with numbers that ``evaluate`` does not reach."""
    return [SUITES[n % len(SUITES)].case(1_000_000 + n // len(SUITES)) for n in range(count)]
