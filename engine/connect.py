"""From a small, picklable spec to an engine: torch is imported only when a local one is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zellige.engine.api import Engine

#: The checkpoint that ships with the project: it knows shapes and printed text, not the world.
DEMO_MODEL = Path(__file__).parent / "demo" / "model"
DEMO_NAME = "zellige-demo"


@dataclass(frozen=True)
class EngineSpec:
    """Where answers come from: a checkpoint folder (None: the one that ships), and how it is run.

    ``device`` is "cpu", "cuda" or "cuda:N"; ``dtype`` is "float32", "bfloat16" or "float16" (None: float32 on a CPU,
    bfloat16 on a GPU).
    """

    model: str | None = None
    device: str | None = None
    dtype: str | None = None


def open_engine(spec: EngineSpec) -> Engine:
    """Load the engine that ``spec`` names; raises FileNotFoundError or CheckpointError with what to do."""
    from zellige.engine.local import LocalEngine

    if spec.model is None:
        return LocalEngine.load(DEMO_MODEL, device=spec.device, dtype=spec.dtype, name=DEMO_NAME)
    return LocalEngine.load(Path(spec.model), device=spec.device, dtype=spec.dtype)
