"""The one place that every launch passes: it counts, times some, and holds some against their contract.

    off       counts launches and bytes, and times one in TIME_EVERY
    sampled   also checks the first launch of each new shape and then one in CHECK_EVERY, in at most 1 % of device time
    audit     also checks every launch, each one waited for, so that an asynchronous error names its own launch

A check runs the reference on the same inputs, launches into guarded memory, launches once more where the contract
promises the same bits, and compares. What it finds is in the next ``take()``; a launch that fails raises LaunchFailed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from zellige.kernels.contract import Operator, Outputs
from zellige.kernels.guards import checked
from zellige.kernels.launches import Captured, Launches, bucket
from zellige.kernels.tally import Fault, FaultKind, Reading, Tally, merged

Level = Literal["off", "sampled", "audit"]

TIME_EVERY = 256
CHECK_EVERY = 1024
#: Of the device time measured so far, what checks may have taken.
CHECK_SHARE = 0.01
#: Seconds that first checks of new shapes may take beyond that share: there are many of them when an engine starts.
FIRST_CHECKS_S = 2.0
#: A launch that kept the host this long compiled something; its device time is not a launch's.
COMPILED_S = 0.01
#: Exact shapes remembered; a long prefill's hardly comes twice.
CALLS_KEPT = 10_000
#: Faults kept between two readings; further ones are counted in the tallies alone.
FAULTS_KEPT = 100


class LaunchFailed(RuntimeError):
    """A launch reported an error, of its own or (below ``audit``) of one shortly before it."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class Meter:
    """The launches of one process. One thread at a time launches, and the same one reads."""

    def __init__(self, level: Level = "sampled") -> None:
        self._level: Level = level
        self._shapes: dict[tuple[Any, ...], Launches] = {}
        #: The same by exact shape, which is the faster way to them.
        self._calls: dict[tuple[Any, ...], Launches] = {}
        self._sequence = 0
        self._elsewhere: Counter[str] = Counter()
        self._capturing = False
        self._pending: list[tuple[Launches, torch.cuda.Event, torch.cuda.Event]] = []
        self._device_s = self._check_s = 0.0
        self._findings: list[Tally] = []
        self._faults: list[Fault] = []
        self._before = Reading()
        #: Told at ``audit`` of each launch before it begins, and None behind it: what a process that dies has to say.
        self.witness: Callable[[Fault | None], None] | None = None

    @property
    def launched(self) -> int:
        """Launches so far, and calls that PyTorch answered; any thread may ask whether it grows."""
        return self._sequence

    @property
    def level(self) -> Level:
        return self._level

    @level.setter
    def level(self, level: Level) -> None:
        self._level = level
        for shape in self._shapes.values():
            shape.due = 0

    def launch(self, operator: Operator, shape: tuple[int, ...], bytes_moved: int, *args: Any) -> Any:
        """Run ``operator`` on ``args``, the first of them a tensor on the device; gives what its ``run`` gives.

        ``shape`` tells launches apart for checks, what varies from step to step first; ``bytes_moved`` is what must be
        read and written. Raises LaunchFailed.
        """
        self._sequence += 1
        first: Tensor = args[0]
        call = (operator, shape, first.dtype, first.get_device())
        known = self._calls.get(call)
        if known is None:
            known = self._enter(call, first.device)
        known.launches += 1
        known.bytes += bytes_moved
        try:
            if known.launches >= known.due:
                return self._attended(known, args)
            return operator.run(torch.empty, *args)
        except (LaunchFailed, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise self._failed(operator.name, known.device, args, error) from error

    def _enter(self, call: tuple[Any, ...], device: torch.device) -> Launches:
        operator, shape, dtype, index = call
        if index >= 0 and index != torch.cuda.current_device():
            # Triton launches on the current device, whatever the tensors are on.
            raise RuntimeError(
                f"{operator.name}: tensors on {device}; call torch.cuda.set_device({index}) in this thread"
            )
        if len(self._calls) >= CALLS_KEPT:
            self._calls.clear()
        key = (operator, bucket(shape[0]), shape[1:], dtype, index)
        known = self._calls[call] = self._shapes.setdefault(key, Launches(operator, device))
        return known

    def count(self, operator: Operator) -> None:
        """A call that PyTorch's own form answered on the CPU: nothing is compared, the verdict stays ``unchecked``."""
        self._sequence += 1
        self._elsewhere[operator.name] += 1

    @contextmanager
    def capturing(self) -> Iterator[list[Captured]]:
        """While a graph is captured: nothing is timed or checked. One ``Captured`` stands in the list at the end."""
        captured: list[Captured] = []
        before = {key: (s.launches, s.bytes) for key, s in self._shapes.items()}
        self._capturing = True
        try:
            yield captured
        finally:
            self._capturing = False
        held = []
        for key, s in self._shapes.items():
            launches, moved = before.get(key, (0, 0))
            if s.launches > launches:
                held.append((s, s.launches - launches, s.bytes - moved))
                # Capturing launched nothing yet; replays will.
                s.launches, s.bytes = launches, moved
        captured.append(Captured(tuple(held)))

    def replayed(self, captured: Captured) -> None:
        """A graph ran: count its launches."""
        for s, launches, moved in captured.launches:
            s.launches += launches
            s.bytes += moved
            self._sequence += launches

    def take(self) -> Reading:
        """What happened since the last ``take()``."""
        reading = self._since()
        self._before = merged((self._before, reading))
        for s in self._shapes.values():
            s.read = s.so_far()
        self._elsewhere.clear()
        self._findings.clear()
        self._faults.clear()
        return reading

    def snapshot(self) -> Reading:
        """All that happened so far."""
        return merged((self._before, self._since()))

    def _since(self) -> Reading:
        self._settle()
        tallies = [Tally(name, "cpu", launches=n) for name, n in self._elsewhere.items()]
        for s in self._shapes.values():
            launches, moved, ms = (now - then for now, then in zip(s.so_far(), s.read, strict=True))
            if launches:
                tallies.append(Tally(s.operator.name, str(s.device), launches=launches, bytes=moved, device_ms=ms))
        found = merged(Reading((t,)) for t in (*tallies, *self._findings))
        return Reading(found.tallies, tuple(self._faults))

    def _attended(self, s: Launches, args: tuple[Any, ...]) -> Outputs:
        if self._capturing:
            return s.operator.run(torch.empty, *args)
        self._settle()
        if self._level == "audit":
            return self._audited(s, args)
        # The launch after a shape's first one, which may have compiled, is timed.
        s.due = s.launches + (1 if s.launches == 1 else TIME_EVERY)
        if self._level == "sampled" and s.launches >= s.check_at and self._affordable(s):
            s.check_at = s.launches + CHECK_EVERY
            return self._checked(s, args)
        return self._timed(s, args)

    def _audited(self, s: Launches, args: tuple[Any, ...]) -> Outputs:
        if self.witness is None:
            return self._checked(s, args)
        detail = "the process ended in this launch"
        self.witness(self._described(s.operator.name, "launch", s.device, args, detail))
        try:
            return self._checked(s, args)
        finally:
            self.witness(None)

    def _affordable(self, s: Launches) -> bool:
        return self._check_s < CHECK_SHARE * self._device_s + (0.0 if s.checked else FIRST_CHECKS_S)

    def _timed(self, s: Launches, args: tuple[Any, ...]) -> Outputs:
        begin = time.perf_counter()
        if s.device.type != "cuda":
            outputs = s.operator.run(torch.empty, *args)
            self._device_s += s.sample((time.perf_counter() - begin) * 1e3) / 1e3
            return outputs
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        outputs = s.operator.run(torch.empty, *args)
        end.record()
        if time.perf_counter() - begin < COMPILED_S:
            self._pending.append((s, start, end))
        return outputs

    def _settle(self) -> None:
        """Fetch the times of samples that have ended."""
        while self._pending and self._pending[0][2].query():
            s, start, end = self._pending.pop(0)
            self._device_s += s.sample(start.elapsed_time(end)) / 1e3

    def _checked(self, s: Launches, args: tuple[Any, ...]) -> Outputs:
        self._wait(s, args)
        outputs, found, seconds = checked(s.operator, args)
        self._check_s += seconds
        compared = found.error is not None
        s.checked += compared
        self._findings.append(
            Tally(
                s.operator.name,
                str(s.device),
                checked=int(compared),
                max_rel_l2=found.error,
                tolerance=found.tolerance if compared else None,
                nonfinite=found.nonfinite,
                guard_hits=found.guard_hits,
                repeat_mismatches=int(not found.repeated),
            )
        )
        for kind, detail in found.faults():
            self._fault(kind, s.operator.name, s.device, args, detail)
        return outputs

    def _wait(self, s: Launches, args: tuple[Any, ...]) -> None:
        """Wait for what was launched before, so that no earlier error, and no earlier work, is put down to a check.

        At ``audit`` every operator before this one was waited for: what fails here is none of them.
        """
        if s.device.type != "cuda":
            return
        try:
            torch.cuda.synchronize(s.device)
        except Exception as error:
            raise self._failed(f"before {s.operator.name}", s.device, args, error) from error

    def _failed(self, name: str, device: torch.device, args: tuple[Any, ...], error: Exception) -> LaunchFailed:
        self._findings.append(Tally(name, str(device), launch_errors=1))
        self._pending.clear()  # their times went with the device's context
        return LaunchFailed(self._fault("launch", name, device, args, f"{type(error).__name__}: {error}"))

    def _fault(self, kind: FaultKind, name: str, device: torch.device, args: tuple[Any, ...], detail: str) -> Fault:
        fault = self._described(name, kind, device, args, detail)
        if len(self._faults) < FAULTS_KEPT:
            self._faults.append(fault)
        return fault

    def _described(self, name: str, kind: FaultKind, device: torch.device, args: tuple[Any, ...], detail: str) -> Fault:
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        return Fault(name, kind, self._sequence, str(device), stream, _shapes(args), detail)


def _shapes(args: tuple[Any, ...]) -> str:
    """Shapes and dtypes of tensors, small values as they are."""
    return ", ".join(
        f"{str(a.dtype).removeprefix('torch.')} {list(a.shape)}" if isinstance(a, Tensor) else f"{a!r:.60}"
        for a in args
    )


#: The meter of this process.
METER = Meter()
