"""The meter: what it counts, when it checks, what it says of what it found."""

from __future__ import annotations

import math
import time
import timeit
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from zellige.kernels import meter as meters
from zellige.kernels.contract import ROUNDED_ONCE, Operator
from zellige.kernels.launches import bucket
from zellige.kernels.meter import METER, LaunchFailed, Meter
from zellige.kernels.rms_norm import rms_norm
from zellige.kernels.tally import Reading, Tally, merged


def reference(x: Tensor) -> Tensor:
    return x * 2


def doubled(empty, x):
    return torch.mul(x, 2, out=empty(x.shape, dtype=x.dtype, device=x.device))


def operator(run=doubled, name="double", ref=reference, **more) -> Operator:
    return Operator(name, run, ref, lambda *_: (), (), (), ROUNDED_ONCE, **more)


def only(reading: Reading) -> Tally:
    (tally,) = reading.tallies
    return tally


HEALTHY = operator()


@pytest.mark.parametrize("level", ["off", "sampled", "audit"])
def test_launches_bytes_and_time_are_counted_at_every_level(level):
    meter = Meter(level)
    for rows in (1, 2, 2, 40):
        assert torch.equal(meter.launch(HEALTHY, (rows, 8), 10 * rows, torch.ones(rows, 8)), torch.full((rows, 8), 2.0))
    tally = only(meter.take())
    assert (tally.operator, tally.device, tally.launches, tally.bytes) == ("double", "cpu", 4, 450)
    assert tally.checked == {"off": 0, "sampled": 3, "audit": 4}[level]
    assert tally.verdict == ("unchecked" if level == "off" else "healthy")


def test_the_first_launch_of_a_shape_is_checked_and_then_one_in_many(monkeypatch):
    # As many launches as a device would need to earn the time of a second check.
    monkeypatch.setattr(meters, "CHECK_SHARE", 1e9)
    meter, x = Meter(), torch.ones(3, 8)
    checks = []
    for n in range(1, 3000):
        meter.launch(HEALTHY, (3, 8), 0, x)
        if meter.take().tallies[0].checked:
            checks.append(n)
    assert checks[0] == 1
    assert all(meters.CHECK_EVERY <= b - a <= meters.CHECK_EVERY + meters.TIME_EVERY for a, b in pairwise(checks))
    assert len(checks) == 3


def test_checks_take_no_more_than_their_share_once_every_shape_was_seen():
    def slow_reference(x: Tensor) -> Tensor:
        time.sleep(0.02)
        return x * 2

    meter, x = Meter(), torch.ones(3, 8)
    slow = operator(ref=slow_reference)
    for _ in range(3 * meters.CHECK_EVERY):
        meter.launch(slow, (3, 8), 0, x)
    # 20 ms of checking would take 2 s of work to earn; this was some milliseconds.
    assert only(meter.take()).checked == 1


def test_new_shapes_are_checked_until_their_allowance_is_spent(monkeypatch):
    monkeypatch.setattr(meters, "FIRST_CHECKS_S", 0.0)
    meter = Meter()
    meter.launch(HEALTHY, (3, 8), 0, torch.ones(3, 8))
    assert only(meter.take()).verdict == "unchecked"


def test_few_rows_are_shapes_of_their_own_and_many_share_a_bucket():
    assert [bucket(n) for n in range(34)] == [*range(33), 32]
    assert bucket(8547) == bucket(8191 + 1) != bucket(3535)
    assert len({bucket(n) for n in range(33, 16385)}) <= 40


def test_a_dtype_is_a_shape_of_its_own():
    meter = Meter()
    for dtype in (torch.float32, torch.bfloat16):
        meter.launch(HEALTHY, (3, 8), 0, torch.ones(3, 8, dtype=dtype))
    assert only(meter.take()).checked == 2


