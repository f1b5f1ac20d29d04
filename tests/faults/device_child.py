"""The engine's process on the GPU, where each step that computes a request named ``guilty`` makes an illegal access."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from device import PLANTS

from zellige.engine.child import worker
from zellige.engine.runner import Runner
from zellige.kernels.meter import METER

OPERATOR = PLANTS["illegal access"].operator(Path(tempfile.mkdtemp()))


def planted(self: Runner, chunks: Any, controls: Any, launch: Any = Runner.launch) -> Any:
    if any(c.sequence.request_id == "guilty" for c in chunks):
        METER.launch(OPERATOR, (3, 64), 0, *OPERATOR.inputs((3, 64), torch.bfloat16, self.device))
    return launch(self, chunks, controls)


Runner.launch = planted  # type: ignore[method-assign]
if __name__ == "__main__":
    worker.main(int(sys.argv[1]), int(sys.argv[2]))
