"""Compiles what launchers start for GPUs that are not here: ``python ahead_of_time.py quick|all ARCH…``.

Prints one JSON line a kernel, and for each ARCH one of a kernel that is made to spill ("control"). ``all`` takes every
size in every dtype; ``quick`` the real sizes in bfloat16, and of the programs of a kernel that run alike (same warps,
same depth of pipeline) the one with the largest tile.

The launchers run on meta tensors and each launch is recorded instead of started, so that what is compiled is what would
be launched: the same block sizes, the same specialisation of arguments. Not to be run in Triton's interpreter.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import sys
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
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
META = torch.device("meta")
#: More than a grid may have in y or z.
MANY_ROWS = 70_000
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


Kernels = dict[str, tuple[ASTSource, dict[str, Any]]]


def recorded(quick: bool) -> dict[str, Kernels]:
    """By operator: the distinct kernels that its launchers start at all its sizes in all its dtypes."""
    launched: Kernels = {}
    wanted = True

    def record(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        assert len(grid) < 2 or max(grid[1:]) <= 65535, f"{kernel.__name__}: grid {grid}"
        assert 0 < grid[0] < 2**31, f"{kernel.__name__}: grid {grid}"
        if not wanted:
            return
        made = source(kernel, args, kwargs)
        options = {k: kwargs[k] for k in OPTIONS if k in kwargs}
        meta = {k: v for k, v in kwargs.items() if k.isupper()}
        if not quick:
            key = repr((kernel.__name__, meta, options, made.signature, made.constants, made.attrs))
            launched.setdefault(key, (made, options))
            return
        key = repr((kernel.__name__, options))
        if key not in launched or size_of(made) > size_of(launched[key][0]):
            launched[key] = made, options

    JITFunction.run = record
    found = {}
    for op in OPERATORS:
        launched, wanted = {}, True
        for size in op.large if quick else op.edges + op.large:
            for dtype in op.tolerance if not quick else [torch.bfloat16]:
                op.run(torch.empty, *op.inputs(size, dtype, META))
        found[op.name] = launched
        # Where a grid counts rows in y or z, this is one too many.
        wanted = False
        smallest = min(op.large, key=lambda size: sum(size[1:]))
        op.run(torch.empty, *op.inputs((MANY_ROWS, *smallest[1:]), torch.bfloat16, META))
    return found


def size_of(made: ASTSource) -> int:
    """Of two programs that run alike, which is the larger."""
    return math.prod(v for v in made.constants.values() if isinstance(v, int) and v > 0)


def compiled(made: ASTSource, options: dict[str, Any], arch: int) -> tuple[int, int]:
    """Bytes of shared memory that a program takes, and that the assembler says it put into local memory."""
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        binary = triton.compile(made, target=GPUTarget("cuda", arch, 32), options=options)
    if told := re.findall(r"(\d+) bytes spill", log.getvalue()):
        SPILLED[binary.hash] = sum(map(int, told))
    # The same kernel for another operator is not compiled again, and nothing is told of it.
    return binary.metadata.shared, SPILLED[binary.hash]


#: By hash of a binary.
SPILLED: dict[str, int] = {}


def main(quick: bool, arch: int) -> None:
    target.assumed = divmod(arch, 10)
    operators = recorded(quick)
    made, options = next(kernel for kernel in operators["quant_matmul"].values() if "matvec" in kernel[0].name)
    operators["control"] = {"": (made, options | {"maxnreg": 32})}
    for name, launched in operators.items():
        for made, options in launched.values():
            shared, spilled = compiled(made, options, arch)
            row = {
                "arch": arch,
                "operator": name,
                "kernel": made.name,
                "constants": {made.fn.arg_names[i[0]]: v for i, v in made.constants.items()},
                "options": options,
                "shared_bytes": shared,
                "spilled_bytes": spilled,
            }
            print(json.dumps(row, default=str), flush=True)


if __name__ == "__main__":
    knobs.nvidia.dump_ptxas_log = True
    for number in sys.argv[2:]:
        main(sys.argv[1] == "quick", int(number))
