"""Where Triton kernels run: in the interpreter on the CPU, or with ``pytest -m gpu`` compiled on a device."""

from __future__ import annotations

import os
import sys

import pytest

# Read when Triton is first imported, which the conftest of a folder may do before pytest is configured.
if "gpu" not in sys.argv and "-mgpu" not in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("markexpr") != "gpu":
        by_hand = pytest.mark.skip(reason="compiled kernels: run by hand with `pytest -m gpu`")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(by_hand)
