"""How the kernels behaved, as stored with a run: one file a worker, read back as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from zellige.data.files import StoreUnusable
from zellige.data.folder import LocalFolder
from zellige.data.health import KernelFolder, worst
from zellige.data.schema import KERNELS


def row(operator: str = "rms_norm", **changed: Any) -> dict[str, Any]:
    plain = {"operator": operator, "device": "cuda:0", "launches": 10, "checked": 1, "max_rel_l2": 1e-3}
    plain |= {"tolerance": 8e-3, "nonfinite": 0, "guard_hits": 0, "repeat_mismatches": 0, "launch_errors": 0}
    return plain | {"device_ms": 1.5, "bytes": 4096, "verdict": "healthy"} | changed


@pytest.fixture
def folder(tmp_path: Path) -> KernelFolder:
    (tmp_path / "health").mkdir()
    return KernelFolder(LocalFolder(tmp_path / "health"))


def test_a_worker_replaces_what_it_stored_before(folder, tmp_path):
    folder.write("run", "w1", [row(launches=1)])
    folder.write("run", "w1", [row(launches=5), row("greedy")])
    assert folder.rows() == [row("greedy"), row(launches=5)]
    assert pq.read_table(tmp_path / "health" / "kernels-w1.parquet").schema.equals(KERNELS)


def test_workers_add_up_and_the_worst_check_and_verdict_stand(folder):
    folder.write("run", "w1", [row(max_rel_l2=None, tolerance=None, checked=0, verdict="unchecked")])
    folder.write("run", "w2", [row(max_rel_l2=0.5, guard_hits=8, verdict="suspect")])
    folder.write("run", "w3", [row(max_rel_l2=1e-5, tolerance=1e-5)])
    folder.write("run", "w4", [row(device="cuda:1")])
    together, other = folder.rows()
    assert together == row(
        launches=30, checked=2, max_rel_l2=0.5, guard_hits=8, device_ms=4.5, bytes=3 * 4096, verdict="suspect"
    )
    assert other == row(device="cuda:1")


def test_no_file_is_no_rows_and_an_unknown_column_is_refused(folder):
    assert folder.rows() == []
    with pytest.raises(ValueError, match="no kernels column speed; there are operator, device"):
        folder.write("run", "w1", [row(speed=3)])


def test_a_damaged_file_is_named(folder, tmp_path):
    (tmp_path / "health" / "kernels-w1.parquet").write_bytes(b"PAR1 not quite")
    with pytest.raises(StoreUnusable, match=r"kernels-w1.parquet is damaged"):
        folder.rows()


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [([], "unchecked"), (["healthy", "unchecked"], "unchecked"), (["failed", "suspect", "healthy"], "failed")],
)
def test_a_whole_is_as_good_as_its_worst(verdicts, whole):
    assert worst(verdicts) == whole
