"""What the device that runs a kernel allows: block sizes follow from it and from shapes alone."""

from __future__ import annotations

from functools import lru_cache

import torch

#: Generations whose programs may take over 200 KB of shared memory: H100 and H200, B200 and B300.
_ROOMY = {(9, 0), (10, 0), (10, 3)}


#: The capability that stands in where there is no card: the smallest supported. Compiling for another sets it.
assumed = (8, 6)


@lru_cache
def _capability(index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)


def roomy(device: torch.device) -> bool:
    """Whether a program may keep large tiles in flight; elsewhere it stays within 99 KB."""
    return (_capability(device.index or 0) if device.type == "cuda" else assumed) in _ROOMY
