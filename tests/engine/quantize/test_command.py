"""``zellige quantize`` at the command line: what it prints where, and its exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[2] / "conformance"))

from checkpoints import Shape, make

from zellige.flows.cli import app


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    make(folder, Shape("d", family="qwen3_vl", text={"num_hidden_layers": 1}))
    return str(folder)


def test_report_is_printed_and_stored(model: str, tmp_path: Path) -> None:
    to = tmp_path / "q"
    done = CliRunner().invoke(app, ["quantize", model, "--to", str(to), "--samples", "2", "--report-samples", "2"])
    assert done.exit_code == 0, done.output
    assert "compressed-tensors layout" in done.stdout
    assert "in bfloat16" in done.stdout
    assert "layer 1 of 1" in done.stderr
    stored = json.loads((to / "quantization.json").read_text())
    assert stored["quality"]["samples"] == 2
    assert stored["quality"]["quantized"]["tokens"] == stored["quality"]["noise_floor"]["tokens"] > 0


def test_json_is_one_object_and_a_wrong_option_is_told_in_it(model: str, tmp_path: Path) -> None:
    common = ["quantize", model, "--to", str(tmp_path / "q"), "--samples", "1", "--report-samples", "0", "--json"]
    done = CliRunner().invoke(app, [*common, "--bits", "8", "--keep", "o_proj"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (said["exit_code"], said["matrices"]) == (0, 6)
    wrong = CliRunner().invoke(app, [*common, "--bits", "5"])
    assert wrong.exit_code == 2
    assert json.loads(wrong.stdout)["exit_code"] == 2
    assert "5 bits" in wrong.stderr
