"""What a worker runs on, in plain values: noted with a run, so that its figures can be compared with another's."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

#: The kind of event that holds it, one a worker.
ENVIRONMENT_EVENT = "environment"

_LIBRARIES = ("torch", "triton", "numpy", "pillow", "pyarrow", "duckdb", "prefect", "llguidance")
_DRIVER, _GPUS = Path("/proc/driver/nvidia/version"), Path("/proc/driver/nvidia/gpus")


def environment() -> dict[str, Any]:
    """Versions, processor, memory and GPUs of this machine; what cannot be found out is null or left out."""
    return {
        "zellige": _version("zellige"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "host": platform.node(),
        "processor": _first(Path("/proc/cpuinfo"), r"model name\s*:\s*(.+)"),
        "processors": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": [_first(gpu / "information", r"Model:\s*(.+)") for gpu in _listed(_GPUS)],
        "gpu_driver": _first(_DRIVER, r"Kernel Module(?: for \S+)?\s+([\d.]+)"),
        "libraries": {name: found for name in _LIBRARIES if (found := _version(name)) is not None},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _first(file: Path, pattern: str) -> str | None:
    """What the first line of ``file`` that holds ``pattern`` says in it."""
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            found = (re.search(pattern, line) for line in lines)
            return next((match[1].strip() for match in found if match), None)
    except OSError:
        return None
