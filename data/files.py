"""Files of the store: written whole or not at all, and errors that say what to do."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_FOLDER = (errno.ENOTDIR, errno.EEXIST)


class LedgerError(Exception):
    """The store cannot do what was asked; the message says why and what to do."""


class StoreUnusable(LedgerError):
    """The store cannot be written or read: full, read-only, damaged or not there."""


@contextmanager
def usable(path: object, doing: str) -> Iterator[None]:
    """Turn an OSError within into StoreUnusable: ``doing`` is what was tried ("write"), ``path`` where."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            advice = "the disk is full; free some space and resume the run, nothing committed is lost"
        elif error.errno in _FORBIDDEN:
            advice = f"{error.strerror}; name a store that you may write to"
        elif error.errno in _NO_FOLDER:
            advice = f"{error.strerror}; a file is where a folder should be, name another store"
        elif error.errno == errno.ENOENT:
            advice = f"{error.strerror}; name a store in a folder that is there and may be written to"
        elif error.errno == errno.EIO:
            advice = f"{error.strerror}; look at the disk, then resume the run: nothing committed is lost"
        else:
            advice = error.strerror or str(error)
        raise StoreUnusable(f"cannot {doing} {path}: {advice}") from error


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let ``write`` fill a temporary file, then put it at ``path`` at once; raises StoreUnusable and leaves nothing.

    After a return the bytes are on the disk; after a kill the old file is there, or the new one, whole.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    with usable(path, "write"):
        try:
            with temporary.open("xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def remove_leftovers(path: Path) -> None:
    """Delete temporary files that a killed writer of ``path`` left; only for who alone may write ``path``."""
    for other in path.parent.iterdir():
        if other.name.startswith(f".{path.name}.") and other.name.endswith(".tmp"):
            other.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make a rename inside ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
