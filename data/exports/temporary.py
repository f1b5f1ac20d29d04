"""Hidden files and folders that an export fills before they get their name; the next export removes what a kill left.

Each is locked by the export that fills it, so one that can be locked belongs to nobody. Where a file system has no
locks nothing is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path


def new_name(folder: Path, name: str, ending: str = ".tmp") -> Path:
    """A free hidden name in ``folder`` for what will be called ``name``."""
    return folder / f"{_beginning(name)}{secrets.token_hex(6)}{ending}"


def sweep(folder: Path, name: str, ending: str = ".tmp") -> None:
    """Remove what killed exports to ``name`` left in ``folder``, and nothing that one at work holds."""
    with contextlib.suppress(OSError):
        for path in list(folder.glob(f"{_beginning(name)}*{ending}")):
            with contextlib.suppress(OSError), locked(path):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file or folder; raises OSError where somebody else does or there are no locks."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """``locked``, or nothing where the file system has no locks."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(locked(path))
        yield


def _beginning(name: str) -> str:
    return f".export.{hashlib.sha256(os.fsencode(name)).hexdigest()[:12]}."
