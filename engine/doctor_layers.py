"""A model compared with itself, place by place: on a device in its dtype against float32 on the CPU.

For every place there are two errors (relative L2): ``own``, where what goes in is the reference's, so that one wrong
block shows at its own place; and ``running``, where everything before it ran on the device as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from zellige.engine.api import EngineError, ask
from zellige.engine.checkpoint import Checkpoint, CheckpointError, Weights
from zellige.engine.config import ConfigError, EngineConfig
from zellige.engine.layers.experts import MixtureOfExperts
from zellige.engine.layers.watch import Watch
from zellige.engine.models.qwen3_vl import load_model
from zellige.engine.processor import Processor, PromptImage
from zellige.engine.runner import Runner
from zellige.kernels import vision_attention as attention
from zellige.kernels.vision_qkv_rope import vision_qkv_rope

PROMPT = "Describe the image."
#: Own errors allowed: of a vision block, which is a sum with its input, and elsewhere.
BLOCK = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 6e-3}
ELSEWHERE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
#: A token near the border of two experts takes the other one in another dtype: so much of the rows of a decoder layer
#: with experts is left out, the worst ones.
ROUTED_OTHERWISE = 0.05
#: How far the sum of one query's probabilities may be from 1; bfloat16 rounds each of them by up to its last place.
ROW_SUM = {torch.float32: 3e-4, torch.float16: 3e-4, torch.bfloat16: 2**-9}


class DoctorError(EngineError):
    """What was asked for cannot be looked at; the message says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """What comes out of one place. ``row_sums``: least and greatest sum of a query's probabilities in that block."""

    name: str
    shape: tuple[int, ...]
    own: float
    running: float
    tolerance: float
    row_sums: tuple[float, float] | None = None
    row_sum_tolerance: float = ROW_SUM[torch.float32]

    @property
    def sound(self) -> bool:
        return self.own <= self.tolerance and all(abs(s - 1) <= self.row_sum_tolerance for s in self.row_sums or ())


@dataclass(frozen=True, slots=True)
class LayerReport:
    """``first`` is the first place that is not sound; None: all are. ``dumped`` are files written."""

    model: str
    device: str
    dtype: str
    size: tuple[int, int]
    patches: int
    tokens: int
    places: tuple[Place, ...]
    first: str | None
    dumped: tuple[str, ...] = ()


def compare_layers(
    folder: Path, pixels: NDArray[np.uint8], device: str, dtype: str, dump: Sequence[str] = (), to: Path = Path()
) -> LayerReport:
    """Compare the tower and the decoder on one image; raises RequestRejected or DoctorError.

    What comes out of the places in ``dump`` is written to ``to``: reference, own and running, float32.
    """
    try:
        (trusted, processor), (looked, _) = _runner(folder, "cpu", "float32"), _runner(folder, device, dtype)
    except (CheckpointError, ConfigError) as error:
        raise DoctorError(str(error)) from error
    prompt = processor.prepare(ask(PROMPT, pixels))
    reference: dict[str, Tensor] = {}
    trusted.alone(prompt, prompt.tokens, _recorder(reference), len(prompt.tokens))
    if unknown := sorted(set(dump) - set(reference)):
        raise DoctorError(f"no place called {', '.join(unknown)}; there are {', '.join(reference)}")
    routed = {
        f"decoder layer {i}"
        for i, layer in enumerate(looked.model.layers)
        if isinstance(layer.feed_forward, MixtureOfExperts)
    }
    own, running = _Errors(reference, routed, dump), _Errors(reference, routed, dump)
    looked.alone(prompt, prompt.tokens, own.watch(go_on_with_reference=True), len(prompt.tokens))
    looked.alone(prompt, prompt.tokens, running.watch(go_on_with_reference=False), len(prompt.tokens))
    sums = row_sums(looked, prompt.images[0], reference)
    dtype_of = looked.config.torch_dtype
    places = tuple(
        Place(
            name,
            tuple(x.shape),
            own.of[name],
            running.of[name],
            (BLOCK if name.startswith("vision block") else ELSEWHERE)[dtype_of],
            sums.get(name),
            ROW_SUM[dtype_of],
        )
        for name, x in reference.items()
    )
    height, width = prompt.images[0].pixels.shape[:2]
    return LayerReport(
        model=folder.resolve().name,
        device=device,
        dtype=dtype,
        size=(width, height),
        patches=math.prod(prompt.images[0].grid),
        tokens=len(prompt.tokens),
        places=places,
        first=next((p.name for p in places if not p.sound), None),
        dumped=tuple(str(_dumped(to, n, reference[n], own.kept[n], running.kept[n])) for n in dump),
    )


