"""How the C library of this process keeps memory that was freed."""

from __future__ import annotations

import ctypes
import sys

#: Parameters of mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 256 << 20


def keep_freed_memory() -> None:
    """Let glibc keep up to 256 MiB of freed memory instead of giving every large tensor back to the kernel.

    Each step frees and takes the same few megabytes again, and a page that comes back from the kernel has to be cleared
    first: a tenth of the vision tower's time on a CPU. Does nothing with another C library.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
