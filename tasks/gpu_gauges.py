"""Temperature, power and memory of this machine's NVIDIA GPUs, where the extra ``gpu`` is installed."""

from __future__ import annotations

import importlib
from typing import Any


class GpuGauges:
    """Reads all GPUs of the machine; where there is no library, no driver or no GPU, nothing."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._devices: list[Any] = []
        try:
            self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            self._devices = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(self._nvml.nvmlDeviceGetCount())]
        except Exception:  # no library, no driver, or one that answers nothing: each has an error of its own
            self._devices = []

    def read(self) -> dict[str, float | int]:
        """The gauges by column of ``TIMELINE``; those that cannot be read are left out."""
        read = {
            "temperature_c": [self._one(self._temperature, d) for d in self._devices],
            "power_w": [self._one(self._power, d) for d in self._devices],
            "device_memory_bytes": [self._one(self._memory, d) for d in self._devices],
        }
        known = {name: [v for v in values if v is not None] for name, values in read.items()}
        return {name: max(v) if name == "temperature_c" else sum(v) for name, v in known.items() if v}

    def _one(self, gauge: Any, device: Any) -> float | int | None:
        try:
            value: float | int = gauge(device)
        except Exception:  # this GPU has no such gauge
            return None
        return value

    def _temperature(self, device: Any) -> float:
        return float(self._nvml.nvmlDeviceGetTemperature(device, self._nvml.NVML_TEMPERATURE_GPU))

    def _power(self, device: Any) -> float:
        return float(self._nvml.nvmlDeviceGetPowerUsage(device)) / 1000

    def _memory(self, device: Any) -> int:
        return int(self._nvml.nvmlDeviceGetMemoryInfo(device).used)
