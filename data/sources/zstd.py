"""Zstandard files as seekable streams: Python's own library has no reader of them before 3.14, and pyarrow has one."""

from __future__ import annotations

import io
from typing import Any, BinaryIO, cast

_DISCARD_BYTES = 1 << 20


def zstd_open(file: BinaryIO) -> BinaryIO:
    """``file``, decompressed; a seek backwards reads from its start again, as with gzip.

    Reading raises EOFError where the file ends inside a frame, OSError where it is damaged.
    """
    return cast(BinaryIO, io.BufferedReader(_Zstd(file), _DISCARD_BYTES))


class _Zstd(io.RawIOBase):
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._rewind()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read(len(buffer))
        except OSError as error:
            if "truncated" in str(error).lower():  # pyarrow has no class for it
                raise EOFError("compressed file ended before its end mark") from error
            raise
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            raise io.UnsupportedOperation("how long it is, is known at its end")
        place = offset + (self._at if whence == io.SEEK_CUR else 0)
        if place < self._at:
            self._rewind()
        discarded = bytearray(_DISCARD_BYTES)
        while self._at < place and self.readinto(memoryview(discarded)[: place - self._at]):
            pass
        return self._at

    def _rewind(self) -> None:
        import pyarrow as pa

        self._file.seek(0)
        self._at = 0
        self._stream = pa.CompressedInputStream(pa.PythonFile(_Shared(self._file), "r"), "zstd")


class _Shared:
    """A file that whoever reads it may close without closing it for others."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self.read, self.seek, self.tell = file.read, file.seek, file.tell

    def close(self) -> None: ...

    def flush(self) -> None: ...
