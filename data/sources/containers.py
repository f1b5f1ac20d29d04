"""Which files hold many items, and the readers of them that are kept open."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from zellige.data.sniff import sniff
from zellige.data.sources.base import Container, Opener, StoredFile
from zellige.data.sources.options import SourceOptions
from zellige.data.sources.requests import RequestContainer
from zellige.data.sources.tables import TableContainer
from zellige.data.sources.tar import TarContainer
from zellige.data.sources.tar_reader import holds_tar
from zellige.data.sources.webdataset import SampleContainer
from zellige.data.sources.zip import ZipContainer

#: Kind of container -> how to read it. A new kind is a line here, and its suffixes or first bytes below.
OPENERS: dict[str, Opener] = {
    "zip": ZipContainer,
    "tar": TarContainer,
    "webdataset": SampleContainer,
    "parquet": TableContainer,
    "arrow": TableContainer,
    "requests": RequestContainer,
}
_SUFFIXES = {
    **dict.fromkeys((b".zip", b".cbz"), "zip"),
    **dict.fromkeys(b".tar .tgz .tbz2 .txz .tzst .tar.gz .tar.bz2 .tar.xz .tar.zst".split(), "tar"),
    b".parquet": "parquet",
    b".arrow": "arrow",
}
_MEDIA_TYPES = {"application/zip": "zip", "application/vnd.apache.parquet": "parquet"}
#: Zip files by their bytes that nobody means by "an archive of images".
_NO_ARCHIVES = tuple(b".docx .xlsx .pptx .odt .ods .odp .epub .jar .apk .whl .npz .pt .pth .ckpt .kmz .xpi".split())
#: Containers that are kept open for reading.
_MOST_OPEN = 8


def kind_by_name(name: bytes) -> str | None:
    """The kind of container that a name's suffix says; None for all else."""
    lower = name.lower()
    return next((kind for suffix, kind in _SUFFIXES.items() if lower.endswith(suffix) and kind in OPENERS), None)


def kind_by_head(name: bytes, head: bytes) -> str | None:
    """The kind of container that the first bytes say, where the suffix says nothing."""
    if name.lower().endswith(_NO_ARCHIVES):
        return None
    if head.startswith(b"ARROW1"):
        kind: str | None = "arrow"
    elif holds_tar(head):
        kind = "tar"
    else:
        kind = _MEDIA_TYPES.get(sniff(head) or "")
    return kind if kind in OPENERS else None


class ContainerPool:
    """The readers of the containers used last, kept open; one thread at a time is let into each."""

    def __init__(self, open_file: Callable[[str], tuple[StoredFile, str]], options: SourceOptions) -> None:
        """``open_file`` gives the file of a URI and its kind of container; it may raise ReadError."""
        self._open_file = open_file
        self._options = options
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[Container, threading.Lock]] = OrderedDict()

    @contextmanager
    def use(self, uri: str) -> Iterator[Container]:
        """The container at ``uri``, for this thread alone; raises ReadError where it cannot be opened."""
        with self._lock:
            entry = self._kept.get(uri)
            if entry is not None:
                self._kept.move_to_end(uri)
        if entry is None:
            file, kind = self._open_file(uri)
            with self._lock:  # of two that opened it at once, the first one's is used
                entry = self._kept.setdefault(uri, (OPENERS[kind](file, self._options), threading.Lock()))
                dropped = [self._kept.popitem(last=False)[1]] if len(self._kept) > _MOST_OPEN else []
            for container, busy in dropped:
                with busy:
                    container.close()
        container, busy = entry
        with busy:
            yield container
