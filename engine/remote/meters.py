"""What engines measured for a run, read from our own servers' pages, and what the client counts where there is none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from zellige.engine.api import Answer, ImagePart, KernelHealth, Request, RunMeter

#: What several engines' meters add up, and the types of these numbers; kernels stand beside each other instead.
_NUMBERS = {f.name: type(f.default) for f in fields(RunMeter) if isinstance(f.default, int | float)}
_KERNEL = tuple(f.name for f in fields(KernelHealth))


def read_meter(said: Any) -> RunMeter:
    """The page of ``/v1/runs/RUN/meter``; raises KeyError, TypeError or ValueError for anything else.

    What a newer server adds is left out, and numbers that an older one lacks are 0.
    """
    numbers: dict[str, Any] = {name: kind(said[name]) for name, kind in _NUMBERS.items() if name in said}
    kernels = (KernelHealth(**{name: row[name] for name in _KERNEL}) for row in said.get("kernels", ()))
    return RunMeter(**numbers, kernels=tuple(kernels))


def total(meters: Iterable[RunMeter]) -> RunMeter:
    """One run at several engines."""
    meters = list(meters)
    numbers: dict[str, Any] = {name: sum(getattr(m, name) for m in meters) for name in _NUMBERS}
    return RunMeter(**numbers, kernels=tuple(row for m in meters for row in m.kernels))


def counted(meter: RunMeter, request: Request, answer: Answer) -> RunMeter:
    """``meter`` with one answer more, as a client sees it: nothing of the engine's seconds."""
    usage = answer.usage
    return replace(
        meter,
        requests=meter.requests + 1,
        images=meter.images + sum(isinstance(p, ImagePart) for m in request.messages for p in m.parts),
        image_tokens=meter.image_tokens + usage.image_tokens,
        prompt_tokens=meter.prompt_tokens + usage.prompt_tokens,
        completion_tokens=meter.completion_tokens + usage.completion_tokens,
    )