def _runner(folder: Path, device: str, dtype: str) -> tuple[Runner, Processor]:
    # The engine's cache is not used: a sequence that is computed alone has its own.
    config, checkpoint = replace(EngineConfig.load(device, dtype), cache_bytes=0), Checkpoint(folder)
    processor = Processor(checkpoint)
    with Weights(checkpoint, config.torch_device, config.torch_dtype) as weights:
        model = load_model(weights, checkpoint.config)
    return Runner(model, processor.rules, config), processor


def _recorder(into: dict[str, Tensor]) -> Watch:
    def watch(name: str, x: Tensor) -> Tensor:
        into[name] = x
        return x

    return watch


class _Errors:
    """The relative L2 of each place, and what comes out of those in ``keep``; ``routed`` are layers with experts."""

    def __init__(self, reference: dict[str, Tensor], routed: set[str], keep: Sequence[str]) -> None:
        self._reference, self._routed, self._keep = reference, routed, keep
        self.of: dict[str, float] = {}
        self.kept: dict[str, Tensor] = {}

    def watch(self, *, go_on_with_reference: bool) -> Watch:
        """A watch that measures; with the reference going on, what is wrong in one place is not seen in the next."""

        def look(name: str, x: Tensor) -> Tensor:
            want, got = self._reference[name], x.float().cpu()
            self.of[name] = relative_l2(got, want, ROUTED_OTHERWISE if name in self._routed else 0.0)
            if name in self._keep:
                self.kept[name] = got
            return want.to(x.device, x.dtype) if go_on_with_reference else x

        return look


def relative_l2(got: Tensor, want: Tensor, left_out: float = 0.0) -> float:
    """‖got − want‖ / ‖want‖ without that share of the rows, the worst; infinite where ``got`` is not finite."""
    if not bool(got.isfinite().all()):
        return math.inf
    off, norm = (torch.linalg.vector_norm(t.flatten(1), dim=1, dtype=torch.float64) for t in (got - want, want))
    kept = (off / norm.clamp(min=1e-30)).argsort()[: len(off) - int(left_out * len(off))]
    return float(off[kept].norm() / norm[kept].norm().clamp(min=1e-30))


@torch.inference_mode()
def row_sums(runner: Runner, image: PromptImage, reference: dict[str, Tensor]) -> dict[str, tuple[float, float]]:
    """By vision block the least and greatest sum of a query's probabilities: its attention over values of 1."""
    tower = runner.model.tower
    x, cos, sin, bounds = tower.placed(runner.images.patches(image), [image.grid])
    found, into = {}, "patch embedding"
    for i, block in enumerate(tower.blocks):
        x = reference[into].to(x.device, x.dtype)
        q, k, _ = vision_qkv_rope(block.qkv(block.norm1(x)), cos, sin, block.heads)
        sums = _attended_ones(q, k, bounds, 2 * cos.shape[1])
        into = f"vision block {i}"
        found[into] = float(sums.min()), float(sums.max())
    return found


def _attended_ones(q: Tensor, k: Tensor, bounds: tuple[int, ...], size: int) -> Tensor:
    if not q.is_cuda:
        ones = torch.ones_like(q, dtype=torch.float32)
        return attention.vision_attention(q.float(), k.float(), ones, bounds, size)
    # The kernel in its own dtype and its result in float32: bfloat16 knows no number between 1 and 1.0078.
    sums = attention.OPERATOR.run(_float32, q, k, torch.ones_like(q), bounds, size)
    assert isinstance(sums, Tensor)
    return sums


def _float32(size: tuple[int, ...], /, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(size, dtype=torch.float32, device=device)


def _dumped(folder: Path, name: str, reference: Tensor, own: Tensor, running: Tensor) -> Path:
    """Write one place and read back what stands in the file: every shape must be the reference's."""
    path = folder / f"{name.replace(' ', '-')}.safetensors"
    tensors = {"reference": reference, "own": own, "running": running}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file({key: t.contiguous() for key, t in tensors.items()}, path)
        with safe_open(path, framework="pt") as file:
            shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise DoctorError(f"{path}: {error.strerror or error}") from error
    if any(shapes.get(key) != tuple(reference.shape) for key in tensors):
        raise DoctorError(f"{path}: holds {shapes}, expected {tuple(reference.shape)} for each")
    return path
