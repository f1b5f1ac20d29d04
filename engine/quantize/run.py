"""Quantises a checkpoint folder into another one, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from zellige.engine.api import EngineError
from zellige.engine.checkpoint import Checkpoint, CheckpointError
from zellige.engine.config import ConfigError
from zellige.engine.demo.calibration import calibration_cases
from zellige.engine.layers.experts import MixtureOfExperts
from zellige.engine.quantize.folder import FolderWriter, write_report
from zellige.engine.quantize.grid import Codes, Grid, nearest
from zellige.engine.quantize.layerwise import Flow
from zellige.engine.quantize.passages import Opened
from zellige.engine.quantize.plan import Plan, PlanError
from zellige.engine.quantize.report import quality
from zellige.engine.quantize.rounding import Tally, round_layer
from zellige.engine.quantize.scheme import written
from zellige.engine.quantize.stored import tensors_of
from zellige.engine.quantize.units import LayerParts, dense_experts

_LAYERS = "model.language_model.layers"


@torch.inference_mode()
def quantize(
    source: Path,
    to: Path,
    plan: Plan,
    *,
    samples: int,
    device: str | None,
    dtype: str | None,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Write ``source`` to the new folder ``to``; what was done, as ``quantization.json`` holds it.

    Raises CheckpointError, ConfigError, or PlanError, where there is something at ``to`` as well.
    """
    if to.exists():
        raise PlanError(f"{to}: is there already; name a new folder")
    if Checkpoint(source).config.get("quantization_config"):
        raise CheckpointError(f"{source}: is quantised already; start from the checkpoint that it was made of")
    opened = Opened(source, device, dtype)
    with ExitStack() as stack:
        stored = _Stored(opened.checkpoint, stack)
        plan = plan.settled(dict(_matrices(opened, stored)))
        writer = FolderWriter(to)
        stack.callback(writer.discard)
        job = _Job(opened, stored, plan, writer)
        job.layers(samples, tell)
        tell("the rest")
        job.others()
        report = job.report(samples)
        writer.finish(source, job.config(), report)
    return report


def quantize_and_judge(
    source: Path,
    to: Path,
    plan: Plan,
    *,
    samples: int,
    judges: int,
    device: str | None,
    dtype: str | None,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """``quantize``, and then what it cost on ``judges`` held-out samples; raises EngineError."""
    try:
        report = quantize(source, to, plan, samples=samples, device=device, dtype=dtype, tell=tell)
        if judges:
            report["quality"] = quality(source, to, judges, device, tell)
            write_report(to, report)
    except (CheckpointError, ConfigError, OSError) as error:
        raise EngineError(str(error)) from error
    return report


class _Stored:
    """The tensors of the source as they are."""

    def __init__(self, checkpoint: Checkpoint, stack: ExitStack) -> None:
        files = [stack.enter_context(safe_open(path, framework="pt")) for path in checkpoint.shards]
        self._where = {name: file for file in files for name in file.keys()}  # noqa: SIM118
        self.bytes = sum(path.stat().st_size for path in checkpoint.shards)

    def names(self) -> Iterator[str]:
        return iter(self._where)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._where[name].get_slice(name).get_shape())

    def tensor(self, name: str) -> Tensor:
        found: Tensor = self._where[name].get_tensor(name)
        return found


