"""``python -m zellige.kernels.selftest DEVICE [OPERATOR …]``: every operator at its sizes against its reference.

Each launch is held to its contract as by a meter at ``audit``: on ``cuda`` at the edges and the real sizes in bfloat16,
on ``cpu`` at the edges in float32, in Triton's interpreter. A JSON line is printed as a launch begins and one when an
operator is through. ``selftest`` runs that in a process of its own: an illegal access ends the process, and
another one goes on with the operators behind it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from zellige.kernels import paged_attention_blocks
from zellige.kernels.contract import Operator
from zellige.kernels.meter import LaunchFailed, Meter
from zellige.kernels.operators import OPERATORS
from zellige.kernels.tally import Tally

#: What a process is started with; device and operators follow.
COMMAND = (sys.executable, "-m", "zellige.kernels.selftest")
#: Seconds that one launch may take; the interpreter is slow.
PATIENCE_S = 300.0
#: Programs that attention over the paged cache is cut into in the interpreter, which takes one after the other.
INTERPRETED_PROGRAMS = 16
#: Faults told of an operator; one that is wrong everywhere says the same again and again.
FAULTS_TOLD = 5


@dataclass(frozen=True, slots=True)
class Tested:
    """What a self-test says of one operator: the tally of its launches, and in words what was wrong."""

    tally: Tally
    faults: tuple[str, ...] = ()


def selftest(device: str) -> Iterator[Tested]:
    """Test every operator on ``device`` ("cpu", "cuda" or "cuda:N"), in order."""
    left = [op.name for op in OPERATORS]
    while left:
        for tested in _in_a_process(device, left):
            yield tested
            left.remove(tested.tally.operator)


def _in_a_process(device: str, names: Sequence[str]) -> Iterator[Tested]:
    """Results until all ``names`` are through or the process ended; the operator that it ended in has failed."""
    env = dict(os.environ) | {"TRITON_INTERPRET": "0" if device.startswith("cuda") else "1"}
    waiting, at = list(names), ""
    # Its words go to a file: a pipe that nobody reads would stop it.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as words:
        child = subprocess.Popen(
            [*COMMAND, device, *names], env=env, stdout=subprocess.PIPE, stderr=words, encoding="utf-8"
        )
        try:
            for line in _lines(child):
                told = json.loads(line)
                if "at" in told:
                    at = told["at"]
                    continue
                waiting.remove(told["tally"]["operator"])
                yield Tested(Tally(**told["tally"]), tuple(told["faults"]))
        finally:
            child.kill()
            child.wait()
        if waiting:
            words.seek(0)
            last = words.read().strip().splitlines()[-1:] or [f"status {child.returncode}"]
            where = at if at.split(" ")[0] == waiting[0] else f"{waiting[0]} before its first launch"
            yield Tested(Tally(waiting[0], device, launch_errors=1), (f"the process ended in {where}: {last[0]}",))


def _lines(child: subprocess.Popen[str]) -> Iterator[str]:
    """What a process prints; it is ended once it printed nothing for PATIENCE_S."""
    assert child.stdout is not None
    while True:
        timer = threading.Timer(PATIENCE_S, child.kill)
        timer.start()
        try:
            line = child.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            child.wait()
            return
        yield line


def examine(op: Operator, device: torch.device, dtype: torch.dtype, say: Callable[[str], None]) -> Tested:
    """Launch one operator at all its sizes; raises nothing but what ends a process."""
    meter = Meter("audit")
    for size in op.edges + op.large if device.type == "cuda" else op.edges:
        say(f"{op.name} {list(size)} {str(dtype).removeprefix('torch.')}")
        with contextlib.suppress(LaunchFailed):  # which the meter has written down
            meter.launch(op, size, 0, *op.inputs(size, dtype, device))
    reading = meter.take()
    shown = [str(fault) for fault in reading.faults]
    if len(shown) > FAULTS_TOLD:
        shown = [*shown[:FAULTS_TOLD], f"and {len(shown) - FAULTS_TOLD} more"]
    (tally,) = reading.tallies
    return Tested(tally, tuple(shown))


def main(device_name: str, names: Sequence[str]) -> int:
    """Test the operators named, or all; 1 as soon as a device no longer answers."""
    device = torch.device(device_name)
    if device.type == "cuda":
        dtype = torch.bfloat16
        torch.cuda.set_device(device)
    else:
        dtype = torch.float32
        paged_attention_blocks.PROGRAMS = INTERPRETED_PROGRAMS
        # The interpreter computes with NumPy, which warns of what masks leave out.
        warnings.simplefilter("ignore", RuntimeWarning)
    for op in OPERATORS:
        if names and op.name not in names:
            continue
        result = examine(op, device, dtype, lambda at: _print({"at": at}))
        tally = {name: getattr(result.tally, name) for name in Tally.__dataclass_fields__}
        _print({"tally": tally, "faults": result.faults})
        if result.tally.launch_errors and device.type == "cuda":
            return 1  # nothing that this context computes can be trusted any more
    return 0


def _print(told: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
