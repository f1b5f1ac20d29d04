"""``python -m zellige.kernels.bench [--check] [--time] [--sweep]``: the operators on this machine's GPU.

--check runs every operator at its real sizes against its float32 reference, under guard bands. --time prints, for each
case, measured, floor, ratio and what a peer takes for the same work. --sweep adds other cuts of the same kernels. Each
operator runs in a process of its own, so that one that breaks its device context stops no other.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

import torch

#: Seconds that one operator may take for one of the three.
PATIENCE_S = 120
#: Replays of a graph; the median counts.
REPLAYS = 15

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Case:
    """Something to time. ``calls`` do the same work on different memory, together more than the L2 cache holds.

    ``moved`` bytes and ``flops`` of one call give its floor; ``peers`` do the same work.
    """

    name: str
    calls: Sequence[Call]
    moved: int = 0
    flops: float = 0.0
    peers: Mapping[str, Sequence[Call]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rates:
    """What this card does: bytes a second of a copy (read and written), operations a second of a bfloat16 product."""

    bytes_s: float
    flops_s: float

    def floor(self, case: Case) -> float:
        """Seconds that ``case`` takes at least."""
        return max(case.moved / self.bytes_s, case.flops / self.flops_s)


def seconds(calls: Sequence[Call]) -> float:
    """Median time of one of ``calls``, replayed as a graph: the host has no part in it."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / len(calls))
    return float(statistics.median(times))


def rates() -> Rates:
    """Measured here and now: a pass over 2 GB that writes as much, and an 8192³ product."""
    a = torch.randn(1 << 30, dtype=torch.bfloat16, device="cuda")
    b = torch.empty_like(a)
    x, y = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return Rates(2 * a.nbytes / seconds([lambda: torch.add(a, 1.0, out=b)]), 2 * 8192**3 / seconds([lambda: x @ y]))


def check(name: str) -> Iterator[str]:
    """One line a size of operator ``name``."""
    from zellige.kernels.guards import checked
    from zellige.kernels.operators import OPERATORS

    for op in (op for op in OPERATORS if op.name == name):
        for size in op.large + op.edges:
            begin = time.perf_counter()
            dtype = torch.bfloat16
            try:
                _, found, _ = checked(op, op.inputs(size, dtype, torch.device("cuda")))
            except Exception as error:
                yield f"FAIL {name} {size}: {type(error).__name__}: {str(error)[-300:]}"
                continue
            faults = "; ".join(detail for _, detail in found.faults())
            took = time.perf_counter() - begin
            error_is = "not compared" if found.error is None else f"{found.error:.1e} of {found.tolerance:.0e}"
            yield f"{'FAIL' if faults else 'ok  '} {name} {size}: {error_is} {faults} ({took:.1f} s)"


def timed(name: str, sweep: bool) -> Iterator[str]:
    """One line a case of operator ``name``, and one a peer."""
    from zellige.kernels.bench_cases import CASES

    own = rates()
    yield f"# copy {own.bytes_s / 1e12:.2f} TB/s, product {own.flops_s / 1e12:.0f} TFLOP/s"
    for case in CASES[name](sweep):
        try:
            measured, floor = seconds(case.calls), own.floor(case)
        except Exception as error:
            yield f"FAIL {case.name}: {type(error).__name__}: {str(error)[-300:]}"
            continue
        line = f"{case.name:58} {measured * 1e6:9.1f} us  floor {floor * 1e6:8.1f}  {floor / measured:5.0%}"
        for peer, calls in case.peers.items():
            try:
                theirs = seconds(calls)
                line += f"  | {peer} {theirs * 1e6:.1f} us, {theirs / measured:.2f} x"
            except Exception as error:
                line += f"  | {peer}: {type(error).__name__}: {str(error)[:80]}"
        yield line


def _alone(what: str, name: str) -> str:
    """The output of one operator's process."""
    command = [sys.executable, "-m", "zellige.kernels.bench", what, "--only", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired as late:
        told = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        return f"{told}FAIL {name} {what}: stopped after {PATIENCE_S} s\n"
    return done.stdout + (f"FAIL {name} {what}:\n{done.stderr[-1500:]}\n" if done.returncode else "")


def main() -> int:
    """The command line; returns what ``bench`` does."""
    parser = argparse.ArgumentParser(description=__doc__)
    for flag in ("check", "time", "sweep"):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("--only", help="one operator, in this process")
    options = parser.parse_args()
    if options.only is None:
        return bench(check_first=options.check, time_them=options.time, sweep=options.sweep)
    lines: list[Iterator[str]] = []
    if options.check:
        lines.append(check(options.only))
    if options.time or options.sweep:
        lines.append(timed(options.only, options.sweep))
    for line in chain.from_iterable(lines):
        _tell(line + "\n")
    return 0


def bench(*, check_first: bool, time_them: bool, sweep: bool) -> int:
    """Check, then time all operators; ``sweep`` times other cuts as well. 1 where a line says FAIL, 2 without a GPU."""
    from zellige.kernels.bench_cases import CASES
    from zellige.kernels.operators import OPERATORS

    if not torch.cuda.is_available():
        _tell("no CUDA device: nothing to measure\n")
        return 2
    begin = time.perf_counter()
    failed = False
    if check_first:
        # Side by side: most of it is compiling, which timing then finds done.
        with ThreadPoolExecutor(8) as pool:
            for text in pool.map(lambda op: _alone("--check", op.name), OPERATORS):
                failed |= _tell(text)
        _tell(f"# checked after {time.perf_counter() - begin:.0f} s\n")
    if time_them or sweep:
        for name in CASES:
            failed |= _tell(f"## {name}\n" + _alone("--sweep" if sweep else "--time", name))
        _tell(f"# timed after {time.perf_counter() - begin:.0f} s\n")
    return int(failed)


def _tell(text: str) -> bool:
    """Write it at once; whether it says FAIL."""
    sys.stdout.write(text)
    sys.stdout.flush()
    return "FAIL" in text


if __name__ == "__main__":
    sys.exit(main())
