"""``zellige doctor``: what was found of the machine, the operators and a model's layers; each gives its exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from zellige.data.decode import DecodeError, decode
from zellige.engine.api import EngineError
from zellige.flows.output import put
from zellige.flows.show import table


class Doctor(Protocol):
    """``engine.doctor.Doctor``, which says more of each."""

    device: str

    def machine(self) -> dict[str, Any]: ...

    def operators(self) -> Iterator[dict[str, Any]]: ...

    def layers(
        self, pixels: NDArray[np.uint8], model: str | None, dtype: str | None, dump: Sequence[str], to: Path
    ) -> dict[str, Any]: ...

    def sanitized(self, command: Sequence[str], tool: str) -> dict[str, Any]: ...


def examine(doctor: Doctor, as_json: bool) -> int:
    """The machine, and every operator's self-test; 1 where one of them is not as it should be."""

    def work() -> tuple[dict[str, Any], list[str]]:
        machine, operators = doctor.machine(), []
        _say(as_json, *_machine_lines(machine, doctor.device))
        for row in doctor.operators():
            operators.append(row)
            _say(as_json, *_operator_lines(row))
        bad = [f"{row['operator']} is {row['verdict']}" for row in operators if row["verdict"] != "healthy"]
        problems = [*machine["problems"], *bad]
        _say(as_json, f"not healthy: {'; '.join(problems)}" if problems else "healthy")
        return machine | {"device": doctor.device, "operators": operators, "problems": problems}, problems

    return _told(work, as_json)


def layers(
    doctor: Doctor, image: Path, model: str | None, dtype: str | None, dump: Sequence[str], to: Path, as_json: bool
) -> int:
    """A model on ``doctor.device`` against itself in float32 on the CPU; 1 where a place is over its tolerance."""

    def work() -> tuple[dict[str, Any], list[str]]:
        report = doctor.layers(decode(image.read_bytes()).pixels, model, dtype, dump, to)
        _say(as_json, *_layer_lines(report))
        problems = [] if report["first"] is None else [f"{report['first']} is over its tolerance"]
        return report | {"problems": problems}, problems

    return _told(work, as_json)


def sanitize(doctor: Doctor, command: Sequence[str], tool: str, as_json: bool) -> int:
    """``command`` under compute-sanitizer, what it reports told by operator; 1 where it reports something."""

    def work() -> tuple[dict[str, Any], list[str]]:
        report = doctor.sanitized(command, tool)
        problems = [
            f"{' or '.join(f['operators']) or f['where'] or 'the program'}: {f['what']} ({f['times']} times)"
            for f in report["found"]
        ]
        if report["status"] and not problems:
            problems = [f"the command ended with status {report['status']}"]
        _say(as_json, *(problems or [f"{tool} found nothing"]))
        return report | {"problems": problems}, problems

    return _told(work, as_json)


def _told(work: Callable[[], tuple[dict[str, Any], list[str]]], as_json: bool) -> int:
    try:
        report, problems = work()
    except (EngineError, DecodeError, OSError) as error:
        put(f"zellige: {error}", sys.stderr)
        if as_json:
            put(json.dumps({"error": str(error), "exit_code": 2}), sys.stdout)
        return 2
    code = 1 if problems else 0
    if as_json:
        put(json.dumps(report | {"exit_code": code}), sys.stdout)
    return code


def _say(as_json: bool, *lines: str) -> None:
    """As it is found: a self-test takes minutes."""
    if not as_json and lines:
        put("\n".join(lines), sys.stdout)


def _machine_lines(machine: dict[str, Any], device: str) -> list[str]:
    lines = [", ".join(f"{name} {v or 'not installed'}" for name, v in machine["versions"].items())]
    for d in machine["devices"]:
        figures = {
            "driver": d["driver"],
            "°C": d["temperature_c"],
            "slowed down by": None if d["throttled"] is None else d["throttled"] or "nothing",
            "memory errors corrected": d["ecc_corrected"],
            "uncorrected": d["ecc_uncorrected"],
            "PCIe replays": d["pcie_replays"],
        }
        known = [f"{name} {value}" for name, value in figures.items() if value is not None]
        size = f"{d['memory_bytes'] / 2**30:.0f} GiB, capability {d['capability']}"
        lines.append(", ".join([f"{d['device']} {d['name']}, {size}", *known]))
    if not machine["devices"]:
        lines.append("no GPU that this torch sees: kernels run in Triton's interpreter, at small sizes")
    elif device == "cpu":
        lines.append("on the CPU: kernels run in Triton's interpreter, at small sizes")
    if machine["no_peer_access"]:
        pairs = ", ".join(f"{a} to {b}" for a, b in machine["no_peer_access"])
        lines.append(f"GPUs that cannot read each other's memory: {pairs}")
    if machine["devices"]:
        xids = machine["xids"]
        lines.append(
            "the kernel's log may not be read" if xids is None else f"Xid errors in the kernel's log: {len(xids)}"
        )
    return lines


def _operator_lines(row: dict[str, Any]) -> list[str]:
    error = "not compared" if row["max_rel_l2"] is None else f"{row['max_rel_l2']:.1e} of {row['tolerance']:.0e}"
    first = f"  {row['operator']:18} {row['verdict']:9} {row['launches']:5.0f} launches, worst error {error}"
    return [first, *(f"    {fault}" for fault in row["faults"])]


def _layer_lines(report: dict[str, Any]) -> list[str]:
    width, height = report["size"]
    rows = [
        {
            "place": p["name"],
            "shape": " × ".join(map(str, p["shape"])),
            "own": f"{p['own']:.2e}",
            "running": f"{p['running']:.2e}",
            "tolerance": f"{p['tolerance']:.0e}",
            "row sums": "" if p["row_sums"] is None else "{:.6f} to {:.6f}".format(*p["row_sums"]),
            "": "" if p["sound"] else "over",
        }
        for p in report["places"]
    ]
    first = report["first"]
    what = f"{report['model']} in {report['dtype']} on {report['device']} against float32 on the CPU"
    return [
        f"{what}: {width} × {height} pixels, {report['patches']:,} patches, {report['tokens']:,} tokens",
        "relative L2 of each place; own: its input is the reference's; running: all before it ran there too",
        *table(rows, list(rows[0])),
        *(f"written: {path}" for path in report["dumped"]),
        "every place is within its tolerance" if first is None else f"first over its tolerance: {first}",
    ]
