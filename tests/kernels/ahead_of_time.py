"""Compiles what launchers start for a GPU that is not here: ``python ahead_of_time.py ARCH quick|all``.

Prints one JSON line a kernel. ``quick`` takes the real sizes in bfloat16, and of kernels that differ only in how their
arguments are aligned the first.

The launchers run on meta tensors and each launch is recorded instead of started, so that what is compiled is what would
be launched: the same block sizes, the same specialisation of arguments. Not to be run in Triton's interpreter.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from zellige.kernels import target
from zellige.kernels.operators import OPERATORS

TYPES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}
OPTIONS = ("num_warps", "num_stages", "num_ctas")


def source(kernel: JITFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ASTSource:
    """The kernel specialised as the launcher would: ones become constants, multiples of 16 are known as such."""
    given = dict(zip(kernel.arg_names, args, strict=False)) | {k: v for k, v in kwargs.items() if k in kernel.arg_names}
    signature, constants, attributes = {}, {}, {}
    for i, param in enumerate(kernel.params):
        value = given.get(param.name, param.default)
        if param.is_constexpr or value is None or (isinstance(value, int) and value == 1):
            signature[param.name], constants[(i,)] = "constexpr", value
            continue
        aligned = True
        if isinstance(value, torch.Tensor):
            signature[param.name] = TYPES[value.dtype]
        elif isinstance(value, float):
            signature[param.name], aligned = "fp32", False
        else:
            signature[param.name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            aligned = value % 16 == 0
        if aligned:
            attributes[(i,)] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, constants, attributes)


def recorded(quick: bool) -> dict[str, dict[str, tuple[ASTSource, dict[str, Any]]]]:
    """By operator: the distinct kernels that its launchers start at all its sizes in all its dtypes."""
    launched: dict[str, tuple[ASTSource, dict[str, Any]]] = {}

    def record(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        assert len(grid) < 2 or max(grid[1:]) <= 65535, f"{kernel.__name__}: grid {grid}"
        assert 0 < grid[0] < 2**31, f"{kernel.__name__}: grid {grid}"
        made = source(kernel, args, kwargs)
        options = {k: kwargs[k] for k in OPTIONS if k in kwargs}
        meta = {k: v for k, v in kwargs.items() if k.isupper()}
        key = repr((kernel.__name__, meta, options, () if quick else (made.signature, made.constants, made.attrs)))
        launched.setdefault(key, (made, options))

    JITFunction.run = record
    found = {}
    for op in OPERATORS:
        launched = {}
        for size in op.large if quick else op.edges + op.large:
            for dtype in op.tolerance if not quick else [torch.bfloat16]:
                op.run(torch.empty, *op.inputs(size, dtype, torch.device("meta")))
        found[op.name] = launched
    return found


def spilled_bytes(ptx: str, arch: int) -> int:
    """What the assembler says it put into local memory."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.ptx")
        file.write_text(ptx)
        target = re.findall(r"^\.target (\w+)", ptx, re.MULTILINE)[0]
        command = [get_ptxas(arch).path, "-v", f"--gpu-name={target}", file, "-o", file.with_suffix(".cubin")]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    return sum(map(int, re.findall(r"(\d+) bytes spill", told)))


def main(arch: int, quick: bool) -> None:
    target.assumed = divmod(arch, 10)
    for name, launched in recorded(quick).items():
        for made, options in launched.values():
            compiled = triton.compile(made, target=GPUTarget("cuda", arch, 32), options=options)
            row = {
                "operator": name,
                "kernel": made.name,
                "constants": {made.fn.arg_names[i[0]]: v for i, v in made.constants.items()},
                "options": options,
                "shared_bytes": compiled.metadata.shared,
                "spilled_bytes": spilled_bytes(compiled.asm["ptx"], arch),
            }
            print(json.dumps(row, default=str), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "quick")
