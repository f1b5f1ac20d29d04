"""What the store asks of the place that holds its files, and a folder of this machine as such a place.

The other one is ``objects.py``. Whatever the place, a file is put there whole or not at all, and of several who create
one file at the same time one does.
"""

from __future__ import annotations

import errno
import fnmatch
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self

from zellige.data.files import StoreUnusable, remove_leftovers, usable, write_whole

#: Tells one state of a file from every other.
Stamp = tuple[object, ...]
#: Ends of the names of hidden folders: of a run that is being deleted, or created, which takes a moment.
_DELETED, _CREATED = ".deleted", ".tmp"
_CREATED_WITHIN_S = 3600.0


class Folder(Protocol):
    """The files of one folder, by name. What fails raises an OSError or StoreUnusable; a missing file is
    FileNotFoundError where nothing else is said.
    """

    #: Where the files are on this machine; of a folder elsewhere: where copies of them go.
    path: Path

    def __truediv__(self, name: str) -> Self: ...

    def at(self, name: str) -> Path | str:
        """The file's address, for people."""

    def make(self) -> None:
        """Have the folder where it is missing."""

    def names(self) -> list[str]:
        """The names in the folder, folders among them."""

    def stamps(self) -> dict[str, Stamp]:
        """The files of the folder."""

    def has(self, name: str) -> bool: ...

    def read(self, name: str) -> bytes: ...

    def put(self, name: str, write: Callable[[BinaryIO], object], *, first: bool = False) -> bool:
        """Let ``write`` fill the file, which is there whole when this returns, in place of an older one.

        With ``first`` an object store, where a PUT may take long, keeps a file that came before ours: then False.
        """

    def create(self, name: str, data: bytes) -> bool:
        """The file with ``data``, which nobody else's has; False where there is one of that name."""

    def append(self, name: str, line: bytes) -> None:
        """Add a line to a file that nobody else writes. A kill leaves all of it, or part of it behind all others.

        An object is not added to: there ``name`` becomes ``name`` with a number, whenever one has grown long.
        """

    def touch(self, name: str, data: bytes) -> None:
        """Make the file, which holds ``data``, as new as can be."""

    def heard(self, name: str) -> float:
        """When the file was last written or touched, by the clock of the place."""

    def remove(self, name: str) -> None:
        """Remove the file, if it is there."""

    def move(self, name: str, to: Self, new_name: str) -> None: ...

    def clear(self, name: str) -> None:
        """Remove what killed writers of the file left; for who alone may write it."""

    def fetch(self, names: Sequence[str]) -> list[Path]:
        """The files on this machine, as they are now, to be read only."""

    def ends(self, names: Iterable[str]) -> Iterator[tuple[str, BinaryIO]]:
        """The files, or at least their ends, to be read; without those that are missing."""

    def changed(self) -> int:
        """A number of 63 bits that is another one once files of the folder came or went, or it was marked."""

    def mark(self) -> None:
        """Let ``changed`` be another one."""

    def begin(self, name: str, file: str, data: bytes, folders: Sequence[str]) -> bool:
        """A folder inside with ``file`` and ``folders``, at once; False where there is one of that name."""

    def having(self, file: str) -> list[str]:
        """The folders inside that hold ``file``."""

    def delete(self, name: str, file: str) -> None:
        """Remove a folder inside: ``file`` is gone first, and ``sweep`` removes what a kill leaves of the rest."""

    def sweep(self, file: str) -> None:
        """Remove the rest of folders whose deletion, or creation, was killed; what cannot be removed stays."""

    def check_writable(self) -> None:
        """Raise StoreUnusable where files cannot be written, or one of that name not be created only once."""


def matching(folder: Folder, pattern: str) -> list[str]:
    """The names in the folder that ``pattern`` matches, sorted; none where there is no folder. Raises StoreUnusable."""
    with usable(folder, "list"):
        try:
            return sorted(fnmatch.filter(folder.names(), pattern))
        except (FileNotFoundError, NotADirectoryError):
            return []


def as_json(value: Mapping[str, Any]) -> bytes:
    """One JSON object in ASCII, as the store's files have it."""
    return (json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False) + "\n").encode("ascii")


def write_json(folder: Folder, name: str, value: Mapping[str, Any]) -> None:
    """The file as one JSON object, whole; raises StoreUnusable."""
    with usable(folder.at(name), "write"):
        folder.put(name, lambda file: file.write(as_json(value)))


