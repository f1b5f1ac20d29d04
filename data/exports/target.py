"""Where an export goes: a file or a folder that appears whole, in place of nothing or of an earlier export."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from zellige.data.exports.base import ExportError, folder_of

#: What the exports that write folders leave in them; a folder with anything else is never replaced.
_OURS = re.compile(r"shard-\d{6}\.tar|README\.md|data|data/train-\d{5}-of-\d{5}\.parquet")


@contextmanager
def new_file(dest: Path, overwrite: bool) -> Iterator[BinaryIO]:
    """A file to fill, which is at ``dest`` once the block has ended well; raises ExportError."""
    if dest.is_dir():
        raise ExportError(f"{dest} is a folder; this format is one file, so name a file")
    if dest.exists() and dest.stat().st_size:
        if not overwrite:
            raise ExportError(f"{dest} exists; name another file, or give --overwrite to replace it")
        if not _is_json(dest):
            raise ExportError(f"{dest} is a file that no export wrote; it is not replaced, name another file")
    temporary = folder_of(dest) / f".export.{secrets.token_hex(6)}.tmp"
    with _told(dest):
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(dest)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(dest: Path, overwrite: bool) -> Iterator[Path]:
    """A folder to fill, which is at ``dest`` once the block has ended well; raises ExportError."""
    _may_replace(dest, overwrite)
    dest = dest.resolve()  # "." has no parent of its own
    made = folder_of(dest) / f".export.{secrets.token_hex(6)}.tmp"
    old = made.with_suffix(".old")
    with _told(dest):
        try:
            made.mkdir()
            yield made
            if dest.exists():
                dest.rename(old)  # until the new one is in place: a kill in between leaves both
            made.rename(dest)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(made, ignore_errors=True)


def _is_json(path: Path) -> bool:
    """Whether a file begins as every export of one file does: a photo or a part of a store does not."""
    with _told(path), path.open("rb") as file:
        return file.read(1) == b"{"


def _may_replace(dest: Path, overwrite: bool) -> None:
    if not dest.exists():
        return
    if not dest.is_dir() or dest.is_symlink():
        raise ExportError(f"{dest} is not a folder; this format is a folder of files, so name one")
    found = sorted(p.relative_to(dest).as_posix() for p in dest.rglob("*"))
    if found and not overwrite:
        raise ExportError(f"{dest} is not empty; name another folder, or give --overwrite to replace an earlier export")
    if others := [name for name in found if not _OURS.fullmatch(name)]:
        raise ExportError(f"{dest} holds {others[0]!r}, which no export wrote; it is not replaced, name another folder")


@contextmanager
def _told(dest: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ExportError(
            f"{dest} cannot be written ({error.strerror or error}); make room or name another place, then export again"
        ) from error
