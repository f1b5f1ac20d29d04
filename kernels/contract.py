"""What an operator promises, and how its launcher is written so that the meter can hold it to that.

A file of ``kernels/`` holds, from top to bottom: the mathematics; ``<op>_reference``; the Triton kernel; ``_run``,
which starts it; ``OPERATOR``, the record below; and the public ``<op>``, which checks shapes once. On a CPU tensor that
counts the call and takes PyTorch's own way, else it goes through ``METER.launch(OPERATOR, shape, bytes_moved, *args)``.

``run(empty, *args)`` takes the memory of its outputs, and of any scratch, from ``empty`` alone: under a check that
memory holds NaN and lies between guard bands. It reads no tensor's values on the host, so it also runs on meta tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

#: What an operator gives back: one tensor or several.
Outputs = Tensor | tuple[Tensor, ...]


class Empty(Protocol):
    """Where a launcher takes memory from: ``torch.empty``, or the meter's guarded form of it."""

    def __call__(self, size: tuple[int, ...], /, *, dtype: torch.dtype, device: torch.device) -> Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """The contract of one operator.

    ``reference(*args)`` gives what ``run(empty, *args)`` must give, and is called first; it must not change ``args``.
    ``tolerance`` is the relative L2 allowed, by dtype of the first argument. ``repeats``: the same bits when launched
    twice. ``writes`` are the numbers of the arguments written in place; ``written(*args)`` then reads back what was
    written, which the reference gives behind its outputs. ``inputs(shape, dtype, device)`` makes arguments of one size;
    ``edges`` are small sizes at the operator's edges, ``large`` those of real models. In a shape the first number is
    what varies from step to step. ``least_norm``: rows below this norm are measured against it (for
    results near 0 that only matter beside 1, as log-probabilities).
    """

    name: str
    run: Callable[..., Outputs]
    reference: Callable[..., Outputs]
    inputs: Callable[[tuple[int, ...], torch.dtype, torch.device], tuple[Any, ...]]
    edges: tuple[tuple[int, ...], ...]
    large: tuple[tuple[int, ...], ...]
    tolerance: Mapping[torch.dtype, float]
    least_norm: float = 0.0
    repeats: bool = True
    writes: tuple[int, ...] = ()
    written: Callable[..., tuple[Tensor, ...]] | None = None

    def __post_init__(self) -> None:
        if bool(self.writes) != (self.written is not None):
            raise ValueError(f"{self.name}: an operator that writes arguments also says how to read them back")

    def results(self, outputs: Outputs, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
        """All that a launch produced: its outputs, then what it wrote into its arguments."""
        got = (outputs,) if isinstance(outputs, Tensor) else outputs
        return got if self.written is None else got + self.written(*args)


def tolerances(*, float32: float, bfloat16: float, float16: float) -> dict[torch.dtype, float]:
    """The relative L2 allowed in each dtype that the engine computes in."""
    return {torch.float32: float32, torch.bfloat16: bfloat16, torch.float16: float16}


#: For operators that compute in float32 and round once, as their references do: by one last place they may differ.
ROUNDED_ONCE = tolerances(float32=1e-5, bfloat16=2**-7, float16=2**-10)


def noise(size: tuple[int, ...], dtype: torch.dtype, device: torch.device, scale: float = 1.0) -> Tensor:
    """Normal numbers for ``inputs``: the same for the same size, drawn on the CPU so that every device gets them."""
    if device.type == "meta":
        return torch.empty(size, dtype=dtype, device=device)
    generator = torch.Generator().manual_seed(sum((i + 2) * n for i, n in enumerate(size)))
    return (torch.randn(size, generator=generator) * scale).to(device, dtype)


def seeded(size: tuple[int, ...], device: torch.device) -> torch.Generator | None:
    """For ``inputs`` that are too many to draw on the CPU: the same numbers for the same size on one kind of device."""
    if device.type == "meta":
        return None
    return torch.Generator(device).manual_seed(sum((i + 2) * n for i, n in enumerate(size)))
