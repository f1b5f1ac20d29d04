"""A tar read as a WebDataset: members that follow each other and share a key are one sample.

The key is the name up to the first dot of its last part, what follows is the column: ``a/01.left.jpg`` is column
``left.jpg`` of sample ``a/01``. Items are the images, named as in the plain tar; ``--keep`` takes companions by their
column (``txt``, ``cls``, ``json``) or one field of the ``json`` companion.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace

from zellige.data.schema import ErrorKind, Item
from zellige.data.sources.base import ReadError, StoredFile
from zellige.data.sources.members import HIDDEN, member_name
from zellige.data.sources.options import SourceOptions
from zellige.data.sources.tar import TarContainer
from zellige.data.sources.tar_reader import TarReader

#: A companion longer than this is no text to keep beside an answer.
_MOST_COMPANION_BYTES = 1 << 20


@dataclass
class _Sample:
    key: bytes
    ordinal: int
    images: list[Item] = field(default_factory=list)
    columns: set[bytes] = field(default_factory=set)
    metadata: dict[str, str] = field(default_factory=dict)
    left_out: bool = False
    broken: bool = False


class SampleContainer(TarContainer):
    """The images of a tar's samples; a sample without one, or cut in half, is a failed item."""

    def __init__(self, file: StoredFile, options: SourceOptions) -> None:
        super().__init__(file, options)
        self._keep_columns = options.keep

    def items(self) -> Iterator[Item]:
        sample: _Sample | None = None
        columns: set[bytes] = set()
        members = 0
        with closing(TarReader(self._file)) as reader:
            while True:
                try:
                    found = self._next(reader, members)
                except ReadError:
                    if sample is not None:
                        yield from self._ended(sample, cut=sample.broken or not columns <= sample.columns)
                    raise
                if found is None:
                    break
                info = found[1]
                key, column = _split(info.name.encode("utf-8", "surrogateescape"))
                if info.isreg() and not any(part.startswith(HIDDEN) for part in key.split(b"/") if part != b"."):
                    if sample is None or sample.key != key:
                        if sample is not None:
                            yield from self._ended(sample)
                            columns = sample.columns
                        sample = _Sample(key, members)
                    self._take(reader, info, members, column, sample)
                elif not info.isdir():
                    self.ignored["hidden" if info.isreg() else "not a regular file"] += 1
                members += 1
        if sample is not None:
            yield from self._ended(sample)

    def _take(self, reader: TarReader, info: tarfile.TarInfo, ordinal: int, column: bytes, sample: _Sample) -> None:
        before = self.ignored.copy()
        if items := list(self._of_member(reader, info, ordinal)):
            sample.images += items
        else:
            sample.left_out |= self.ignored["excluded"] > before["excluded"]
            self.ignored.clear()  # a companion is no file that was passed by
            self.ignored.update(before)
            if reader.whole(info) and info.size <= _MOST_COMPANION_BYTES:
                sample.metadata |= self._kept(reader, info, column)
        sample.columns.add(column)
        sample.broken |= not reader.whole(info)

    def _kept(self, reader: TarReader, info: tarfile.TarInfo, column: bytes) -> dict[str, str]:
        name = member_name(column)
        fields = [wanted for wanted in self._keep_columns if wanted != name]
        if name not in self._keep_columns and not (name == "json" and fields):
            return {}
        text = member_name(reader.read(info))
        kept = {name: text} if name in self._keep_columns else {}
        if name == "json":
            try:
                row = json.loads(text)
            except ValueError:
                return kept
            if isinstance(row, dict):
                kept |= {f: v if isinstance(v := row[f], str) else json.dumps(v) for f in fields if f in row}
        return kept

    def _ended(self, sample: _Sample, cut: bool = False) -> Iterator[Item]:
        metadata = tuple(sample.metadata.items())
        for item in sample.images:
            if cut and item.error_kind is None:
                item = replace(item, error_kind=ErrorKind.TRUNCATED, error="the archive is cut inside this sample")
            yield replace(item, metadata=metadata)
        if not sample.images and not sample.left_out:
            kind = ErrorKind.TRUNCATED if cut else ErrorKind.EMPTY
            why = "the archive is cut inside this sample" if cut else "this sample holds no image"
            name = member_name(sample.key)
            yield Item(self._file.uri, name, sample.ordinal, error_kind=kind, error=why, metadata=metadata)


def _split(name: bytes) -> tuple[bytes, bytes]:
    """(key, column) of a member's name."""
    folder, base = os.path.split(name)
    stem, _, column = base.partition(b".")
    return os.path.join(folder, stem), column
