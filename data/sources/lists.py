"""List files: text, CSV, JSON lines or Parquet whose rows name the images, relative to the list's own folder.

Text has one name a line. The others have a column, ``--column`` or the first of ``COLUMNS`` that is there; a CSV of
one column without a known name has no header. Rows end at ``\\n`` alone: other line ends are letters of a name.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, cast

from zellige.data.schema import ErrorKind
from zellige.data.sniff import HEAD_BYTES, sniff
from zellige.data.sources.base import ReadError, SourceError, StoredFile
from zellige.data.sources.batches import DAMAGE
from zellige.data.sources.cells import is_embedded
from zellige.data.sources.options import SourceOptions

#: Names of the column, the first that is there.
COLUMNS = (
    *("uri", "url", "path", "image_path", "image_uri", "image_url", "file_path", "filepath"),
    *("file", "filename", "file_name", "image"),
)
SUFFIXES = (b".txt", b".csv", b".jsonl")
#: What the bytes of a list may say that it is.
TEXT = (None, "text/plain", "application/json")
_LONGEST_LINE_BYTES = 8 << 20
#: Rows of a Parquet file that are looked at to tell names from images written as text.
_LOOKED_AT_ROWS = 16
#: What a row says: the name (empty where there is none), the columns to keep, and what is wrong with the row.
Kept = tuple[tuple[str, str], ...]
Row = tuple[bytes, Kept, str | None]


class ListFile:
    """The rows of one list file, streamed."""

    def __init__(self, file: StoredFile, options: SourceOptions) -> None:
        self._file = file
        self._options = options
        self._suffix = os.path.splitext(file.uri)[1].lower()

    def check(self) -> None:
        """Raises SourceError for what is no list of names; a list that cannot be read is no wrong usage."""
        with suppress(ReadError):
            next(self.rows(), None)

    def rows(self) -> Iterator[Row]:
        """Every row in its order; raises ReadError where the list cannot be read on, SourceError where it is none."""
        with self._file.open() as file:
            self._check_head(file)
            if self._suffix == ".csv":
                yield from self._csv(file)
            elif self._suffix == ".jsonl":
                yield from self._json_lines(file)
            elif self._suffix == ".parquet":
                yield from self._parquet(file)
            else:
                yield from ((line, (), None) for line in _lines(file) if line)

    def _check_head(self, file: BinaryIO) -> None:
        """Raises SourceError for a file whose bytes are none of a list, whatever its name is."""
        head = file.read(HEAD_BYTES)
        file.seek(0)
        kind = sniff(head)
        if self._suffix == ".parquet" or (kind in TEXT and b"\0" not in head):
            return
        what = f"is {kind}" if kind not in TEXT else "is no text in UTF-8 or in any other form without zero bytes"
        raise SourceError(
            f"{self._file.uri} {what}, and no list of names; name it without list:, or give a list as UTF-8 text, "
            "CSV, JSON lines or Parquet"
        )

    def _column(self, names: Sequence[str]) -> str:
        wanted = self._options.column
        found = next((name for name in ((wanted,) if wanted else COLUMNS) if name in names), None)
        if found is None:
            missing = f"no column {wanted!r}" if wanted else "no column of names"
            raise SourceError(f"{self._file.uri} has {missing}, but {', '.join(names[:20])}; name one with --column")
        return found

    def _check_keep(self, names: Collection[str]) -> None:
        """Raises ReadError for a column to keep that the list does not have, as a table does."""
        for name in self._options.keep:
            if name not in names:
                told = f"--keep: there is no column {name}. The columns are: {', '.join(list(names)[:20])}"
                raise ReadError(ErrorKind.NOT_FOUND, told)

    def _row(self, cells: dict[str, Any], column: str) -> Row:
        kept = tuple(
            (k, v if isinstance(v := cells[k], str) else json.dumps(v, default=str))
            for k in self._options.keep
            if cells.get(k) is not None
        )
        name = cells.get(column)
        if not isinstance(name, str) or not name:
            return b"", kept, f"this row has no name in the column {column!r}"
        return name.encode("utf-8", "surrogateescape"), kept, None

    def _csv(self, file: BinaryIO) -> Iterator[Row]:
        text = io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="\n")
        table = csv.reader(text)
        try:
            names = next(table, None)
            if names is None:
                return
            if len(names) == 1 and not self._options.column and names[0] not in COLUMNS:
                yield names[0].encode("utf-8", "surrogateescape"), (), None
                yield from ((row[0].encode("utf-8", "surrogateescape"), (), None) for row in table if row)
                return
            column = self._column(names)
            self._check_keep(names)
            yield from (self._row(dict(zip(names, row, strict=False)), column) for row in table if row)
        except csv.Error as error:
            raise ReadError(ErrorKind.UNREADABLE, f"line {table.line_num} is no CSV: {error}") from error

    def _json_lines(self, file: BinaryIO) -> Iterator[Row]:
        column: str | None = None
        if self._options.keep:
            self._check_keep_of_lines(file)
        for line in _lines(file):
            if not line.strip():
                continue
            try:
                cells = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield b"", (), f"this line is no JSON: {error}"
                continue
            if isinstance(cells, str):
                yield cells.encode("utf-8", "surrogateescape"), (), None
            elif isinstance(cells, dict):
                column = column or self._column(list(cells))
                yield self._row(cells, column)
            else:
                yield b"", (), "this line is neither a name nor an object"

    def _check_keep_of_lines(self, file: BinaryIO) -> None:
        """Any line may be the only one with a column: read on until each is met, which most often the first does."""
        names: dict[str, None] = {}
        for line in _lines(file):
            with suppress(ValueError, RecursionError):
                if isinstance(cells := json.loads(line), dict):
                    names |= dict.fromkeys(cells)
                    if names.keys() >= set(self._options.keep):
                        break
        file.seek(0)
        if names:
            self._check_keep(names)

    def _parquet(self, file: BinaryIO) -> Iterator[Row]:
        import pyarrow.parquet as pq

        try:
            table = pq.ParquetFile(file)
            names = table.schema_arrow.names
            column = self._column(names)
            self._check_keep(names)
            wanted = [column, *(name for name in self._options.keep if name in names and name != column)]
            for batch in table.iter_batches(batch_size=8192, columns=wanted):
                columns = [_cells(cells) for cells in batch.columns]
                for row in zip(*columns, strict=True):
                    yield self._row(dict(zip(batch.schema.names, row, strict=True)), column)
        except DAMAGE as error:
            raise ReadError(ErrorKind.UNREADABLE, f"this Parquet file is damaged: {error}") from error


def names_images(file: StoredFile, options: SourceOptions) -> bool:
    """Whether a Parquet file is a list: it has a column of names, and none of images, be they bytes or text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with file.open() as opened:
            table = pq.ParquetFile(opened, buffer_size=1 << 20, pre_buffer=False)
            types = [field.type for field in table.schema_arrow]
            nested = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_struct, pa.types.is_list)
            if any(test(kind) for kind in types for test in nested):
                return False
            is_text = (pa.types.is_string, pa.types.is_large_string)
            texts = {f.name for f in table.schema_arrow if any(test(f.type) for test in is_text)}
            columns = (options.column,) if options.column else COLUMNS
            column = next((name for name in columns if name in texts), None)
            if column is None:
                return False
            first = next(table.iter_batches(_LOOKED_AT_ROWS, columns=[column], use_threads=False), None)
            cells = [] if first is None else _cells(first.column(0))
    except (ReadError, *DAMAGE):
        return False
    return not any(is_embedded(cell) for cell in cells if cell)


def _cells(column: Any) -> list[Any]:
    """The cells of a column as Python has them; of text that is not UTF-8, the bytes as surrogates."""
    import pyarrow as pa

    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return cast(list[Any], column.to_pylist())
    kind = pa.binary() if pa.types.is_string(column.type) else pa.large_binary()
    return [c if c is None else c.decode("utf-8", "surrogateescape") for c in column.view(kind).to_pylist()]


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines without their ends; those of Windows are taken too."""
    first = True
    while line := file.readline(_LONGEST_LINE_BYTES):
        if len(line) == _LONGEST_LINE_BYTES:
            raise ReadError(ErrorKind.UNREADABLE, f"a line is longer than {_LONGEST_LINE_BYTES:,} bytes; no list")
        if first:
            line, first = line.removeprefix(b"\xef\xbb\xbf"), False
        yield line.removesuffix(b"\n").removesuffix(b"\r")
