"""What NVIDIA's management library says of the GPUs in use, and the Xid errors that the kernel's log holds.

Nothing here is needed to compute: without the library (``nvidia-ml-py``), or for a figure that a card does not have,
there is None.
"""

from __future__ import annotations

import importlib
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

#: Why a card runs slower than it could; the others (idle, clocks set by the user) are nobody's fault.
THROTTLES = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "temperature (driver)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+),? ?(.*)")


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU now. ECC errors are since the driver was loaded; ``throttled`` names reasons, empty for none."""

    device: str
    name: str
    memory_bytes: int
    capability: str
    driver: str | None = None
    temperature_c: int | None = None
    throttled: str | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    pcie_replays: int | None = None

    @property
    def problems(self) -> list[str]:
        """What a person should look at, in words."""
        found = []
        if self.ecc_uncorrected:
            found.append(f"{self.device}: {self.ecc_uncorrected} uncorrected memory errors; restart it, or replace it")
        if self.throttled:
            found.append(f"{self.device} is slowed down: {self.throttled}")
        return found


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the driver wrote to the kernel's log."""

    pci: str
    number: int
    text: str


def devices() -> list[Device]:
    """The GPUs that this process sees."""
    if not torch.cuda.is_available():
        return []
    nvml = _nvml()
    try:
        return [_device(i, nvml) for i in range(torch.cuda.device_count())]
    finally:
        if nvml is not None:
            nvml.nvmlShutdown()


def peers() -> list[tuple[int, int]]:
    """Pairs of GPUs that cannot read each other's memory."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
    return [(i, j) for i, j in pairs if not torch.cuda.can_device_access_peer(i, j)]


def xids() -> list[Xid] | None:
    """The Xid errors in the kernel's log; None where this user may not read it."""
    try:
        log = subprocess.run(["dmesg"], capture_output=True, text=True, errors="replace", check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if log.returncode else xids_in(log.stdout)


def xids_in(log: str) -> list[Xid]:
    """The Xid errors in a kernel log's text."""
    return [Xid(m[1], int(m[2]), m[3].strip()) for m in map(_XID.search, log.splitlines()) if m]


def _nvml() -> Any:
    """The library, started; None where it is not installed or finds no driver."""
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _device(index: int, nvml: Any) -> Device:
    properties = torch.cuda.get_device_properties(index)
    known = Device(
        device=f"cuda:{index}",
        name=properties.name,
        memory_bytes=properties.total_memory,
        capability=f"{properties.major}.{properties.minor}",
    )
    return known if nvml is None else with_figures(known, nvml, f"GPU-{properties.uuid}")


def with_figures(device: Device, nvml: Any, uuid: str) -> Device:
    """``device`` with what the library says of the card of that uuid: CUDA numbers cards in an order of its own."""

    def figure(ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except nvml.NVMLError:
            return None

    handle = figure(lambda: nvml.nvmlDeviceGetHandleByUUID(uuid))
    if handle is None:
        return device
    reasons = figure(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    corrected, uncorrected = nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    since_start = nvml.NVML_VOLATILE_ECC
    return Device(
        device.device,
        device.name,
        device.memory_bytes,
        device.capability,
        driver=figure(nvml.nvmlSystemGetDriverVersion),
        temperature_c=figure(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        throttled=None if reasons is None else ", ".join(text for bit, text in THROTTLES.items() if reasons & bit),
        ecc_corrected=figure(lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, corrected, since_start)),
        ecc_uncorrected=figure(lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, uncorrected, since_start)),
        pcie_replays=figure(lambda: nvml.nvmlDeviceGetPcieReplayCounter(handle)),
    )
