"""What is read of GPUs, with a library that stands for NVIDIA's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from zellige.kernels.devices import Device, Xid, devices, with_figures, xids_in

BARE = Device("cuda:1", "NVIDIA H200", 140 << 30, "9.0")


class NVMLError(Exception):
    pass


def library(**figures):
    """Knows the card GPU-x; a figure that is not given is one that the card does not have."""

    def ask(name):
        def answer(*arguments):
            if name not in figures:
                raise NVMLError("not supported")
            value = figures[name]
            return value(*arguments) if callable(value) else value

        return answer

    def by_uuid(uuid):
        if uuid != "GPU-x":
            raise NVMLError("not found")
        return "handle"

    names = ("CurrentClocksThrottleReasons", "TotalEccErrors", "Temperature", "PcieReplayCounter")
    return SimpleNamespace(
        NVMLError=NVMLError,
        NVML_TEMPERATURE_GPU=0,
        NVML_MEMORY_ERROR_TYPE_CORRECTED=0,
        NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1,
        NVML_VOLATILE_ECC=0,
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlSystemGetDriverVersion=lambda: "580.1",
        **{f"nvmlDeviceGet{name}": ask(name) for name in names},
    )


def test_figures_are_read_and_what_is_wrong_is_told():
    nvml = library(
        CurrentClocksThrottleReasons=0x1 | 0x4 | 0x20,
        TotalEccErrors=lambda handle, kind, counter: {0: 12, 1: 3}[kind],
        Temperature=71,
        PcieReplayCounter=5,
    )
    device = with_figures(BARE, nvml, "GPU-x")
    assert (device.driver, device.temperature_c, device.pcie_replays) == ("580.1", 71, 5)
    assert (device.ecc_corrected, device.ecc_uncorrected) == (12, 3)
    assert device.throttled == "power cap, temperature (driver)"
    memory, slow = device.problems
    assert "3 uncorrected memory errors" in memory
    assert "cuda:1 is slowed down" in slow


def test_a_card_that_idles_has_no_problem():
    device = with_figures(BARE, library(CurrentClocksThrottleReasons=0x1, TotalEccErrors=0), "GPU-x")
    assert device.throttled == ""
    assert device.problems == []


def test_figures_that_a_card_does_not_have_are_none():
    device = with_figures(BARE, library(), "GPU-x")
    assert (device.throttled, device.ecc_uncorrected, device.temperature_c) == (None, None, None)
    assert device.problems == []


def test_a_card_that_the_library_does_not_know_stays_as_torch_tells_it():
    assert with_figures(BARE, library(Temperature=50), "GPU-y") == BARE


def test_xid_errors_are_found_in_a_log():
    log = """[   10.1] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.1
[  777.7] NVRM: Xid (PCI:0000:3b:00): 31, pid=4242, name=python3, Ch 00000008, MMU Fault: ENGINE GRAPHICS
[  778.0] usb 1-1: new device
[  900.2] NVRM: Xid (PCI:0000:5e:00.0): 79, GPU has fallen off the bus."""
    assert xids_in(log) == [
        Xid("0000:3b:00", 31, "pid=4242, name=python3, Ch 00000008, MMU Fault: ENGINE GRAPHICS"),
        Xid("0000:5e:00.0", 79, "GPU has fallen off the bus."),
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_no_device():
    assert devices() == []
