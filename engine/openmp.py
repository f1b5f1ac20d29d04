"""Which threads of this process call OpenMP's helpers: on a CPU the one that computes, and no other.

Every thread that runs a parallel loop gets helpers of its own, and they stay as long as it lives. Once a process holds
more of them than there are cores, libgomp lets none spin for the next loop any more, in all of its pools: waking them
then costs some 50 µs a loop. A decoding step has a hundred such loops and took twice as long for it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def in_own_thread(work: Callable[[], T]) -> T:
    """What ``work`` gives, done in a thread whose helpers end with it."""
    with ThreadPoolExecutor(1, thread_name_prefix="zellige-load") as executor:
        return executor.submit(work).result()
