"""The rows of Parquet and Arrow files as record batches, from any row on, in bounded memory.

Batches are never put together: a column of images may be longer than one Arrow array can be.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from zellige.data.schema import ErrorKind
from zellige.data.sources.base import ReadError, StoredFile

#: What pyarrow raises on damaged bytes; ValueError: names in them that are no text.
DAMAGE = (pa.ArrowException, OSError, ValueError)
#: A batch is about this long, by the mean size of the rows of its row group.
_BATCH_BYTES = 8 << 20
#: Never more rows of images: one that is stored once for many rows is unpacked for each.
_MOST_ROWS = 32
#: Rows of a batch in which no images are read.
_TEXT_ROWS = 1024
_BUFFER_BYTES = 1 << 20
_MAGIC = b"PAR1"
_CONTINUED = b"\xff\xff\xff\xff"


class Batches(Protocol):
    """An open table."""

    schema: pa.Schema
    #: How many rows there are; None where only reading all of them would tell.
    rows: int | None

    def from_row(self, row: int, columns: Sequence[str], images: bool = True) -> Iterator[tuple[int, pa.RecordBatch]]:
        """(number of its first row, batch) for the batch that holds ``row`` and all after it.

        ``columns`` are dotted; at least those are read. ``images``: one of them holds images. Raises pyarrow's errors.
        """
        ...

    def next_start(self, row: int) -> int | None:
        """The first row after ``row`` that can be read whatever is wrong at ``row``; None: there is none."""
        ...


class ParquetBatches:
    """A Parquet file; of a row group, however long, one batch and the data page it lies in are held, not the whole.

    How long a page is, the writer decides: most end one at 1 MB, but look at its length every 1,024 rows only. Of large
    images such a page is a gigabyte, and it is held twice while it is unpacked; no page is longer than 2 GiB.
    """

    def __init__(self, file: BinaryIO) -> None:
        # Without a buffer size pyarrow reads a row group's whole column at once.
        self._file = pq.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True)
        self.schema: pa.Schema = self._file.schema_arrow
        # The metadata of columns is not looked at: pyarrow ends the process where it finds it damaged.
        metadata = self._file.metadata
        groups = [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]
        if min(groups, default=0) < 0 or sum(groups) != metadata.num_rows:
            raise pa.ArrowInvalid(f"it has {metadata.num_rows} rows, and {sum(groups)} in its row groups")
        #: First row of each row group, and the number of rows behind them.
        self._starts = [0, *itertools.accumulate(groups)]
        self.rows: int | None = self._starts[-1]

    def from_row(self, row: int, columns: Sequence[str], images: bool = True) -> Iterator[tuple[int, pa.RecordBatch]]:
        for group in range(bisect.bisect_right(self._starts, row) - 1, len(self._starts) - 1):
            at = self._starts[group]
            size = self._batch_rows(group) if images else _TEXT_ROWS
            for batch in self._file.iter_batches(size, row_groups=[group], columns=list(columns), use_threads=False):
                batch.validate()  # its columns may be of different lengths
                if at + batch.num_rows > row:
                    yield at, batch
                at += batch.num_rows

    def next_start(self, row: int) -> int | None:
        group = bisect.bisect_right(self._starts, row)
        return self._starts[group] if group < len(self._starts) - 1 else None

    def _batch_rows(self, group: int) -> int:
        stored = self._file.metadata.row_group(group)
        return max(1, min(_MOST_ROWS, _BATCH_BYTES * int(stored.num_rows) // max(1, int(stored.total_byte_size))))


class ArrowBatches:
    """An Arrow IPC file or stream. ``source`` gives it anew, for each reading has a place of its own."""

    def __init__(self, source: Callable[[], Any], stream: bool) -> None:
        self._source, self._stream = source, stream
        self.schema: pa.Schema = self._reader(None).schema
        self.rows: int | None = None

    def from_row(self, row: int, columns: Sequence[str], images: bool = True) -> Iterator[tuple[int, pa.RecordBatch]]:
        tops = {name for name in self.schema.names if any(f"{c}.".startswith(f"{name}.") for c in columns)}
        reader, at = self._reader([i for i, name in enumerate(self.schema.names) if name in tops]), 0
        batches = reader if self._stream else (reader.get_batch(i) for i in range(reader.num_record_batches))
        for batch in batches:
            batch.validate()
            if at + batch.num_rows > row:
                _check_cells(batch)
                yield at, batch
            at += batch.num_rows
        if self._stream and not self._has_end():
            raise pa.ArrowInvalid("the stream lacks its end mark, so rows may be missing")

    def next_start(self, row: int) -> int | None:
        return None

    def _reader(self, fields: list[int] | None) -> Any:
        options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=fields)
        return (pa.ipc.open_stream if self._stream else pa.ipc.open_file)(self._source(), options=options)

    def _has_end(self) -> bool:
        with self._source() as file:
            legacy = file.read(4) != _CONTINUED  # its end mark cannot be told from padding
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8))
            return legacy or bool(file.read() == _CONTINUED + bytes(4))


def _check_cells(batch: pa.RecordBatch) -> None:
    """Raises ArrowInvalid for a batch with damaged offsets: Arrow would follow them out of its memory and crash."""
    for column in batch.columns:
        if pa.types.is_string(column.type):  # that its text is UTF-8 is not asked for: a path may be anything
            column = column.view(pa.binary())
        elif pa.types.is_large_string(column.type):
            column = column.view(pa.large_binary())
        column.validate(full=True)


def open_batches(stored: StoredFile, file: BinaryIO) -> Batches:
    """The table in ``file``, by its first bytes; raises ReadError for what is none or is damaged."""
    head = file.read(8)
    if not head:
        raise ReadError(ErrorKind.EMPTY, "the table is empty (0 bytes)")
    try:
        if head[:4] == _MAGIC:
            return ParquetBatches(file)
        source: Callable[[], Any] = stored.open
        if stored.path is not None:  # mapped, so that reading over rows to reach one costs nothing
            mapped = pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            source = functools.partial(pa.BufferReader, mapped)
        return ArrowBatches(source, stream=not head.startswith(b"ARROW1"))
    except DAMAGE as error:
        raise _unusable(file, head, error) from error


def _unusable(file: BinaryIO, head: bytes, error: Exception) -> ReadError:
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - 6))
    whole = file.read().endswith(_MAGIC if head[:4] == _MAGIC else b"ARROW1") and len(head) == 8
    what = "damaged table" if whole else "this table is cut short or was never finished"
    return ReadError(ErrorKind.UNREADABLE if whole else ErrorKind.TRUNCATED, f"{what}: {error}")
