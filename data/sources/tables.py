"""Tables of images: Parquet files, Arrow files and streams. A row is an item; its ordinal is its number, from 0."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import pyarrow as pa

from zellige.data.schema import ErrorKind, Item
from zellige.data.sources.base import ReadError, StoredFile, check_same
from zellige.data.sources.batches import DAMAGE, Batches, open_batches
from zellige.data.sources.cells import begins_as_image, image_in, kept_text
from zellige.data.sources.image_column import ImageColumn, NoImages, column_parts, image_column
from zellige.data.sources.options import SourceOptions

#: Batches that are kept for the rows that come next, and for threads that come a little late.
_KEPT_BYTES = 32 << 20

Metadata = tuple[tuple[str, str], ...]


class TableContainer:
    """One table. Listing it reads no image; reading a row reads its batch, and the ones kept serve its neighbours."""

    def __init__(self, file: StoredFile, options: SourceOptions) -> None:
        self.ignored: Counter[str] = Counter()
        self._stored, self._options = file, options
        self._file: BinaryIO | None = None
        self._table: tuple[Batches, ImageColumn] | None = None
        self._kept: deque[tuple[int, pa.RecordBatch]] = deque()
        self._ahead: Iterator[tuple[int, pa.RecordBatch]] | None = None
        #: The first row that ``_ahead`` has not given.
        self._next = 0
        #: (first, first behind it or None, what is wrong): rows that a damaged place makes unreadable.
        self._lost: list[tuple[int, int | None, str]] = []

    def items(self) -> Iterator[Item]:
        """A row an item, with the kept columns; raises ReadError where the table or its columns are unusable."""
        table, _ = self._opened()
        with _undamaged("this table's list of columns"):
            keep = self._kept_columns(table.schema)
        if not keep and table.rows is not None:
            yield from (Item(self._stored.uri, ordinal=row) for row in range(table.rows))
            return
        columns = [".".join(parts) for parts in keep.values()] or [_cheapest(table.schema)]
        row: int | None = 0
        while row is not None:
            try:
                for start, batch in table.from_row(row, columns, images=False):
                    if start > row:
                        raise ValueError(f"rows {row} to {start - 1} are missing")
                    for index in range(row - start, batch.num_rows):
                        metadata = self._kept_of(batch, keep, index)
                        yield Item(self._stored.uri, ordinal=start + index, metadata=metadata)
                        row = start + index + 1
                if table.rows is None or row == table.rows:
                    return
                raise ValueError(f"{row} rows are there of {table.rows}")
            except DAMAGE as error:
                why = f"damaged table, at or after row {row}: {error}"
                if table.rows is None:
                    raise ReadError(ErrorKind.UNREADABLE, why) from error
            behind = table.next_start(row)
            for lost in range(row, table.rows if behind is None else behind):
                yield Item(self._stored.uri, ordinal=lost, error_kind=ErrorKind.UNREADABLE, error=why)
            row = behind

    def read(self, item: Item) -> bytes:
        row, (_, column) = item.ordinal, self._opened()
        if row is None:
            raise ReadError(ErrorKind.UNREADABLE, "a table is read row by row")
        start, batch = self._batch_of(row)
        if self._options.keep:
            kept = self._kept_of(batch, self._kept_columns(batch.schema), row - start)
            # What a list said of the table's rows stands behind what the table says.
            check_same(item.metadata[: len(kept)], kept, f"what is kept of row {row}")
        return image_in(_cell(batch, column.parts, row - start), self._stored)

    def close(self) -> None:
        self._kept.clear()
        self._ahead = self._table = None
        if self._file is not None:
            self._file.close()
        self._file = None

    def _opened(self) -> tuple[Batches, ImageColumn]:
        if self._table is None:
            self._file = self._stored.open()
            try:
                table = open_batches(self._stored, self._file)
                with _undamaged("this table's list of columns"):
                    try:
                        self._table = table, image_column(table.schema, self._options.column)
                    except NoImages as error:
                        if _writes_images_out(table):
                            raise ReadError(error.kind, error.message) from error
                        raise
            except ReadError:
                self.close()
                raise
        return self._table

    def _batch_of(self, row: int) -> tuple[int, pa.RecordBatch]:
        table, column = self._opened()
        for start, batch in self._kept:
            if start <= row < start + batch.num_rows:
                return start, batch
        for first, end, why in self._lost:
            if first <= row and (end is None or row < end):
                raise ReadError(ErrorKind.UNREADABLE, why)
        # Behind the row group that is being read, a new start is nearer than reading on.
        behind = table.next_start(max(0, self._next - 1))
        ahead = self._ahead
        if ahead is None or row < self._next or (behind is not None and row >= behind):
            keep = [".".join(parts) for parts in self._kept_columns(table.schema).values()]
            ahead, self._next = table.from_row(row, list(dict.fromkeys((*column.leaves, *keep)))), row
        self._ahead = None  # whatever is raised now ends it
        try:
            for start, batch in ahead:
                if start > row:
                    raise ValueError(f"row {row} is missing")
                self._keep(start, batch)
                if row < self._next:
                    # Behind the last row nothing is left to read, and the page that the reader holds is let go.
                    self._ahead = None if self._next == table.rows else ahead
                    return start, batch
        except DAMAGE as error:
            # Remembered, or each row behind the damage would read all that is before it again.
            why = f"damaged table, at or after row {self._next}: {error}"
            self._lost.append((self._next, table.next_start(self._next), why))
            raise ReadError(ErrorKind.UNREADABLE, why) from error
        raise ReadError(ErrorKind.NOT_FOUND, f"the table has no row {row} any more")

    def _kept_columns(self, schema: pa.Schema) -> dict[str, tuple[str, ...]]:
        """Where the columns to keep are; raises ReadError for one that is not there."""
        try:
            return {name: column_parts(schema, name) for name in self._options.keep}
        except ReadError as error:
            # Of another kind than a table that a walk passes by: a slip of the pen must not make its images vanish.
            raise ReadError(ErrorKind.NOT_FOUND, f"--keep: {error.message}") from error

    def _kept_of(self, batch: pa.RecordBatch, keep: dict[str, tuple[str, ...]], index: int) -> Metadata:
        texts = ((name, kept_text(_cell(batch, parts, index))) for name, parts in keep.items())
        return tuple((name, text) for name, text in texts if text is not None)

    def _keep(self, start: int, batch: pa.RecordBatch) -> None:
        self._next = start + batch.num_rows
        self._kept.append((start, batch))
        while len(self._kept) > 1 and sum(b.nbytes for _, b in self._kept) > _KEPT_BYTES:
            self._kept.popleft()


def _writes_images_out(table: Batches) -> bool:
    """Whether the first rows of a column of text hold images as base64 or data: addresses."""
    texts = [f.name for f in table.schema if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
    _, batch = next(table.from_row(0, texts), (0, None)) if texts else (0, None)
    cells = () if batch is None else (_cell(batch, (name,), row) for name in texts for row in range(min(8, len(batch))))
    return any(isinstance(cell, str) and begins_as_image(cell) for cell in cells)


@contextmanager
def _undamaged(what: str) -> Iterator[None]:
    """Turn what pyarrow raises on damaged bytes into ReadError."""
    try:
        yield
    except DAMAGE as error:
        raise ReadError(ErrorKind.UNREADABLE, f"{what} is damaged: {error}") from error


def _cell(batch: pa.RecordBatch, parts: tuple[str, ...], index: int) -> Any:
    value = batch.column(parts[0])[index]
    for part in parts[1:]:
        value = value.value if isinstance(value, pa.ExtensionScalar) else value
        if value is None or not value.is_valid:
            return None
        value = value[part]
    try:
        return value.as_py()
    except UnicodeDecodeError:  # a path in another encoding, or a text that was never checked
        if isinstance(value, (pa.StringScalar, pa.LargeStringScalar, pa.StringViewScalar)):
            return value.as_buffer().to_pybytes().decode("utf-8", "surrogateescape")
        return None
    except (ValueError, OverflowError):  # a time that Python cannot hold
        return value.cast(pa.string()).as_py()


def _cheapest(schema: pa.Schema) -> str:
    """A column to count rows by: of fixed size where there is one."""
    fixed = (field.name for field in schema if pa.types.is_primitive(field.type))
    return next(fixed, schema.names[0] if schema.names else "")
