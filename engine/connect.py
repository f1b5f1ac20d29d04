"""From a small, picklable spec to an engine: torch is imported only when a local one is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zellige.engine.api import Engine, ObservedEngine

#: The checkpoint that ships with the project: it knows shapes and printed text, not the world.
DEMO_MODEL = Path(__file__).parent / "demo" / "model"
DEMO_NAME = "zellige-demo"


@dataclass(frozen=True)
class EngineSpec:
    """Where answers come from: a checkpoint folder (None: the one that ships) and how it is run, or ``urls``.

    ``device`` is "cpu", "cuda" or "cuda:N"; ``dtype`` is "float32", "bfloat16" or "float16" (None: float32 on a CPU,
    bfloat16 on a GPU). Engines at ``urls`` (``http://host:port/v1``, all of one model) decide both themselves; beside
    them ``model`` is the folder that says what the model of a server other than ours sees.
    """

    model: str | None = None
    device: str | None = None
    dtype: str | None = None
    urls: tuple[str, ...] = ()
    #: Limits of a local engine by name, over those of configs/engine.toml.
    limits: tuple[tuple[str, float], ...] = ()


def open_engine(spec: EngineSpec | str) -> Engine:
    """The engine that ``spec`` names: URLs with commas between them, a checkpoint folder, or both spelled out.

    A local one is loaded; raises FileNotFoundError or CheckpointError with what to do. A remote one is connected by its
    first use; raises EngineError for what is no URL.
    """
    if isinstance(spec, str):
        spec = EngineSpec(urls=split_urls(spec)) if "://" in spec else EngineSpec(model=spec)
    if spec.urls:
        from zellige.engine.remote.client import RemoteEngine

        return RemoteEngine.at(spec.urls, spec.model)
    return open_local(spec)


def open_local(spec: EngineSpec) -> ObservedEngine:
    """Load a checkpoint, on a GPU into a process of its own; raises FileNotFoundError or CheckpointError with what to
    do.
    """
    from zellige.engine.config import in_child

    folder, name = (DEMO_MODEL, DEMO_NAME) if spec.model is None else (Path(spec.model), None)
    limits = dict(spec.limits)
    if in_child(spec.device, limits):
        from zellige.engine.child.engine import ProcessEngine
        from zellige.engine.child.wire import Setup

        return ProcessEngine(Setup(str(folder), spec.device, spec.dtype, name, limits))
    from zellige.engine.local import LocalEngine

    return LocalEngine.load(folder, device=spec.device, dtype=spec.dtype, name=name, limits=limits)


def split_urls(*texts: str) -> tuple[str, ...]:
    """The URLs in texts that hold one or several with commas between them."""
    return tuple(url for text in texts for part in text.split(",") if (url := part.strip()))
