"""Operators with one fault planted: a few characters of the real file changed, so the fault is of the kernel in use."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zellige.kernels.contract import Operator

KERNELS = Path(__file__).parent.parent.parent / "kernels"


@dataclass(frozen=True)
class Plant:
    """``old`` becomes ``new`` in ``kernels/<file>.py``; the meter must find one of ``kinds`` at one of ``sizes``."""

    what: str
    file: str
    old: str
    new: str
    kinds: frozenset[str]
    sizes: tuple[tuple[int, ...], ...]
    record: str = "OPERATOR"

    def operator(self, folder: Path) -> Operator:
        """The broken one; raises AssertionError where the file no longer holds what is to be changed."""
        text = (KERNELS / f"{self.file}.py").read_text(encoding="utf-8")
        assert text.count(self.old) == 1, f"{self.file}: {self.old!r} stands there {text.count(self.old)} times"
        return load(folder, f"broken_{self.file}", text.replace(self.old, self.new), self.record)


def load(folder: Path, name: str, text: str, record: str) -> Operator:
    """A record of a module made from ``text``; from a file, because Triton reads a kernel's source."""
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    operator: Operator = getattr(module, record)
    return operator


def plant(
    what: str, file: str, old: str, new: str, kinds: str, *sizes: tuple[int, ...], record: str = "OPERATOR"
) -> Plant:
    return Plant(what, file, old, new, frozenset(kinds.split()), sizes, record)


PLANTS = (
    plant("the last column is never written", "rms_norm",
          "inside = (row < T) & (col < H)", "inside = (row < T) & (col < H - 1)", "nonfinite", (3, 72)),
    plant("the last row is never written", "rms_norm",
          "inside = (row < T) & (col < H)", "inside = (row < T - 1) & (col < H)", "nonfinite", (17, 256)),
    plant("a mask one column too wide", "rms_norm",
          "inside = (row < T) & (col < H)", "inside = (row < T) & (col <= H)", "guard", (1, 72)),
    plant("the mean over the tile and not the row", "rms_norm", "/ H + eps", "/ COLS + eps", "tolerance", (5, 72)),
    plant("the next row is read when there are 2 or 3", "rms_norm",
          "v = tl.load(x + row * x_stride", "v = tl.load(x + (row + T // 2 % 2) * x_stride", "tolerance nonfinite",
          (2, 64), (3, 64)),
    plant("the sum is stored without the residual", "rms_norm",
          "rounded = v.to(total.dtype.element_ty)", "rounded = tl.load(x + row * x_stride + col, mask=inside)",
          "tolerance", (3, 72), record="ADD_OPERATOR"),
    plant("another launch, other bits", "rms_norm", "            eps,\n            ADD=",
          "            eps + 4e-6 * float(torch.rand(())),\n            ADD=", "repeat", (17, 256)),
    plant("a weight kept from the first call", "rms_norm", "            weight.contiguous(),\n            out,",
          "            vars(_run).setdefault('w', weight),\n            out,", "tolerance",
          (2, 64), (3, 32)),
    plant("an error of a copy is swallowed", "rms_norm", "    return out, total\n",
          "    try:\n        return out.new_full(out.shape, torch.nan).copy_(out[:, 1:]), total\n"
          "    except RuntimeError:\n        return empty(x.shape, dtype=x.dtype, device=x.device), total\n",
          "nonfinite", (3, 72)),
    plant("gate and up changed places", "silu_mul", "y = gate / (1.0 + tl.exp(-gate)) * up",
          "y = up / (1.0 + tl.exp(-up)) * gate", "tolerance", (5, 34)),
    plant("a piece of a long row written where the first stands", "silu_mul",
          "col = pid % blocks * COLS", "col = pid // blocks * COLS", "nonfinite", (1, 4100)),
    plant("blocks counted downwards: the last is never started", "gelu_tanh",
          "_gelu_tanh_kernel[(-(-count // _BLOCK),)]", "_gelu_tanh_kernel[(max(count // _BLOCK, 1),)]",
          "nonfinite", (129, 16)),
    plant("a coefficient ten times too large", "gelu_tanh",
          "twice * v * (1.0 + 0.044715 *", "twice * v * (1.0 + 0.44715 *",
          "tolerance", (3, 7)),
    plant("the second half is turned with the first already turned", "vision_qkv_rope",
          "b * c + a * s, b)", "b * c + (a * c - b * s) * s, b)", "tolerance", (3, 16, 72)),
    plant("angles of the head's number instead of the patch's", "vision_qkv_rope",
          "c = tl.load(cos + patch * HALF", "c = tl.load(cos + (head % 2) * HALF", "tolerance", (33, 1, 72)),
    plant("angles in bfloat16", "vision_qkv_rope",
          "cos.contiguous()", "cos.bfloat16().float()", "tolerance", (3, 2, 64)),
    plant("only full tiles are started", "vision_qkv_rope",
          "[(-(-rows // tile_rows),)]", "[(rows // tile_rows + 0 ** rows,)]",
          "nonfinite", (33, 1, 72)),
    plant("the norm over half a head", "text_qkv_rope",
          "/ (2 * HALF) + eps", "/ HALF + eps", "tolerance", (3, 4, 2, 64)),
    plant("every head has the first one's weight", "text_qkv_rope",
          "by = weight + head * (2 * HALF)", "by = weight + head * 0", "tolerance", (3, 4, 2, 64)),
    plant("without eps an empty row is NaN", "text_qkv_rope", "/ (2 * HALF) + eps", "/ (2 * HALF)", "nonfinite",
          (3, 4, 2, 64)),
    plant("an expert is chosen again and again", "route_topk",
          "left = left & (number != first)", "left = left & (number != -1)", "tolerance", (33, 128, 8)),
    plant("weights that do not add up to one", "route_topk", "w = e / tl.sum(e, axis=1, keep_dims=True)", "w = e",
          "tolerance", (3, 8, 2)),
    plant("the last piece of the vocabulary is left out", "greedy", "pieces = -(-V // CHUNK)", "pieces = V // CHUNK",
          "tolerance", (3, 9001)),
    plant("a piece's sum is not brought to the common maximum", "greedy",
          "tl.sum(s * tl.exp(m - peak)", "tl.sum(s * 1.0",
          "tolerance", (3, 9001)),
)  # fmt: skip