class _Job:
    def __init__(self, opened: Opened, stored: _Stored, plan: Plan, writer: FolderWriter) -> None:
        self._opened, self._stored, self._plan, self._writer = opened, stored, plan, writer
        self._dtype = stored.tensor("model.language_model.embed_tokens.weight").dtype
        self._done: dict[str, Grid] = {}
        self._kept: list[str] = []
        #: Tensors of the source that others stand for.
        self._replaced: set[str] = set()
        self._beyond = False
        self._tally = Tally()

    def layers(self, samples: int, tell: Callable[[str], None]) -> None:
        """The decoder's layers, each calibrated with what those before it give once they are quantised."""
        tell(f"drawing {samples} samples to calibrate with")
        flow = Flow(self._opened, self._opened.passages(calibration_cases(samples)))
        layers = self._opened.model.layers
        for i, layer in enumerate(layers):
            tell(f"layer {i + 1} of {len(layers)}")
            parts = LayerParts.of(layer, f"{_LAYERS}.{i}", self._plan)
            if any(p.grid is not None for p in parts.parts):
                round_layer(parts, flow.observe(layer), self._plan, self._dtype, self._tally)
                self._write(f"{_LAYERS}.{i}", parts, LayerParts.of(layer, "", self._plan))
            flow.advance(parts.rebuilt(layer), i)

    def others(self) -> None:
        """Matrices elsewhere that a rule chose, without calibration, and everything else as it is."""
        for name in self._stored.names():
            module = name.removesuffix(".weight")
            if name in self._replaced or module in self._done:
                continue
            tensor = self._stored.tensor(name)
            is_matrix = tensor.ndim == 2 and module != name
            grid = self._plan.grid(module, tensor.shape[1]) if is_matrix else None
            if grid is None:
                self._writer.add(name, tensor)
                self._kept += [module] if is_matrix else []
                continue
            w = tensor.to(self._opened.device).float()
            self._add(module, grid, nearest(w, grid, torch.ones_like(w[0]), self._dtype))
            self._tally.matrices += 1
        if not self._done:
            raise PlanError("nothing would be quantised: every matrix is kept, or its inputs are no multiple of 32")

    def config(self) -> dict[str, Any]:
        quantization = written(self._done, self._kept, beyond=self._beyond)
        return {**self._opened.checkpoint.config, "quantization_config": quantization}

    def report(self, samples: int) -> dict[str, Any]:
        return {
            "plan": asdict(self._plan),
            "calibration_samples": samples,
            "layout": "zellige" if self._beyond else "compressed-tensors",
            **asdict(self._tally),
            "bytes_before": self._stored.bytes,
            "bytes": self._writer.bytes,
        }

    def _add(self, module: str, grid: Grid, codes: Codes) -> None:
        self._done[module] = grid
        self._beyond |= codes.kept is not None
        for part, tensor in tensors_of(codes).items():
            self._writer.add(f"{module}.{part}", tensor)

    def _write(self, name: str, new: LayerParts, old: LayerParts) -> None:
        apart = any(p.codes is not None and ".experts." in p.name for p in new.parts)
        for part in new.parts:
            if part.codes is not None and part.grid is not None:
                self._add(part.name, part.grid, part.codes)
            elif apart and ".experts." in part.name:
                self._writer.add(f"{part.name}.weight", part.w.to(self._dtype))
                self._kept.append(part.name)
        if apart:
            self._replaced |= {f"{name}.mlp.experts.{p}" for p in ("gate_up_proj", "down_proj")}
        # Divided by scales; in float32, because rounding them anew would cost more than their bytes are worth.
        makers = [("input_layernorm", new.norm1, old.norm1), ("post_attention_layernorm", new.norm2, old.norm2)]
        if new.router is not None and old.router is not None:
            makers.append(("mlp.gate", new.router, old.router))
            self._kept.append(f"{name}.mlp.gate")
        for part_name, now, before in makers:
            if not torch.equal(now, before):
                self._replaced.add(f"{name}.{part_name}.weight")
                self._writer.add(f"{name}.{part_name}.weight", now)


def _matrices(opened: Opened, stored: _Stored) -> Iterator[tuple[str, int]]:
    """Every matrix and its inputs, experts one by one."""
    for name in stored.names():
        shape = stored.shape(name)
        if len(shape) == 2 and name.endswith(".weight"):
            yield name.removesuffix(".weight"), shape[1]
    for i, layer in enumerate(opened.model.layers):
        if isinstance(layer.feed_forward, MixtureOfExperts):
            store = dense_experts(layer.feed_forward)
            for e in range(len(store.down)):
                for part, w in (("gate", store.gate_up), ("up", store.gate_up), ("down", store.down)):
                    yield f"{_LAYERS}.{i}.mlp.experts.{e}.{part}_proj", w.shape[1]
