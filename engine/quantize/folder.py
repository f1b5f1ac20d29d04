"""Writes a checkpoint folder piece by piece: no more of it is held than a file of weights."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

#: Bytes of weights in one file, about.
SHARD_BYTES = 4 << 30
#: Files of the source that are copied: everything but weights and what is said of those.
_COPIED = (".json", ".jinja", ".txt", ".model")
_OWN = ("config.json", "manifest.json", "model.safetensors.index.json", "metrics.json", "quantization.json")


class FolderWriter:
    """``folder`` appears with ``finish``; until then everything lies beside it in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._draft = folder.with_name(folder.name + ".partial")
        shutil.rmtree(self._draft, ignore_errors=True)
        self._draft.mkdir(parents=True)
        self._held: dict[str, Tensor] = {}
        self._held_bytes = 0
        self._files: list[list[str]] = []
        #: Of all weights so far.
        self.bytes = 0

    def add(self, name: str, tensor: Tensor) -> None:
        self._held[name] = tensor.cpu().contiguous()
        self._held_bytes += tensor.nbytes
        self.bytes += tensor.nbytes
        if self._held_bytes >= SHARD_BYTES:
            self._flush()

    def finish(self, source: Path, config: dict[str, Any], report: dict[str, Any]) -> None:
        """Everything beside the weights, then the whole folder under its name."""
        self._flush()
        names = ["model.safetensors"]
        if len(self._files) > 1:
            names = [f"model-{i:05}-of-{len(self._files):05}.safetensors" for i in range(1, len(self._files) + 1)]
            where = {tensor: name for name, tensors in zip(names, self._files, strict=True) for tensor in tensors}
            _write_json(
                self._draft / "model.safetensors.index.json",
                {"metadata": {"total_size": self.bytes}, "weight_map": where},
            )
        for i, name in enumerate(names):
            self._piece(i).rename(self._draft / name)
        for path in sorted(source.iterdir()):
            licence = path.name.upper().startswith(("LICENSE", "NOTICE"))
            if path.is_file() and path.name not in _OWN and (path.suffix in _COPIED or licence):
                shutil.copyfile(path, self._draft / path.name)
        _write_json(self._draft / "config.json", config)
        sums = {path.name: _sha256(path) for path in sorted(self._draft.iterdir())}
        _write_json(self._draft / "manifest.json", {"files": sums})
        write_report(self._draft, report)
        self._draft.rename(self.folder)

    def discard(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self._draft, ignore_errors=True)

    def _piece(self, number: int) -> Path:
        return self._draft / f"{number}.safetensors.part"

    def _flush(self) -> None:
        if not self._held and self._files:
            return
        piece = self._piece(len(self._files))
        save_file(self._held, str(piece), metadata={"format": "pt"})
        piece.chmod(0o644)
        self._files.append(list(self._held))
        self._held, self._held_bytes = {}, 0


def write_report(folder: Path, report: dict[str, Any]) -> None:
    """What was done to the weights and what it cost, for people to read; the engine does not."""
    _write_json(folder / "quantization.json", report)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
