"""How the engine runs: one typed object, from configs/engine.toml and what the caller asked for."""

from __future__ import annotations

import tomllib
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
    cache_bytes: int
    prefix_cache_bytes: int
    vision_cache_bytes: int
    vision_patches: int

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")

    @classmethod
    def load(cls, device: str | None = None, dtype: str | None = None) -> EngineConfig:
        """Settings for a device ("cpu", "cuda", "cuda:N"; None: the CPU); raises ConfigError."""
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
        return cls(device=device, **{**table[kind], **({"dtype": dtype} if dtype else {})})

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]
