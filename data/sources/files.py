"""Files and folders of the local file system.

A folder is walked: every regular file that is not hidden becomes an item if its suffix or, failing that, its bytes are
those of an image; the rest is counted. A file that was named is an item whatever it is. A name that does not exist is a
failed item, and so is a folder that cannot be listed. Links are followed, but each folder is entered once.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from zellige.data.globs import NameFilter
from zellige.data.schema import ErrorKind, Item
from zellige.data.sniff import HEAD_BYTES, IMAGE_SUFFIXES, sniff
from zellige.data.sources.base import ReadError
from zellige.data.uri import from_uri, to_uri

#: The most that is read of one file: what an uncompressed image of the largest size allowed takes at 8 bytes a pixel,
#: and some. Without it one long file, whatever it holds, could take the memory of the machine and so the run with it.
LARGEST_BYTES = 2 << 30
_HIDDEN = (b".", b"__MACOSX")


class FileSource:
    """The images among ``paths`` (absolute), in that order; in a folder its files, then its folders, by their bytes."""

    def __init__(self, paths: Sequence[bytes], include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        self._paths = tuple(paths)
        self._filter = NameFilter(include, exclude)
        self._ignored: Counter[str] = Counter()

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(to_uri(path) for path in self._paths)

    @property
    def ignored(self) -> Mapping[str, int]:
        return dict(self._ignored)

    def describe(self) -> str:
        shown = ", ".join(self.inputs[:3])
        return shown if len(self._paths) <= 3 else f"{shown} and {len(self._paths) - 3} more"

    def items(self) -> Iterator[Item]:
        self._ignored = Counter()
        # One input cannot name a file twice; several can, and digests keep the memory of millions small.
        seen: set[bytes] | None = set() if len(self._paths) > 1 else None
        for path in self._paths:
            for item in self._of_input(path):
                if seen is not None:
                    digest = bytes.fromhex(item.item_id)
                    if digest in seen:
                        self._ignored["named twice"] += 1
                        continue
                    seen.add(digest)
                yield item

    def read(self, item: Item) -> bytes:
        path = from_uri(item.uri)
        try:
            # Not blocking: a pipe that took the place of a file would be waited for without end.
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise ReadError(ErrorKind.UNREADABLE, "not a regular file")
                if status.st_size > LARGEST_BYTES:
                    raise ReadError(
                        ErrorKind.TOO_LARGE, f"{status.st_size:,} bytes are more than the limit of {LARGEST_BYTES:,}"
                    )
                return file.read()
        except OSError as error:
            raise ReadError(*_why(error)) from error

    def _of_input(self, path: bytes) -> Iterator[Item]:
        try:
            status = os.stat(path)
        except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
            kind, why = _why(error) if isinstance(error, OSError) else (ErrorKind.NOT_FOUND, str(error))
            yield Item(to_uri(path), error_kind=kind, error=why)
            return
        if stat.S_ISDIR(status.st_mode):
            yield from self._walk(path)
        elif not self._filter.wants(os.path.basename(path)):
            self._ignored["excluded"] += 1
        elif stat.S_ISREG(status.st_mode):
            yield Item(to_uri(path), size_bytes=status.st_size)
        else:
            yield Item(to_uri(path), error_kind=ErrorKind.UNREADABLE, error="not a regular file")

    def _walk(self, top: bytes) -> Iterator[Item]:
        top = os.path.join(top, b"")
        entered: set[tuple[int, int]] = set()
        # A stack and not recursion: folders may be nested deeper than Python's limit.
        pending = [top]
        while pending:
            folder = pending.pop()
            try:
                status = os.stat(folder)
                if (status.st_dev, status.st_ino) in entered:
                    self._ignored["folder seen already"] += 1
                    continue
                entered.add((status.st_dev, status.st_ino))
                with os.scandir(folder) as listing:
                    entries = sorted(listing, key=lambda entry: entry.name)
            except OSError as error:
                kind, why = _why(error)
                yield Item(to_uri(folder), error_kind=kind, error=f"this folder cannot be listed: {why}")
                continue
            folders: list[tuple[bool, bytes]] = []
            for entry in entries:
                if entry.name.startswith(_HIDDEN):
                    self._ignored["hidden"] += 1
                elif _is_folder(entry):
                    # A real folder before links, so that a file is listed under its real place.
                    folders.append((entry.is_symlink(), os.path.join(folder, entry.name, b"")))
                elif (item := self._of_entry(entry, entry.path[len(top) :])) is not None:
                    yield item
            pending += [path for _, path in sorted(folders, reverse=True)]

    def _of_entry(self, entry: os.DirEntry[bytes], name: bytes) -> Item | None:
        """The item of one file in a walked folder; None, counted, where it is none."""
        try:
            status = entry.stat()
        except OSError:
            self._ignored["broken link"] += 1
            return None
        if not stat.S_ISREG(status.st_mode):
            self._ignored["not a regular file"] += 1
        elif not self._filter.wants(name):
            self._ignored["excluded"] += 1
        elif os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES or _is_image(entry.path):
            return Item(to_uri(entry.path), size_bytes=status.st_size)
        else:
            self._ignored["not an image"] += 1
        return None


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _is_image(path: bytes) -> bool:
    """Whether a file without an image's suffix holds an image all the same."""
    try:
        with open(path, "rb", buffering=0) as file:
            return (sniff(file.read(HEAD_BYTES)) or "").startswith("image/")
    except OSError:
        return False


def _why(error: OSError) -> tuple[ErrorKind, str]:
    missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
    return ErrorKind.NOT_FOUND if missing else ErrorKind.UNREADABLE, error.strerror or str(error)
