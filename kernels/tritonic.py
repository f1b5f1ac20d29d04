"""Triton where it is installed. A machine with PyTorch for the CPU alone imports every operator without it.

Kernels name their compile-time parameters ``tl.constexpr`` in annotations that nobody evaluates (``from __future__
import annotations``), so without Triton nothing of theirs runs until a launch, which then says what is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

__all__ = ["jit", "tl"]

jit: Callable[[Callable[..., Any]], Any]
tl: Any

try:
    import triton
    import triton.language
except ImportError:

    class _Unlaunchable:
        def __init__(self, function: Callable[..., Any]) -> None:
            self._name = function.__name__

        def __getitem__(self, grid: object) -> NoReturn:
            raise RuntimeError(f"{self._name} is a Triton kernel and triton is not installed: pip install triton")

    jit, tl = _Unlaunchable, None
else:
    jit, tl = triton.jit, triton.language
