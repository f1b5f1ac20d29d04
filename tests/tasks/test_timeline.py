"""A worker's time line and what it runs on."""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from zellige.data.columns import TIMELINE
from zellige.engine.api import EngineStats
from zellige.tasks.environment import environment
from zellige.tasks.gpu_gauges import GpuGauges
from zellige.tasks.timeline import Timeline
from zellige.tasks.watch import Tally


def wait_for(true: Any) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_moments_say_what_the_tally_and_the_engine_say() -> None:
    tally, engine = Tally(items=3, completion_tokens=50), SimpleNamespace(stats=lambda: EngineStats(7, 2))
    with tally.waiting_for_engine(), Timeline(tally, engine, every_s=60) as timeline:  # type: ignore[arg-type]
        wait_for(timeline.moments)
        tally.items = 4
    first, last = timeline.moments()
    assert {name: first[name] for name in ("items", "completion_tokens", "in_flight")} == {
        "items": 3, "completion_tokens": 50, "in_flight": 1
    }  # fmt: skip
    assert (first["engine_running"], first["engine_waiting"], last["items"]) == (7, 2, 4)
    assert set(last) <= set(TIMELINE.names)


def test_engine_that_tells_nothing_leaves_its_columns_out() -> None:
    with Timeline(Tally(), SimpleNamespace(), every_s=60) as timeline:  # type: ignore[arg-type]
        pass
    assert all("engine_running" not in moment for moment in timeline.moments())


def test_long_run_keeps_few_moments_from_its_beginning_to_its_end() -> None:
    tally = Tally()
    timeline = Timeline(tally, SimpleNamespace(), every_s=1.0, most=8)  # type: ignore[arg-type]
    for second in range(100):
        tally.items = second
        timeline._add(timeline._moment())
    kept = [moment["items"] for moment in timeline.moments()]
    assert len(kept) <= 8
    assert (kept[0], kept[-1]) == (0, 99)
    assert kept == sorted(kept)


def test_gauges_are_of_the_hottest_gpu_and_of_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def power(device: int) -> int:
        if device == 1:
            raise RuntimeError("not supported")
        return 250_000

    nvml = SimpleNamespace(
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetTemperature=lambda device, kind: 60 + device,
        nvmlDeviceGetPowerUsage=power,
        nvmlDeviceGetMemoryInfo=lambda device: SimpleNamespace(used=1000),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert GpuGauges().read() == {"temperature_c": 61.0, "power_w": 250.0, "device_memory_bytes": 2000}


def test_machine_without_a_driver_has_no_gauges(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("driver not loaded")

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=refuse))
    assert GpuGauges().read() == {}


def test_environment_is_plain_and_says_versions_and_processors() -> None:
    told = environment()
    assert json.loads(json.dumps(told)) == told
    assert told["processors"] >= 1
    assert "numpy" in told["libraries"]
