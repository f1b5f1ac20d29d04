"""``webdataset``: tar shards, in each sample the image as it was stored, the answer and the row.

The key is the row's id: unique, without dots, and the same in every export. Of several questions each is a sample.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from zellige.data.exports.base import Exported, ExportOptions, ok_rows, to_json
from zellige.data.exports.names import Names
from zellige.data.exports.originals import Originals
from zellige.data.exports.target import new_folder
from zellige.data.run import Run

_BLOCK = tarfile.BLOCKSIZE


def write(run: Run, dest: Path, options: ExportOptions, done: Exported) -> None:
    """Write the folder ``dest`` of ``shard-000000.tar`` and on; raises ExportError."""
    originals, names = Originals(run), Names(run)
    with new_folder(run, dest, options) as folder:
        shards = _Shards(folder, options.shard_bytes)
        try:
            for row in ok_rows(run, done):
                if (image := originals.image(row, done)) is None:
                    continue
                data, suffix = image
                about = row | {"name": names.text(row)}
                shards.add(
                    row["row_id"],
                    {suffix: data, "txt": row["answer"].encode(), "json": to_json(about).encode()},
                )
                done.rows += 1
        finally:
            shards.close()
    done.files = shards.count


class _Shards:
    """Tar files of about ``shard_bytes``; a sample is never split."""

    def __init__(self, folder: Path, shard_bytes: int) -> None:
        self.count = 0
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._tar: tarfile.TarFile | None = None

    def add(self, key: str, files: dict[str, bytes]) -> None:
        size = sum(_BLOCK + -(-len(data) // _BLOCK) * _BLOCK for data in files.values())
        if self._tar is not None and self._tar.offset + size > self._shard_bytes:
            self.close()
        if self._tar is None:
            path = self._folder / f"shard-{self.count:06d}.tar"
            self._tar = tarfile.open(path, "x", format=tarfile.USTAR_FORMAT)  # noqa: SIM115 - closed when it is full
            self.count += 1
        for suffix, data in files.items():
            entry = tarfile.TarInfo(f"{key}.{suffix}")
            entry.size = len(data)
            self._tar.addfile(entry, io.BytesIO(data))

    def close(self) -> None:
        if self._tar is not None:
            self._tar.close()
            self._tar = None
