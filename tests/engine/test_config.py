from __future__ import annotations

import pytest

from zellige.engine.config import ConfigError, EngineConfig


@pytest.mark.parametrize("device", ["cpu:9", "cpu:", "gpu", ":0"])
def test_a_device_that_there_is_not_is_refused(device: str) -> None:
    with pytest.raises(ConfigError, match="is not one of cpu, cuda, cuda:N"):
        EngineConfig.load(device)


def test_a_dtype_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="float32, bfloat16, float16"):
        EngineConfig.load("cpu", "int8")


def test_a_gpus_share_of_memory_means_nothing_on_a_cpu() -> None:
    with pytest.raises(ConfigError, match="on a CPU set cache_bytes"):
        EngineConfig.load("cpu", limits={"gpu_memory_fraction": 0.5})
