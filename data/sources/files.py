"""Files and folders of the local file system.

A folder is walked: every regular file that is not hidden and is an image, a document or a container by its suffix or,
failing that, by its bytes is found; the rest is counted. Links are followed, but each folder is entered once.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from zellige.data.pages import DOCUMENTS
from zellige.data.schema import ErrorKind, Item
from zellige.data.sniff import HEAD_BYTES, IMAGE_SUFFIXES, sniff
from zellige.data.sources.base import LARGEST_BYTES, ReadError, StoredFile, check_size, why
from zellige.data.sources.containers import kind_by_head, kind_by_name
from zellige.data.sources.hf_folders import DATASET_MARK, SPLITS_MARK, dataset_files
from zellige.data.sources.members import DOCUMENT_SUFFIXES, HIDDEN
from zellige.data.sources.storage import local_file, local_version, open_regular
from zellige.data.sources.wanted import Wanted, is_run
from zellige.data.uri import to_uri

__all__ = ["LARGEST_BYTES", "Found", "read_local", "walk"]


@dataclass(frozen=True)
class Found:
    """A file that may hold several items: a container of ``kind``, or (None) a document.

    ``sure``: by its suffix; ``named``: by the user, and not met on a walk; ``included``: the filters take its own name.
    """

    file: StoredFile
    kind: str | None
    sure: bool = True
    named: bool = False
    included: bool = False


def read_local(path: bytes) -> bytes:
    """All bytes of a regular file; raises ReadError."""
    try:
        with open_regular(path) as file:
            check_size(os.fstat(file.fileno()).st_size)
            return file.read()
    except OSError as error:
        raise ReadError(*why(error)) from error


def walk(top: bytes, wanted: Wanted, ignored: Counter[str]) -> Iterator[Item | Found]:
    """The images and containers below ``top``: of each folder its files, then its folders, by their bytes."""
    top = os.path.join(top, b"")
    entered: set[tuple[int, int]] = set()
    stores: set[bytes] = set()
    # A stack and not recursion: folders may be nested deeper than Python's limit.
    pending = [top]
    while pending:
        folder = pending.pop()
        try:
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in entered:
                ignored["folder seen already"] += 1
                continue
            entered.add((status.st_dev, status.st_ino))
            listed = _Listed(folder)
        except OSError as error:
            kind, said = why(error)
            yield Item(to_uri(folder), error_kind=kind, error=f"this folder cannot be listed: {said}")
            continue
        if is_run(listed.names, listed.folders):
            store = os.path.dirname(folder.rstrip(b"/"))
            ignored["a store of answers"] += store not in stores
            stores.add(store)
            continue
        try:
            saved = dataset_files(partial(_small, folder)) if listed.has_marks() else None
        except ReadError as error:
            yield Item(to_uri(folder), error_kind=error.kind, error=error.message)
            continue
        if saved is not None:
            for path in (os.path.join(folder, os.fsencode(name)) for name in saved):
                if wanted.in_glob(path[len(top) :]) and not wanted.included(path[len(top) :]):
                    ignored["excluded"] += 1
                elif wanted.in_glob(path[len(top) :]):
                    yield Found(local_file(path), "arrow", included=True)
            continue
        folders: list[tuple[bool, bytes]] = []
        for name in listed.names:
            path = os.path.join(folder, name)
            if name.startswith(HIDDEN):
                ignored["hidden"] += 1
            elif name in listed.folders or (name in listed.links and os.path.isdir(path)):
                if wanted.excludes_folder(path[len(top) :]):
                    ignored["excluded"] += 1
                    continue
                # A real folder before links, so that a file is listed under its real place.
                folders.append((name in listed.links, os.path.join(path, b"")))
            elif (found := _of_entry(path, name in listed.links, path[len(top) :], wanted, ignored)) is not None:
                yield found
        pending += [path for _, path in sorted(folders, reverse=True)]


def named(path: bytes, status: os.stat_result) -> Item | Found:
    """A regular file that was named: an item whatever it is, or what holds several."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix in IMAGE_SUFFIXES and suffix not in DOCUMENT_SUFFIXES:
        return _image(path, status)
    if (kind := kind_by_name(path)) is not None:
        return Found(local_file(path, status), kind)
    head = _head(path)
    if suffix in DOCUMENT_SUFFIXES or sniff(head) in DOCUMENTS:
        return Found(local_file(path, status), None)
    kind = kind_by_head(path, head)
    return _image(path, status) if kind is None else Found(local_file(path, status), kind)


def _image(path: bytes, status: os.stat_result) -> Item:
    return Item(to_uri(path), size_bytes=status.st_size, file_version=local_version(status))


class _Listed:
    """What lies in a folder, by name: the names alone are kept, for there may be a million. Raises OSError."""

    def __init__(self, folder: bytes) -> None:
        self.names: list[bytes] = []
        self.folders: set[bytes] = set()
        self.links: set[bytes] = set()
        with os.scandir(folder) as entries:
            for entry in entries:
                self.names.append(entry.name)
                if entry.is_symlink():
                    self.links.add(entry.name)
                elif entry.is_dir(follow_symlinks=False):
                    self.folders.add(entry.name)
        self.names.sort()

    def has_marks(self) -> bool:
        """Whether it may be a folder that ``datasets`` saved."""
        return any(os.fsencode(mark) in self.names for mark in (DATASET_MARK, SPLITS_MARK))


def _of_entry(path: bytes, link: bool, name: bytes, wanted: Wanted, ignored: Counter[str]) -> Item | Found | None:
    """What one file in a walked folder is; None, counted, where it is nothing for us."""
    kind = kind_by_name(path)
    suffix = os.path.splitext(path)[1].lower()
    try:
        status = os.stat(path)
    except OSError as error:
        if link:
            ignored["broken link"] += 1
        elif kind is None and suffix not in IMAGE_SUFFIXES and suffix not in DOCUMENT_SUFFIXES:
            ignored["not an image"] += 1
        elif wanted.in_glob(name) and wanted.file(name, kind):  # of a folder that may be listed and not entered
            error_kind, said = why(error)
            return Item(to_uri(path), error_kind=error_kind, error=said)
        return None
    if not stat.S_ISREG(status.st_mode):
        ignored["not a regular file"] += 1
    elif not wanted.in_glob(name):
        pass
    elif not wanted.file(name, kind):
        ignored["excluded"] += 1
    elif kind is not None:
        return Found(local_file(path, status), kind, included=wanted.included(name))
    elif suffix in DOCUMENT_SUFFIXES:
        return Found(local_file(path, status), None)
    elif suffix in IMAGE_SUFFIXES:
        return _image(path, status)
    else:
        head = _head(path)
        media_type = sniff(head) or ""
        if media_type in DOCUMENTS:
            return Found(local_file(path, status), None, sure=False)
        if media_type.startswith("image/"):
            return _image(path, status)
        if (kind := kind_by_head(path, head)) is not None:
            return Found(local_file(path, status), kind, sure=False, included=True)
        ignored["not an image"] += 1
    return None


def _small(folder: bytes, name: str) -> bytes | None:
    try:
        return read_local(os.path.join(folder, os.fsencode(name)))
    except ReadError as error:
        if error.kind == ErrorKind.NOT_FOUND:
            return None
        raise


def _head(path: bytes) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(HEAD_BYTES)
    except (OSError, ReadError):
        return b""
