"""How the engine runs: one typed object, from configs/engine.toml and what the caller asked for."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

DEFAULTS = Path(__file__).parent.parent / "configs" / "engine.toml"
DTYPES = ("float32", "bfloat16", "float16")


class ConfigError(Exception):
    """A setting is wrong; the message says which and what is possible."""


@dataclass(frozen=True)
class EngineConfig:
    """Limits of one engine; see configs/engine.toml for what each means."""

    device: str
    dtype: str
    max_sequences: int
    step_tokens: int
    block_tokens: int
    vision_cache_bytes: int
    vision_patches: int
    #: Either a number of bytes for keys and values, or what of a GPU's memory the engine may use in all.
    cache_bytes: int | None = None
    gpu_memory_fraction: float | None = None
    #: None: as much as is free.
    prefix_cache_bytes: int | None = None
    #: Whether the engine computes in a process of its own, which may die and be started again.
    child: bool = False

    def __post_init__(self) -> None:
        if (self.cache_bytes is None) == (self.gpu_memory_fraction is None):
            raise ConfigError("one of cache_bytes and gpu_memory_fraction is to be set")
        if self.gpu_memory_fraction is not None and self.device == "cpu":
            raise ConfigError("gpu_memory_fraction is a GPU's; on a CPU set cache_bytes")
        if self.gpu_memory_fraction is not None and not 0 < self.gpu_memory_fraction <= 1:
            raise ConfigError(f"gpu_memory_fraction {self.gpu_memory_fraction} is not between 0 and 1")
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")

    @classmethod
    def load(
        cls, device: str | None = None, dtype: str | None = None, limits: Mapping[str, float] | None = None
    ) -> EngineConfig:
        """Settings for a device ("cpu", "cuda", "cuda:N"; None: the CPU), ``limits`` over them; raises ConfigError."""
        device = device or "cpu"
        kind = device.partition(":")[0]
        table = _tables()
        if kind not in table or (kind == "cpu" and device != kind):
            raise ConfigError(f"device {device!r} is not one of cpu, cuda, cuda:N")
        if kind == "cuda" and not _sees_cuda():
            raise ConfigError(f"device {device!r}: this torch sees no CUDA device; use --device cpu")
        known = {f.name for f in fields(cls)} - {"device"}
        if unknown := set(table[kind]) - known:
            raise ConfigError(f"{DEFAULTS}: [{kind}] has unknown keys {sorted(unknown)}")
        if wrong := [name for name in limits or {} if name not in known - {"dtype"}]:
            raise ConfigError(f"engine.{wrong[0]}: no such setting; there are {', '.join(sorted(known - {'dtype'}))}")
        base = table[kind]
        for one, other in (("cache_bytes", "gpu_memory_fraction"), ("gpu_memory_fraction", "cache_bytes")):
            if one in (limits or {}):
                base.pop(other, None)  # two ways to say the same: the one that was said counts
        return cls(device=device, **{**base, **(limits or {}), **({"dtype": dtype} if dtype else {})})

    @property
    def torch_device(self) -> torch.device:
        import torch

        return torch.device(self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        import torch

        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype


def in_child(device: str | None, limits: Mapping[str, float]) -> bool:
    """Whether an engine on this device has a process of its own; needs no torch, which that process alone imports.

    False for a device that there is not: loading tells.
    """
    kind = (device or "cpu").partition(":")[0]
    return bool(limits.get("child", _tables().get(kind, {}).get("child", False)))


def _tables() -> dict[str, Any]:
    return tomllib.loads(DEFAULTS.read_text(encoding="utf-8"))


def _sees_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
