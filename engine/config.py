"""How the engine runs: one typed object, from configs/engine.toml and what the caller asked for."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import torch

DEFAULTS = Path(__file__).parent.parent / "configs" / "engine.toml"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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
        table = tomllib.loads(DEFAULTS.read_text(encoding="utf-8"))
        if kind not in table or (kind == "cpu" and device != kind):
            raise ConfigError(f"device {device!r} is not one of cpu, cuda, cuda:N")
        if kind == "cuda" and not torch.cuda.is_available():
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
        return torch.device(self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]
