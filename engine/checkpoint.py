"""A checkpoint folder in Hugging Face layout: its files, its identity, and its tensors. Never unpickles anything."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from zellige.engine.quantize.grid import Codes
from zellige.engine.quantize.packed import Packed
from zellige.engine.quantize.scheme import SchemeError, parse_scheme
from zellige.engine.quantize.stored import PARTS, codes_of

#: Weight files up to this size are hashed whole; of larger ones the header and evenly spread blocks are.
WHOLE_BYTES = 256 << 20
SPREAD_BLOCKS, BLOCK_BYTES = 1024, 64 << 10

#: Beside the weights, the files that decide an answer.
SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)


class CheckpointError(Exception):
    """The folder is not a checkpoint that can be used; the message says what is wrong and what to do."""


@dataclass(frozen=True)
class Habits:
    """What can be asked of a model beyond its files: see ``ModelIdentity``."""

    follows_instructions: bool = True
    lines_at_once: int | None = None


class Checkpoint:
    """The files of one folder, checked to be there before anything is loaded."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise CheckpointError(f"{folder}: no such folder; --model takes a checkpoint folder in Hugging Face layout")
        self.folder = folder
        self.config = self.json("config.json")
        self.shards = self._shards()
        self._check_manifest()

    def json(self, name: str, *, required: bool = True) -> dict[str, Any]:
        """A JSON file of the folder as an object; {} where it is absent and not required."""
        path = self.folder / name
        if not path.is_file():
            if required:
                raise CheckpointError(f"{self.folder}: no {name}; copy it from where the checkpoint came from")
            return {}
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path}: not valid JSON ({error}); copy the file again") from error
        if not isinstance(value, dict):
            raise CheckpointError(f"{path}: expected a JSON object")
        return value

    def habits(self) -> Habits:
        """What the folder's zellige.json says about the model; the habits of a large one where it has none."""
        said = self.json("zellige.json", required=False)
        follows, lines = said.get("follows_instructions", True), said.get("lines_at_once")
        if not isinstance(follows, bool) or not (lines is None or (type(lines) is int and lines > 0)):
            raise CheckpointError(
                f"{self.folder / 'zellige.json'}: follows_instructions is true or false, "
                "lines_at_once a number from 1 on"
            )
        return Habits(follows, lines)

    def _shards(self) -> tuple[Path, ...]:
        index = self.json("model.safetensors.index.json", required=False)
        if index:
            names = sorted(set(index.get("weight_map", {}).values()))
            missing = [n for n in names if not (self.folder / n).is_file()]
            if missing or not names:
                raise CheckpointError(f"{self.folder}: the index names weight files that are not there: {missing}")
            return tuple(self.folder / n for n in names)
        single = self.folder / "model.safetensors"
        if single.is_file():
            return (single,)
        pickled = [p.name for ending in ("*.bin", "*.pt", "*.pth", "*.ckpt") for p in self.folder.glob(ending)]
        if pickled:
            raise CheckpointError(
                f"{self.folder}: only pickled weights ({', '.join(sorted(pickled))}); a pickle can run code, so it is "
                "not opened. Convert it to safetensors where you trust it"
            )
        raise CheckpointError(f"{self.folder}: no model.safetensors and no model.safetensors.index.json")

    def _check_manifest(self) -> None:
        """Where the folder holds a manifest.json ({"files": {name: sha256}}), every file in it must match."""
        for name, want in self.json("manifest.json", required=False).get("files", {}).items():
            path = self.folder / name
            if not path.is_file():
                raise CheckpointError(f"{path}: named in manifest.json and not there; copy the checkpoint again")
            have = _sha256(path)
            if have != want:
                raise CheckpointError(
                    f"{path}: sha256 is {have}, manifest.json says {want}; the file is damaged or was changed"
                )

    def fingerprint(self) -> str:
        """16 hex digits that change with any file that decides an answer (weights over 256 MiB: by spread blocks)."""
        digest = hashlib.sha256()
        for name in SMALL_FILES:
            path = self.folder / name
            if path.is_file():
                digest.update(f"{name}:{_sha256(path)}\n".encode())
        for path in self.shards:
            mark = _sha256(path) if path.stat().st_size <= WHOLE_BYTES else _spread_sha256(path)
            digest.update(f"{path.name}:{mark}\n".encode())
        return digest.hexdigest()[:16]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _spread_sha256(path: Path) -> str:
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(1 << 20))
        for i in range(SPREAD_BLOCKS):
            file.seek(max(size - BLOCK_BYTES, 0) * i // (SPREAD_BLOCKS - 1))
            digest.update(file.read(BLOCK_BYTES))
    return digest.hexdigest()


class Weights:
    """The tensors of a checkpoint, handed out once each by name and expected shape.

    Use as a context manager: what was missing, of the wrong shape, or never asked for is reported all at once at the
    end, so that a wrong checkpoint is understood from one message.

    ``packed``: quantised matrices stay so where a kernel takes them. None: on a GPU they do; on a CPU they are written
    out in the engine's dtype once, while loading.
    """

    def __init__(
        self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, *, packed: bool | None = None
    ) -> None:
        self.device, self.dtype = device, dtype
        self._packed = device.type == "cuda" if packed is None else packed
        self._folder = checkpoint.folder
        try:
            self._scheme = parse_scheme(checkpoint.config)
        except SchemeError as error:
            raise CheckpointError(f"{self._folder / 'config.json'}: {error}") from error
        self._stack = ExitStack()
        self._where: dict[str, Any] = {}
        self._problems: list[str] = []
        for path in checkpoint.shards:
            try:
                file = self._stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                self._stack.close()
                raise CheckpointError(f"{path}: not a whole safetensors file ({error}); copy it again") from error
            self._where.update(dict.fromkeys(file.keys(), file))
        self._left = set(self._where)

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()
        if kind is None:
            unknown = sorted(self._left)
            problems = self._problems + [f"{n}: not part of this model" for n in unknown]
            if problems:
                shown = "\n  ".join(problems[:12]) + (
                    f"\n  and {len(problems) - 12} more" if len(problems) > 12 else ""
                )
                raise CheckpointError(f"{self._folder}: the weights do not fit config.json\n  {shown}")

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def ignore(self, name: str) -> None:
        """A tensor that may be there and is not needed."""
        self._left.discard(name)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of a tensor as stored, without reading it; None where there is none of that name."""
        file = self._where.get(name)
        return None if file is None else tuple(file.get_slice(name).get_shape())

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor in the engine's dtype on its device; a problem is noted and an empty tensor of the shape given."""
        have = self.shape(name)
        self._left.discard(name)
        if have is None:
            self._problems.append(f"{name}: missing (expected {list(shape)})")
        elif have != shape:
            self._problems.append(f"{name}: is {list(have)}, expected {list(shape)}")
        else:
            tensor: Tensor = self._where[name].get_tensor(name)
            if tensor.is_floating_point():
                return tensor.to(self.device, self.dtype)
            self._problems.append(f"{name}: is {tensor.dtype}, expected floating point (a quantised checkpoint?)")
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def matrix(self, name: str, outputs: int, inputs: int) -> Tensor | Packed:
        """The matrix ``name`` (its tensors' names without their last part), dense (outputs, inputs) or packed."""
        if (found := self._codes(name, outputs, inputs)) is None:
            return self.take(f"{name}.weight", outputs, inputs)
        codes, order = found
        if self._packed and order is None and (packed := Packed.of(codes, self.dtype)) is not None:
            return packed
        dense = codes.dense().to(self.dtype)
        # Groups of inputs that are no neighbours: put where they belong.
        return dense if order is None else torch.empty_like(dense).index_copy_(1, order, dense)

    def dense(self, name: str, outputs: int, inputs: int) -> Tensor:
        """The matrix ``name`` (outputs, inputs), written out where it is quantised."""
        found = self.matrix(name, outputs, inputs)
        return found.dense(self.dtype) if isinstance(found, Packed) else found

    def _codes(self, name: str, outputs: int, inputs: int) -> tuple[Codes, Tensor | None] | None:
        """The integers of a matrix and the order of its inputs; None where it is not quantised."""
        if self._scheme is None or not any(f"{name}.{p}" in self._where for p in ("weight_scale", "scales")):
            return None

        def read(part: str) -> Tensor | None:
            file = self._where.get(f"{name}.{part}")
            if file is None:
                return None
            tensor: Tensor = file.get_tensor(f"{name}.{part}")
            return tensor.to(self.device)

        self._left.difference_update(f"{name}.{p}" for p in ("weight", *PARTS))
        try:
            return codes_of(read, name, outputs, inputs, self._scheme)
        except SchemeError as error:
            self._problems.append(str(error))
            q = torch.zeros(outputs, inputs, dtype=torch.uint8, device=self.device)
            return Codes(q, torch.zeros(outputs, 1, device=self.device), None, 8, inputs), None

    def refuse(self, problem: str) -> None:
        """Note something else that does not fit."""
        self._problems.append(problem)

    def names(self) -> Iterator[str]:
        return iter(sorted(self._where))
