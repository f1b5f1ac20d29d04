"""Runs one planted fault on the GPU in a process of its own, whose device context may die: ``python device.py WHAT``.

Prints one JSON object: the verdict, and the operator and kind of each fault.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch
from broken import plant

from zellige.kernels import silu_mul
from zellige.kernels.meter import LaunchFailed, Meter

INT32 = "row = tl.program_id(0).to(tl.int64) * ROWS"
STORE = "tl.store(out + row * H + col"
PLANTS = {
    "illegal access": plant("", "rms_norm", STORE, STORE.replace("out +", "out + 2199023255552 +"), ""),
    "index of 32 bits": plant("", "rms_norm", INT32, INT32.replace(".to(tl.int64)", ""), ""),
    "overlapping writes": plant("", "rms_norm", STORE, STORE.replace("row * H", "row // 2 * H"), ""),
}


def main(what: str) -> None:
    device = torch.device("cuda")
    operator = PLANTS[what].operator(Path(tempfile.mkdtemp()))
    x, weight, eps = operator.inputs((3, 64), torch.bfloat16, device)
    if what == "index of 32 bits":
        stride = 2**30 + 8
        x = torch.empty(2 * stride + 64, dtype=x.dtype, device=device).as_strided((3, 64), (stride, 1)).copy_(x)
    meter = Meter("audit" if what == "illegal access" else "sampled")
    meter.launch(silu_mul.OPERATOR, (3, 64), 0, x[:, :64].contiguous())
    try:
        meter.launch(operator, (3, 64), 0, x, weight, eps)
    except LaunchFailed as error:
        print(error, file=sys.stderr)
    reading = meter.take()
    print(json.dumps({"verdict": reading.verdict, "faults": [(f.operator, f.kind) for f in reading.faults]}))


if __name__ == "__main__":
    main(sys.argv[1])
