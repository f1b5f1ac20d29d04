"""Where Triton kernels run: in the interpreter on the CPU, or with ``pytest -m gpu`` compiled on a device."""

from __future__ import annotations

import os

import pytest


def _on_gpu(config: pytest.Config) -> bool:
    return config.getoption("markexpr") == "gpu"


def pytest_configure(config: pytest.Config) -> None:
    # Read when a kernel is defined, so before any test module is imported.
    if not _on_gpu(config):
        os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not _on_gpu(config):
        by_hand = pytest.mark.skip(reason="compiled kernels: run by hand with `pytest -m gpu`")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(by_hand)
