"""Where an export goes: a file or a folder that appears whole, in place of nothing or of an earlier export."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from zellige.data.exports.base import ExportError, ExportOptions, WrongPlace, folder_of
from zellige.data.exports.inputs import refuse_inputs
from zellige.data.exports.marks import foreign, is_export_file, write_mark
from zellige.data.exports.temporary import held, new_name, sweep
from zellige.data.run import Run

_WAY_OUT = "it is not replaced; name another place, or move it away yourself"


@contextmanager
def new_file(run: Run, dest: Path, options: ExportOptions) -> Iterator[BinaryIO]:
    """A file to fill, which is at ``dest`` once the block has ended well; raises ExportError."""
    with _told(dest):
        before = _status(dest)
        _judge_file(run, dest, before, options.overwrite)
        folder = folder_of(dest)
        sweep(folder, dest.name)
        temporary = new_name(folder, dest.name)
        try:
            with temporary.open("xb") as file, held(temporary):
                yield file
                file.flush()
                os.fsync(file.fileno())
                if _version(_status(dest)) != _version(before):
                    raise ExportError(f"{dest} was written by somebody else meanwhile; {_WAY_OUT}")
                temporary.replace(dest)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(run: Run, dest: Path, options: ExportOptions) -> Iterator[Path]:
    """A folder to fill, which is at ``dest`` once the block has ended well; raises ExportError."""
    with _told(dest):
        _judge_folder(run, dest, options.overwrite)
        dest = Path(os.path.realpath(dest))  # "." has no parent of its own
        folder = folder_of(dest)
        sweep(folder, dest.name)
        made, old = new_name(folder, dest.name), new_name(folder, dest.name, ".old")
        try:
            made.mkdir()
            with held(made):
                yield made
                write_mark(made, run.run_id)
                _judge_folder(run, dest, options.overwrite)  # again: it may have been filled meanwhile
                if dest.exists():
                    dest.rename(old)  # until the new one is in place: a kill in between leaves both
                try:
                    made.rename(dest)
                except OSError:
                    if old.exists():
                        old.rename(dest)
                    raise
            shutil.rmtree(old, ignore_errors=True)
            sweep(folder, dest.name, ".old")
        finally:
            shutil.rmtree(made, ignore_errors=True)


def refuse_special(dest: Path, status: os.stat_result | None) -> None:
    """Raise WrongPlace for a link, and for what is there and is neither a file nor a folder."""
    if status is None or stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
        return
    if stat.S_ISLNK(status.st_mode):
        raise WrongPlace(f"{dest} is a link to {dest.readlink()}; links are not replaced, name the place itself")
    raise WrongPlace(f"{dest} is a device, a pipe or a socket, and no regular file; name a file that may be made")


def _judge_file(run: Run, dest: Path, status: os.stat_result | None, overwrite: bool) -> None:
    refuse_special(dest, status)
    if status is None:
        return
    if stat.S_ISDIR(status.st_mode):
        raise WrongPlace(f"{dest} is a folder; this format is one file, so name a file")
    if status.st_size:
        if not overwrite:
            raise ExportError(f"{dest} exists; name another file, or give --overwrite to replace an earlier export")
        if not is_export_file(dest):
            raise ExportError(f"{dest} holds what no export wrote; {_WAY_OUT}")
    refuse_inputs(run, dest, [dest])


def _judge_folder(run: Run, dest: Path, overwrite: bool) -> None:
    status = _status(dest)
    refuse_special(dest, status)
    if status is None:
        return
    if not stat.S_ISDIR(status.st_mode):
        raise WrongPlace(f"{dest} is not a folder; this format is a folder of files, so name one")
    found = sorted(dest.rglob("*"))
    if not found:
        return
    if not overwrite:
        raise ExportError(f"{dest} is not empty; name another folder, or give --overwrite to replace an earlier export")
    if (why := foreign(dest, found)) is not None:
        raise ExportError(f"{dest} {why}; {_WAY_OUT}")
    refuse_inputs(run, dest, [dest, *found])


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _version(status: os.stat_result | None) -> tuple[int, ...] | None:
    return None if status is None else (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@contextmanager
def _told(dest: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ExportError(
            f"{dest} cannot be written ({error.strerror or error}); make room or name another place, then export again"
        ) from error
