"""The engine leaves libgomp no more helpers than a step needs: with more than there are cores, none of them spins."""

from __future__ import annotations

import os
import subprocess
import sys

ENGINE_AT_WORK = """
import asyncio, os, threading
import numpy as np, torch
from zellige.engine.api import Sampling, ask
from zellige.engine.connect import DEMO_MODEL
from zellige.engine.local import LocalEngine

def helpers():
    return len(os.listdir("/proc/self/task")) - threading.active_count()

async def main():
    before = helpers()
    engine = LocalEngine.load(DEMO_MODEL, device="cpu")
    images = [np.full((96, 96, 3), shade, np.uint8) for shade in range(0, 240, 30)]
    answers = await asyncio.gather(*(engine.answer(ask("Describe the image.", i, sampling=Sampling(max_tokens=4)))
                                     for i in images))
    assert len(answers) == len(images)
    print(helpers() - before, torch.get_num_threads())
    await engine.close()

asyncio.run(main())
"""


def test_only_the_thread_that_computes_has_helpers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENGINE_AT_WORK],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "2"]
