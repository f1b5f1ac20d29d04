"""The engine's process with a fault planted: ``python planted.py WHAT MARK SOCKET BOX``. MARK names a file that is
written when the fault strikes.

The fault is in an operator, and strikes in each step that computes a request whose id begins with ``guilty``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch

from zellige.engine.child import worker
from zellige.engine.runner import Runner
from zellige.kernels.contract import ROUNDED_ONCE, Operator
from zellige.kernels.meter import METER

WHAT, MARK = sys.argv[1], Path(sys.argv[2])
poisoned = False


def broken(empty: Any, x: torch.Tensor) -> torch.Tensor:
    """What the planted operator does in place of its work."""
    global poisoned
    if WHAT == "fails once" and MARK.exists():
        return x.clone()
    with MARK.open("a") as file:
        file.write(f"{os.getpid()}\n")
    if WHAT == "segfault":
        signal.raise_signal(signal.SIGSEGV)
    if WHAT == "abort":
        os.abort()
    if WHAT == "hang":
        threading.Event().wait()
    poisoned = True
    raise RuntimeError("an illegal memory access was encountered")


OPERATOR = Operator("planted_norm", broken, torch.clone, lambda *_: (), ((3, 64),), (), ROUNDED_ONCE)


def planted(self: Runner, chunks: Any, controls: Any, launch: Any = Runner.launch) -> Any:
    if poisoned:
        raise RuntimeError("an illegal memory access was encountered")
    guilty = any(c.sequence.request_id.startswith("guilty") and len(c.sequence.tokens) > ready(c) for c in chunks)
    if guilty or (WHAT == "always" and MARK.exists()):
        METER.launch(OPERATOR, (3, 64), 0, torch.zeros(3, 64))
    return launch(self, chunks, controls)


def ready(chunk: Any) -> int:
    """It strikes at once, or (``late`` in the id) only when six tokens have gone out."""
    return len(chunk.sequence.prompt.tokens) + 6 if "late" in chunk.sequence.request_id else 0


Runner.launch = planted  # type: ignore[method-assign]
if __name__ == "__main__":
    worker.main(int(sys.argv[3]), int(sys.argv[4]))
