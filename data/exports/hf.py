"""``hf``: a folder that ``datasets.load_dataset`` reads: Parquet with the images inside, and a card.

Every column of the rows keeps its type; ``metadata`` is JSON text, because ``datasets`` knows no maps. The types are
also written into the files, in the words of ``datasets``, so that the column ``image`` is one of images.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from zellige.data.columns import ANSWERS
from zellige.data.exports.base import Exported, ExportOptions, Row, ok_rows, to_json
from zellige.data.exports.card import card
from zellige.data.exports.names import Names
from zellige.data.exports.originals import Originals
from zellige.data.exports.target import new_folder
from zellige.data.run import Run

_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
#: A row group is this long at most: readers that want one row read its whole group.
_GROUP_ROWS = 100
_GROUP_BYTES = 64 << 20
#: What one cell may hold; Arrow's columns of bytes end at 2 GiB.
_LARGEST_CELL = 1 << 30


def write(run: Run, dest: Path, options: ExportOptions, done: Exported) -> None:
    """Write the folder ``dest``; raises ExportError."""
    originals, names = Originals(run), Names(run)
    with new_folder(run, dest, options) as folder:
        data = folder / "data"
        data.mkdir()
        files = _Files(data, options.shard_bytes)
        try:
            for row in ok_rows(run, done):
                if (image := originals.image(row, done)) is None:
                    continue
                if len(image[0]) > _LARGEST_CELL:
                    done.leave_out(row, "the image is too large for a cell of a table")
                    continue
                path = names.text(row)
                files.add(row | {"image": {"bytes": image[0], "path": path}, "metadata": to_json(row["metadata"])})
                done.rows += 1
        finally:
            files.close()
        for number in range(files.count):
            name = data / f"train-{number:05d}"
            name.rename(f"{name}-of-{files.count:05d}.parquet")
        (folder / "README.md").write_text(card(run, features(), done), encoding="utf-8")
    done.files = files.count


def features() -> list[dict[str, Any]]:
    """The columns as a card lists them."""
    return [{"name": f.name, **_listed(f.type)} for f in _SCHEMA]


def _column(field: pa.Field) -> pa.Field:
    return pa.field(field.name, pa.string() if field.name == "metadata" else field.type)


def _feature(kind: pa.DataType) -> dict[str, Any]:
    """The words of ``datasets`` for a type, as it stores them in a file."""
    if kind == _IMAGE:
        return {"_type": "Image"}
    if pa.types.is_list(kind):
        return {"_type": "List", "feature": {f.name: _feature(f.type) for f in kind.value_type}}
    return {"_type": "Value", "dtype": _name(kind)}


def _listed(kind: pa.DataType) -> dict[str, Any]:
    """The words of ``datasets`` for a type, as a card has them."""
    if kind == _IMAGE:
        return {"dtype": "image"}
    if pa.types.is_list(kind):
        return {"list": [{"name": f.name, **_listed(f.type)} for f in kind.value_type]}
    return {"dtype": _name(kind)}


def _name(kind: pa.DataType) -> str:
    return {"double": "float64", "float": "float32"}.get(str(kind), str(kind))


_REVIEW = [pa.field("review", pa.string()), pa.field("model_answer", pa.string())]
_FIELDS = [pa.field("image", _IMAGE), *map(_column, ANSWERS), *_REVIEW]
_SCHEMA = pa.schema(
    _FIELDS, {"huggingface": json.dumps({"info": {"features": {f.name: _feature(f.type) for f in _FIELDS}}})}
)


class _Files:
    """Parquet files of about ``shard_bytes``, in groups of rows."""

    def __init__(self, folder: Path, shard_bytes: int) -> None:
        self.count = 0
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._rows: list[Row] = []
        self._bytes = 0
        self._written = 0
        self._writer: pq.ParquetWriter | None = None

    def add(self, row: Row) -> None:
        size = len(row["image"]["bytes"])
        if self._rows and (len(self._rows) == _GROUP_ROWS or self._bytes + size > _GROUP_BYTES):
            self._flush()
        self._rows.append(row)
        self._bytes += size

    def close(self) -> None:
        if self._rows:
            self._flush()
        elif not self.count:
            self._open()  # a run with nothing that is ok still has its columns
        self._end()

    def _flush(self) -> None:
        if self._writer is not None and self._written + self._bytes > self._shard_bytes:
            self._end()
        self._open().write_table(pa.Table.from_pylist(self._rows, schema=_SCHEMA))
        self._written += self._bytes
        self._rows, self._bytes = [], 0

    def _open(self) -> pq.ParquetWriter:
        if self._writer is None:
            path = self._folder / f"train-{self.count:05d}"
            self._writer = pq.ParquetWriter(path, _SCHEMA, compression="zstd", write_page_checksum=True)
            self.count += 1
            self._written = 0
        return self._writer

    def _end(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