def read_json(folder: Folder, name: str) -> dict[str, Any] | None:
    """The object in the file; None where the file is missing; raises StoreUnusable where it holds no JSON object."""
    with usable(folder.at(name), "read"):
        try:
            value = json.loads(folder.read(name))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise StoreUnusable(f"{folder.at(name)} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise StoreUnusable(f"{folder.at(name)} is damaged: it should hold one JSON object")
    return value


class LocalFolder:
    """A folder of this machine, or one that is mounted here."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __truediv__(self, name: str) -> LocalFolder:
        return LocalFolder(self.path / name)

    def __str__(self) -> str:
        return str(self.path)

    def at(self, name: str) -> Path:
        return self.path / name

    def make(self) -> None:
        self.path.mkdir(exist_ok=True)

    def names(self) -> list[str]:
        return os.listdir(self.path)  # noqa: PTH208  (as text, without a Path for every name)

    def stamps(self) -> dict[str, Stamp]:
        found: dict[str, Stamp] = {}
        with os.scandir(self.path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # moved this instant
                    status = entry.stat()
                    found[entry.name] = (status.st_ino, status.st_mtime_ns, status.st_size)
        return found

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def put(self, name: str, write: Callable[[BinaryIO], object], *, first: bool = False) -> bool:
        write_whole(self.path / name, write)
        return True

    def create(self, name: str, data: bytes) -> bool:
        try:
            self._write(name, os.O_EXCL, data)
        except FileExistsError:
            return False
        return True

    def append(self, name: str, line: bytes) -> None:
        self._write(name, os.O_APPEND, line)

    def touch(self, name: str, data: bytes) -> None:
        os.utime(self.path / name)

    def heard(self, name: str) -> float:
        return (self.path / name).stat().st_mtime

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def move(self, name: str, to: LocalFolder, new_name: str) -> None:
        (self.path / name).rename(to.path / new_name)

    def clear(self, name: str) -> None:
        remove_leftovers(self.path / name)

    def fetch(self, names: Sequence[str]) -> list[Path]:
        return [self.path / name for name in names]

    def ends(self, names: Iterable[str]) -> Iterator[tuple[str, BinaryIO]]:
        for name in names:
            try:
                file: BinaryIO = (self.path / name).open("rb")
            except FileNotFoundError:
                continue
            except OSError:  # as good as empty
                file = BytesIO()
            with file:
                yield name, file

    def changed(self) -> int:
        return self.path.stat().st_mtime_ns

    def mark(self) -> None:
        os.utime(self.path)

    def begin(self, name: str, file: str, data: bytes, folders: Sequence[str]) -> bool:
        made = self.path / f".{name}.{secrets.token_hex(4)}{_CREATED}"
        try:
            for folder in folders:
                (made / folder).mkdir(parents=True)
            write_whole(made / file, lambda out: out.write(data))
            try:
                made.rename(self.path / name)
            except OSError:
                if (self.path / name).exists():
                    return False
                raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return True

    def having(self, file: str) -> list[str]:
        if not self.path.is_dir():
            return []
        return sorted(p.name for p in self.path.iterdir() if not p.name.startswith(".") and (p / file).exists())

    def delete(self, name: str, file: str) -> None:
        aside = self.path / f".{name}.{secrets.token_hex(4)}{_DELETED}"
        (self.path / name).rename(aside)
        with suppress(FileNotFoundError):  # another command swept a part of it away meanwhile
            shutil.rmtree(aside)

    def sweep(self, file: str) -> None:
        for rest in [*self.path.glob(f".*{_DELETED}"), *self.path.glob(f".*{_CREATED}")]:
            with suppress(FileNotFoundError):
                if rest.name.endswith(_DELETED) or time.time() - rest.stat().st_mtime > _CREATED_WITHIN_S:
                    shutil.rmtree(rest, ignore_errors=True)

    def check_writable(self) -> None:
        """Writes nothing itself."""
        with usable(self.path, "write to"):
            there = next(p for p in (self.path, *self.path.parents) if os.path.lexists(p))
            if not there.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, f"{there} is no folder")
            if os.statvfs(there).f_flag & os.ST_RDONLY:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            if not os.access(there, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, f"{there} may not be written")

    def _write(self, name: str, how: int, data: bytes) -> None:
        """One system call, so that a kill leaves all of it or a part."""
        flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | how
        descriptor = os.open(self.path / name, flags, 0o666)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
