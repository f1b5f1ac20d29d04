"""What ``zellige doctor`` looks at, in plain values: the machine, every operator, the layers of a model, a command."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from zellige.engine.api import EngineError
from zellige.engine.connect import DEMO_MODEL
from zellige.kernels import devices

_PACKAGES = ("zellige", "torch", "triton", "nvidia-ml-py")


class Doctor:
    """Looks at ``device`` (None: the first GPU, the CPU where there is none)."""

    def __init__(self, device: str | None = None) -> None:
        self.device = device or ("cuda:0" if torch.cuda.is_available() else "cpu")

    def machine(self) -> dict[str, Any]:
        """Versions, GPUs, Xid errors of the kernel's log (None: it may not be read) and what is wrong, in words."""
        found, errors = devices.devices(), devices.xids()
        problems = [problem for device in found for problem in device.problems]
        problems += [f"Xid {x.number} of the GPU at PCI {x.pci}: {x.text}" for x in errors or []]
        return {
            "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
            "cuda": torch.version.cuda,
            "devices": [asdict(device) for device in found],
            "no_peer_access": [list(pair) for pair in devices.peers()],
            "xids": None if errors is None else [asdict(x) for x in errors],
            "problems": problems,
        }

    def operators(self) -> Iterator[dict[str, Any]]:
        """One self-test after the other; a whole process of its own, so that none can spoil another."""
        from zellige.kernels.selftest import selftest

        for tested in selftest(self.device):
            yield asdict(tested.tally) | {"verdict": tested.tally.verdict, "faults": list(tested.faults)}

    def layers(
        self, pixels: NDArray[np.uint8], model: str | None, dtype: str | None, dump: Sequence[str], to: Path
    ) -> dict[str, Any]:
        """The model against itself, place by place; raises EngineError for what cannot be compared."""
        from zellige.engine.doctor_layers import compare_layers

        folder = DEMO_MODEL if model is None else Path(model)
        report = compare_layers(folder, pixels, self.device, dtype or "bfloat16", dump, to)
        plain = asdict(report)
        for place, shown in zip(report.places, plain["places"], strict=True):
            shown["sound"] = place.sound
        return plain

    def sanitized(self, command: Sequence[str], tool: str) -> dict[str, Any]:
        """``command`` under compute-sanitizer: its status, and by operator what the tool objected to.

        No command is the self-test of every operator. Raises EngineError where the tool is missing or unknown.
        """
        from zellige.kernels.sanitizer import TOOLS, SanitizerMissing, sanitize
        from zellige.kernels.selftest import COMMAND

        if tool not in TOOLS:
            raise EngineError(f"{tool!r} is not one of compute-sanitizer's tools: {', '.join(TOOLS)}")
        try:
            status, found = sanitize(command or [*COMMAND, "cuda"], tool)
        except SanitizerMissing as error:
            raise EngineError(str(error)) from error
        return {"tool": tool, "status": status, "found": [asdict(f) for f in found]}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
