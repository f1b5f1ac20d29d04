"""A report of compute-sanitizer is told by operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from zellige.kernels.operators import OPERATORS
from zellige.kernels.sanitizer import FOUND, Found, SanitizerMissing, kernel_names, sanitize, translated

REPORT = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 2 bytes
=========     at _rms_norm_kernel+0x1b0 in rms_norm.py:61
=========     by thread (5,0,0) in block (0,0,0)
=========     Address 0x7f2e4c000200 is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: [0x2e5e2f] in /usr/lib/x86_64-linux-gnu/libcuda.so.1
=========
========= Invalid __global__ write of size 2 bytes
=========     at _rms_norm_kernel+0x1b0 in rms_norm.py:61
=========     by thread (6,0,0) in block (0,0,0)
=========     Address 0x7f2e4c000202 is out of bounds
=========
========= Error: Race reported between Write access at _attention_kernel+0x890 in vision_attention.py:140
=========     and Read access at _attention_kernel+0x2a0 in vision_attention.py:120 [64 hazards]
=========
========= Invalid __shared__ read of size 4 bytes
=========     at void at::native::some_kernel<float>(float *)+0x40
=========     by thread (0,0,0) in block (1,0,0)
=========
========= Program hit cudaErrorLaunchFailure (error 719) on CUDA API call to cudaDeviceSynchronize.
=========     Saved host backtrace up to driver entry point at error
=========
========= ERROR SUMMARY: 5 errors
"""


def test_errors_are_told_by_operator_the_most_frequent_first():
    found = translated(REPORT, kernel_names())
    assert found[0] == Found(
        "Invalid __global__ write of size 2 bytes", "_rms_norm_kernel", ("rms_norm", "add_rms_norm"), 2
    )
    assert [(f.operators, f.times) for f in found[1:]] == [(("vision_attention",), 1), ((), 1), ((), 1)]
    assert found[2].where == "void at::native::some_kernel<float>(float *)"
    assert found[3].what.startswith("Program hit cudaErrorLaunchFailure")


@pytest.mark.parametrize("report", ["", "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"])
def test_a_report_without_errors_has_none(report):
    assert translated(report, kernel_names()) == []


def test_every_operator_has_a_kernel_that_is_found_by_its_name():
    assert {op for ops in kernel_names().values() for op in ops} == {op.name for op in OPERATORS}


@pytest.fixture
def sanitizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for compute-sanitizer: writes REPORT where it is told to, and runs nothing."""
    (tmp_path / "report").write_text(REPORT)
    program = tmp_path / "compute-sanitizer"
    program.write_text(f"#!/bin/sh\ncp {tmp_path}/report $8\necho $* > {tmp_path}/asked\nexit {FOUND}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_a_command_is_run_under_the_tool_and_its_report_read(sanitizer):
    status, found = sanitize(["echo", "hello"], "racecheck")
    assert status == FOUND
    assert len(found) == 4
    asked = (sanitizer / "asked").read_text()
    assert asked.startswith("--tool racecheck")
    assert asked.strip().endswith("echo hello")


def test_where_there_is_no_sanitizer_it_says_where_it_comes_from(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SanitizerMissing, match="CUDA toolkit"):
        sanitize(["true"], "memcheck")