def test_a_reading_holds_what_happened_since_the_last_and_a_snapshot_all():
    meter, x = Meter(), torch.ones(3, 8)
    meter.launch(HEALTHY, (3, 8), 5, x)
    first = only(meter.take())
    meter.launch(HEALTHY, (3, 8), 5, x)
    second = only(meter.take())
    assert (first.launches, first.checked, second.launches, second.checked) == (1, 1, 1, 0)
    assert (only(meter.snapshot()).launches, only(meter.snapshot()).bytes) == (2, 10)
    assert meter.take() == Reading()


def test_the_worst_of_a_reading_is_of_that_reading():
    drifting = operator(lambda empty, x: x * (2 + 1e-3 * float(x[0, 0])))
    meter = Meter("audit")
    for value, verdict in ((1.0, "suspect"), (1e-6, "healthy")):
        meter.launch(drifting, (2, 4), 0, torch.full((2, 4), value))
        assert only(meter.take()).verdict == verdict


def test_a_run_has_its_share_of_the_work_and_all_of_the_findings():
    tally = Tally("a", "cuda:0", launches=10, checked=2, max_rel_l2=0.5, tolerance=0.1, bytes=100, device_ms=4.0)
    quarter = tally.share(0.25)
    assert (quarter.launches, quarter.bytes, quarter.device_ms, quarter.checked) == (2.5, 25, 1.0, 2)
    assert quarter.verdict == "suspect"


def test_readings_add_up_and_keep_what_came_nearest_to_its_tolerance():
    a = Tally("a", "cuda:0", launches=1, checked=1, max_rel_l2=0.004, tolerance=0.008)
    b = Tally("a", "cuda:0", launches=2, checked=1, max_rel_l2=0.000009, tolerance=0.00001)
    both = only(merged([Reading((a,)), Reading((b,))]))
    assert (both.launches, both.checked, both.max_rel_l2, both.tolerance) == (3, 2, 0.000009, 0.00001)


@pytest.mark.parametrize(
    ("tallies", "verdict"),
    [
        ((), "unchecked"),
        ((Tally("a", "cpu", launches=3),), "unchecked"),
        ((Tally("a", "cuda:0", checked=1, max_rel_l2=0.0, tolerance=0.1), Tally("b", "cuda:0")), "unchecked"),
        ((Tally("a", "cuda:0", checked=1, max_rel_l2=0.0, tolerance=0.1),), "healthy"),
        ((Tally("a", "cuda:0", checked=1, max_rel_l2=0.2, tolerance=0.1), Tally("b", "cuda:0")), "suspect"),
        ((Tally("a", "cuda:0", checked=1, guard_hits=4),), "suspect"),
        ((Tally("a", "cuda:0", checked=1, repeat_mismatches=1), Tally("b", "cuda:0", launch_errors=1)), "failed"),
    ],
)
def test_a_whole_is_as_good_as_its_worst_part(tallies, verdict):
    assert Reading(tallies).verdict == verdict


def test_the_pytorch_form_on_a_cpu_is_counted_and_never_healthy():
    METER.take()
    rms_norm(torch.randn(2, 8), torch.ones(8), 1e-6)
    reading = METER.take()
    assert [(t.operator, t.device, t.launches) for t in reading.tallies] == [("rms_norm", "cpu", 1)]
    assert reading.verdict == "unchecked"


@pytest.mark.parametrize("level", ["off", "sampled", "audit"])
def test_a_launch_that_fails_names_its_operator_and_shapes(level):
    def failing(empty, x, n):
        raise RuntimeError("an illegal memory access was encountered")

    meter = Meter(level)
    meter.launch(HEALTHY, (2, 4), 0, torch.ones(2, 4))
    with pytest.raises(
        LaunchFailed, match=r"broken: RuntimeError: an illegal .* \(launch 2 on cpu: float32 \[3, 4\], 7"
    ):
        meter.launch(operator(failing, "broken", lambda x, n: x), (3, 4), 0, torch.ones(3, 4), 7)
    reading = meter.take()
    assert reading.verdict == "failed"
    assert [(f.operator, f.kind, f.sequence) for f in reading.faults] == [("broken", "launch", 2)]


