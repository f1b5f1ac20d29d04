"""``zellige doctor``: what is printed of what was found, and the exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from zellige.engine.api import EngineError
from zellige.flows.cli import app

OPERATOR = {
    "operator": "rms_norm",
    "launches": 6,
    "max_rel_l2": 1e-7,
    "tolerance": 1e-5,
    "verdict": "healthy",
    "faults": [],
}
SUSPECT = OPERATOR | {"operator": "silu_mul", "max_rel_l2": None, "verdict": "suspect", "faults": ["silu_mul: 4 bytes"]}
GPU = {
    "device": "cuda:0",
    "name": "NVIDIA H200",
    "memory_bytes": 140 << 30,
    "capability": "9.0",
    "driver": "580.1",
    "temperature_c": 34,
    "throttled": "",
    "ecc_corrected": 0,
    "ecc_uncorrected": None,
    "pcie_replays": 0,
}
PLACES = [
    {
        "name": "vision block 0",
        "shape": (6, 8),
        "own": 1e-3,
        "running": 2e-3,
        "tolerance": 6e-3,
        "row_sums": (1.0, 1.0),
    },
    {"name": "logits", "shape": (1, 9), "own": 0.5, "running": 0.6, "tolerance": 2e-2, "row_sums": None},
]


class FakeDoctor:
    """Finds what the test put there."""

    device = "cuda:0"
    gpus: list[Any] = []  # noqa: RUF012
    problems: list[str] = []  # noqa: RUF012
    found: list[Any] = [OPERATOR]  # noqa: RUF012
    sound = True
    asked: list[Any] = []  # noqa: RUF012

    def __init__(self, device: str | None) -> None:
        self.device = device or self.device

    def machine(self) -> dict[str, Any]:
        return {
            "versions": {"python": "3.11.7", "triton": None},
            "devices": self.gpus,
            "no_peer_access": [],
            "xids": None,
            "problems": self.problems,
        }

    def operators(self) -> Any:
        yield from self.found

    def layers(self, pixels: Any, model: Any, dtype: Any, dump: Any, to: Any) -> dict[str, Any]:
        self.asked.append((pixels.shape, model, dtype, list(dump), to))
        if model == "nowhere":
            raise EngineError("nowhere: no such folder")
        return {
            "model": "m",
            "device": self.device,
            "dtype": "bfloat16",
            "size": (64, 48),
            "patches": 12,
            "tokens": 9,
            "places": [p | {"sound": self.sound or p["name"] != "logits"} for p in PLACES],
            "first": None if self.sound else "logits",
            "dumped": [],
        }

    def sanitized(self, command: Any, tool: str) -> dict[str, Any]:
        self.asked.append((list(command), tool))
        return {
            "tool": tool,
            "status": 86,
            "found": [{"what": "Invalid write", "where": "k", "operators": ["experts"], "times": 3}],
        }


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch) -> type[FakeDoctor]:
    fresh = type("FreshDoctor", (FakeDoctor,), {"asked": []})
    monkeypatch.setattr("zellige.engine.doctor.Doctor", fresh)
    return fresh


def said(*arguments: str | Path, code: int) -> str:
    done = CliRunner().invoke(app, ["doctor", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.output


def test_a_machine_without_a_gpu_says_so_and_its_operators_are_tested(doctor: Any) -> None:
    lines = said(code=0).splitlines()
    assert lines[0] == "python 3.11.7, triton not installed"
    assert lines[1].startswith("no GPU")
    assert lines[2] == "  rms_norm           healthy       6 launches, worst error 1.0e-07 of 1e-05"
    assert lines[-1] == "healthy"


def test_a_gpu_is_described_and_what_it_does_not_tell_is_left_out(doctor: Any) -> None:
    doctor.gpus = [GPU]
    line = said(code=0).splitlines()[1]
    assert line == (
        "cuda:0 NVIDIA H200, 140 GiB, capability 9.0, driver 580.1, °C 34, slowed down by nothing, "
        "memory errors corrected 0, PCIe replays 0"
    )


def test_an_operator_that_is_not_healthy_is_named_at_the_end(doctor: Any) -> None:
    doctor.found = [OPERATOR, SUSPECT]
    lines = said(code=1).splitlines()
    assert lines[-2] == "    silu_mul: 4 bytes"
    assert lines[-1] == "not healthy: silu_mul is suspect"
    told = json.loads(said("--json", code=1))
    assert (told["problems"], told["exit_code"]) == (["silu_mul is suspect"], 1)
    assert [row["verdict"] for row in told["operators"]] == ["healthy", "suspect"]


def test_a_problem_of_the_machine_is_a_problem(doctor: Any) -> None:
    doctor.problems = ["Xid 79 of the GPU at PCI 3b:00"]
    assert json.loads(said("--json", code=1))["problems"] == ["Xid 79 of the GPU at PCI 3b:00"]


def test_layers_are_shown_place_by_place(doctor: Any, draw: Callable[..., Path], tmp_path: Path) -> None:
    image = draw("a.png")
    lines = said("--layers", image, "--device", "cuda:1", "--dump", "logits", "--to", tmp_path, code=0).splitlines()
    assert doctor.asked == [((48, 64, 3), None, None, ["logits"], tmp_path)]
    assert "on cuda:1" in lines[0]
    assert [line.split()[:2] for line in lines[3:5]] == [["vision", "block"], ["logits", "1"]]
    assert lines[-1] == "every place is within its tolerance"


def test_the_first_place_over_its_tolerance_is_named(doctor: Any, draw: Callable[..., Path]) -> None:
    doctor.sound = False
    assert said("--layers", draw("a.png"), code=1).splitlines()[-1] == "first over its tolerance: logits"
    told = json.loads(said("--layers", draw("a.png"), "--json", code=1))
    assert told["first"] == "logits"


@pytest.mark.parametrize("bad", ["no.png", "text.png"])
def test_an_image_that_cannot_be_read_is_wrong_use(doctor: Any, tmp_path: Path, bad: str) -> None:
    (tmp_path / "text.png").write_text("not a picture")
    assert json.loads(said("--layers", tmp_path / bad, "--json", code=2).splitlines()[-1])["error"]


def test_a_model_that_cannot_be_loaded_is_told(doctor: Any, draw: Callable[..., Path]) -> None:
    assert "nowhere: no such folder" in said("--layers", draw("a.png"), "--model", "nowhere", code=2)


def test_a_sanitizers_report_is_told_by_operator(doctor: Any) -> None:
    assert (
        said("--sanitize", "memcheck", "--", "python", "-c", "pass", code=1).strip()
        == "experts: Invalid write (3 times)"
    )
    assert doctor.asked == [(["python", "-c", "pass"], "memcheck")]


def test_a_command_alone_is_wrong_use(doctor: Any) -> None:
    assert "--sanitize" in said("python", code=2)
