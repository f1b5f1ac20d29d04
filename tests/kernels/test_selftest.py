"""Self-tests of the operators: what they find, and that an operator that ends its process stops no other."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from zellige.kernels import selftest as selftests
from zellige.kernels.contract import ROUNDED_ONCE, Operator, noise
from zellige.kernels.operators import OPERATORS
from zellige.kernels.selftest import examine, selftest

CPU = torch.device("cpu")

#: Prints what a child prints: operators "a" and "c" are sound, "b" {what}.
CHILD = """
import json, sys, time
def tally(name, **more):
    seen = {{"operator": name, "device": "cuda:0", "launches": 1, **more}}
    print(json.dumps({{"tally": seen, "faults": []}}), flush=True)
for name in sys.argv[2:]:
    print(json.dumps({{"at": name + " [3, 64] float32"}}), flush=True)
    if name == "b":
        {what}
    tally(name, checked=1)
"""


def child(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(selftests, "COMMAND", (sys.executable, "-c", CHILD.format(what=what)))
    monkeypatch.setattr(selftests, "OPERATORS", [SimpleNamespace(name=name) for name in "abc"])


def doubling(run) -> Operator:
    def inputs(size, dtype, device) -> tuple[Tensor]:
        return (noise(size, dtype, device),)

    return Operator("double", run, lambda x: x * 2, inputs, ((1, 4), (3, 4)), ((99, 4),), ROUNDED_ONCE)


def test_an_operator_is_launched_at_its_edges_and_checked_each_time():
    seen: list[str] = []
    found = examine(doubling(lambda empty, x: x * 2), CPU, torch.float16, seen.append)
    assert (found.tally.launches, found.tally.checked, found.tally.verdict, found.faults) == (2, 2, "healthy", ())
    assert seen == ["double [1, 4] float16", "double [3, 4] float16"]


def test_what_is_wrong_is_told_with_its_shapes():
    found = examine(doubling(lambda empty, x: x * (2 + (len(x) == 3))), CPU, torch.float32, lambda at: None)
    assert found.tally.verdict == "suspect"
    (fault,) = found.faults
    assert "tolerance" in fault
    assert "float32 [3, 4]" in fault


def test_a_launch_that_fails_is_told_and_the_next_size_is_tried():
    def run(empty, x: Tensor) -> Tensor:
        if len(x) == 1:
            raise RuntimeError("no such size")
        return x * 2

    found = examine(doubling(run), CPU, torch.float32, lambda at: None)
    assert (found.tally.launches, found.tally.checked, found.tally.verdict) == (2, 1, "failed")
    assert "no such size" in found.faults[0]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("raise RuntimeError('an illegal memory access was encountered')", "RuntimeError: an illegal memory access"),
        ("sys.exit(7)", "status 7"),
        ("import os; os.abort()", "status -6"),
    ],
)
def test_an_operator_that_ends_its_process_has_failed_and_the_others_are_tested(monkeypatch, what, said):
    child(monkeypatch, what)
    a, b, c = selftest("cuda:0")
    assert [t.tally.verdict for t in (a, b, c)] == ["healthy", "failed", "healthy"]
    assert b.faults[0].startswith(f"the process ended in b [3, 64] float32: {said}")


def test_an_operator_that_never_ends_is_given_up(monkeypatch):
    child(monkeypatch, "time.sleep(600)")
    monkeypatch.setattr(selftests, "PATIENCE_S", 5.0)
    begin = time.monotonic()
    assert [t.tally.verdict for t in selftest("cuda:0")] == ["healthy", "failed", "healthy"]
    assert time.monotonic() - begin < 300


def test_who_stops_listening_leaves_no_process(monkeypatch, tmp_path):
    file = tmp_path / "pid"
    child(monkeypatch, f"open({str(file)!r}, 'w').write(str(__import__('os').getpid())); time.sleep(600)")
    results = selftest("cuda:0")
    next(results)
    while not (file.exists() and file.read_text()):
        time.sleep(0.05)
    results.close()
    assert not Path(f"/proc/{file.read_text()}").exists() or os.name != "posix"


@pytest.mark.long
def test_every_operator_passes_its_own_test_in_the_interpreter(monkeypatch):
    if not os.environ.get("ZELLIGE_TEST_LONG"):
        monkeypatch.setattr(selftests, "OPERATORS", [op for op in OPERATORS if op.name == "silu_mul"])
    results = list(selftest("cpu"))
    assert [r.tally.operator for r in results] == [op.name for op in selftests.OPERATORS]
    assert {r.tally.verdict for r in results} == {"healthy"}
    assert all(r.tally.checked == r.tally.launches > 0 for r in results)