def test_want_of_memory_is_no_fault_of_an_operator():
    def greedy(empty, x):
        raise torch.OutOfMemoryError("tried to allocate 3 TiB")

    meter = Meter()
    with pytest.raises(torch.OutOfMemoryError):
        meter.launch(operator(greedy), (3, 4), 0, torch.ones(3, 4))
    assert meter.take().verdict == "unchecked"


def test_where_the_reference_has_no_memory_the_guards_are_still_looked_at():
    def hungry(x: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("tried to allocate 3 TiB")

    def beside(empty, x):
        out = doubled(empty, x)
        out.as_strided((1,), (1,), out.storage_offset() + out.numel()).fill_(1.0)
        return out

    meter = Meter()
    meter.launch(operator(beside, ref=hungry), (3, 4), 0, torch.ones(3, 4))
    tally = only(meter.take())
    assert (tally.checked, tally.max_rel_l2, tally.guard_hits, tally.verdict) == (0, None, 4, "suspect")


def test_nan_that_comes_in_is_not_put_down_to_the_operator_it_passes():
    x = torch.ones(3, 4)
    x[1, 2] = math.nan
    meter = Meter()
    meter.launch(HEALTHY, (3, 4), 0, x)
    assert only(meter.take()).verdict == "healthy"


def test_arguments_written_in_place_are_compared_with_what_the_reference_expects():
    def store(empty, cache, rows, slots):
        cache[slots] = rows
        return ()

    def store_elsewhere(empty, cache, rows, slots):
        cache[slots - 1] = rows
        return ()

    for run, verdict in ((store, "healthy"), (store_elsewhere, "suspect")):
        op = operator(
            run, "store", lambda cache, rows, slots: (rows.clone(),), writes=(0,), written=lambda c, r, s: (c[s],)
        )
        meter = Meter()
        meter.launch(op, (2, 4), 0, torch.zeros(9, 4), torch.randn(2, 4), torch.tensor([3, 5]))
        assert meter.take().verdict == verdict


def test_an_operator_that_writes_arguments_says_how_to_read_them_back():
    with pytest.raises(ValueError, match=r"store: .* read them back"):
        operator(name="store", writes=(0,))


def test_the_level_may_change_at_any_time():
    meter, x = Meter("off"), torch.ones(3, 4)
    meter.launch(HEALTHY, (3, 4), 0, x)
    meter.level = "audit"
    meter.launch(HEALTHY, (3, 4), 0, x)
    meter.level = "off"
    meter.launch(HEALTHY, (3, 4), 0, x)
    assert only(meter.take()).checked == 1


def test_replays_of_a_captured_graph_are_counted_and_the_capture_is_not():
    meter, x = Meter("audit"), torch.ones(3, 4)
    meter.launch(HEALTHY, (3, 4), 5, x)
    with meter.capturing() as captured:
        meter.launch(HEALTHY, (3, 4), 5, x)
        meter.launch(HEALTHY, (2, 4), 5, x[:2])
    assert (only(meter.take()).launches, only(meter.snapshot()).checked) == (1, 1)
    for _ in range(10):
        meter.replayed(captured[0])
    tally = only(meter.take())
    assert (tally.launches, tally.bytes, tally.checked) == (20, 100, 0)


@pytest.mark.parametrize("level", ["off", "sampled"])
def test_a_launch_that_is_not_attended_costs_next_to_nothing(level):
    meter, x, out = Meter(level), torch.ones(3, 4), torch.ones(3, 4) * 2
    idle = operator(lambda empty, x: out)
    meter.launch(idle, (3, 4), 0, x)

    def best(call) -> float:
        return min(timeit.repeat(call, number=2000, repeat=25)) / 2000

    cost = best(lambda: meter.launch(idle, (3, 4), 0, x)) - best(lambda: idle.run(torch.empty, x))
    # Some 0.7 µs on a core of its own; a launch on a device takes the host ten times that.
    assert cost < 3e-6
