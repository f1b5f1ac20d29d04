"""One process of the decode pool: makes images ready one at a time. ``data/decode_pool.py`` starts it.

Whatever a decoder does to it (a crash, too much memory, no end) costs one image. It ends when its parent does.
"""

from __future__ import annotations

import hashlib
import io
import os
import resource
import select
import signal
import socket
import stat
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import BinaryIO

from zellige.data.decode import DecodeError, DecodeLimits, Probed, decode, probe
from zellige.data.decode_wire import (
    LONGEST_WORDS,
    Counted,
    CountPages,
    Failed,
    GoOn,
    Header,
    Large,
    Order,
    Piece,
    ReadHeader,
    Ready,
    Setup,
    receive,
    send,
    written,
)
from zellige.data.pdf import count_pages
from zellige.data.regions import FORMATS, REGION_LIMITS, RegionImage
from zellige.data.schema import ErrorKind
from zellige.data.views import UnseenShapeError, View, views_of

#: Images up to this many pixels are decoded whole, and larger ones too where their format cannot be read by region.
WHOLE = DecodeLimits(64_000_000)
#: Files up to this size are read at once; of a longer one the header is looked at first.
READ_AT_ONCE_BYTES = 64 << 20
#: The most that is read into memory of one file; see ``LARGEST_BYTES`` of the file source.
MOST_BYTES = 2 << 30


class Image:
    """One image of an order: what is known of it so far, for the row of one that fails."""

    def __init__(self, sock: socket.socket, order: Order, file: BinaryIO) -> None:
        self._sock, self._order, self._file = sock, order, file
        self.probed: Probed | None = None
        self.digest: str | None = None

    def views(self) -> Iterator[tuple[Header, View]]:
        """The views one after another; raises DecodeError or UnseenShapeError."""
        size = os.fstat(self._file.fileno()).st_size
        data = self._read() if size <= READ_AT_ONCE_BYTES else None
        if data is not None:
            try:
                yield from self._whole(data, WHOLE)
                return
            except DecodeError as error:
                if error.kind is not ErrorKind.TOO_LARGE:
                    self._look(data)
                    raise
        self._look(data)
        if self.probed is not None and self.probed.format in FORMATS and self._pixels() > WHOLE.max_pixels:
            yield from self._by_region(data)
            return
        if size > MOST_BYTES:
            raise DecodeError(ErrorKind.TOO_LARGE, f"{size:,} bytes are more than the limit of {MOST_BYTES:,}")
        yield from self._whole(self._read() if data is None else data, DecodeLimits())

    def _pixels(self) -> int:
        return 0 if self.probed is None else self.probed.width * self.probed.height

    def _look(self, data: bytes | None) -> None:
        """Read the header, where it can be read: an image that fails later is still known by its size."""
        try:
            self._file.seek(0)
            self.probed = probe(self._file if data is None else data, REGION_LIMITS, self._order.page)
        except DecodeError as error:
            if error.kind is ErrorKind.TOO_LARGE:
                raise

    def _read(self) -> bytes:
        self._file.seek(0)
        data = self._file.read()
        self.digest = hashlib.sha256(data).hexdigest()
        return data

    def _whole(self, data: bytes, limits: DecodeLimits) -> Iterator[tuple[Header, View]]:
        decoded = decode(data, limits, self._order.page)
        assert self.digest is not None
        header = Header(decoded.width, decoded.height, decoded.frames, self.digest, decoded.warning)
        self.probed = Probed(decoded.width, decoded.height, decoded.format)
        for view in views_of(decoded.pixels, self._order.rule):
            yield header, view

    def _by_region(self, data: bytes | None) -> Iterator[tuple[Header, View]]:
        assert self.probed is not None
        send(self._sock, Large(self._pixels()))
        if self.digest is None:
            self._file.seek(0)
            self.digest = _digest(self._file)
        file = self._file if data is None else io.BytesIO(data)
        image = RegionImage(file, self.probed.format, self._order.page)
        header = Header(image.width, image.height, image.frames, self.digest, image.warning)
        for view in image.views(self._order.rule):
            yield header, view


def main(descriptor: int) -> None:
    """Serve the parent at the other end of the socket until it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent finishes what it has in hand, and then ends this process
    sock = socket.socket(fileno=descriptor)
    threading.Thread(target=_end_with_parent, args=(sock.fileno(),), daemon=True).start()
    got = receive(sock)
    if got is None:
        return
    setup: Setup = got[0]
    # Counts what this process has for itself; maps of files and of shared pixels do not count.
    resource.setrlimit(resource.RLIMIT_DATA, (setup.memory_bytes, setup.memory_bytes))
    send(sock, Ready())
    while (got := receive(sock)) is not None:
        order, file = got
        if isinstance(order, Order):
            serve(sock, order, file)
        elif file is None:
            raise RuntimeError(f"{type(order).__name__} came without its file")
        else:
            answer(sock, order, file)


def serve(sock: socket.socket, order: Order, descriptor: int | None) -> None:
    """Answer one order: its views, or what is wrong with the image."""
    image, start = None, time.perf_counter()
    try:
        with _opened(order, descriptor) as file:
            image = Image(sock, order, file)
            held: tuple[Header, View] | None = None
            for place, found in enumerate(image.views()):
                if place < order.skip:
                    continue
                if held is not None:
                    if not _give(sock, held, start, last=False):
                        return
                    start = time.perf_counter()
                held = found
            if held is not None:
                _give(sock, held, start, last=True)
    except Exception as error:
        failed = _failure(error)
        known: dict[str, int | str | None] = {}
        if image is not None:
            known = {"content_sha256": image.digest}
            if image.probed is not None:
                known |= {"width": image.probed.width, "height": image.probed.height}
        send(sock, Failed(**vars(failed) | known | {"seconds": time.perf_counter() - start}))


def answer(sock: socket.socket, asked: CountPages | ReadHeader, descriptor: int) -> None:
    """Answer what planning asks of a file, from its headers alone."""
    try:
        with os.fdopen(descriptor, "rb") as file:
            file.seek(0)
            if isinstance(asked, ReadHeader):
                send(sock, probe(file, REGION_LIMITS, asked.page))
            else:
                count, missing = count_pages(file)
                send(sock, Counted(count, None if missing is None else (missing.kind, missing.message)))
    except Exception as error:
        send(sock, _failure(error))


def _give(sock: socket.socket, found: tuple[Header, View], start: float, *, last: bool) -> bool:
    """Hand one view over; whether the next one is wanted."""
    header, view = found
    file = written(view.pixels.reshape(-1).data)
    seconds = time.perf_counter() - start
    try:
        send(sock, Piece(header, view.tile, view.index, view.pixels.shape[:2], last, seconds), file)
    finally:
        os.close(file)
    if last:
        return False
    got = receive(sock)
    return got is not None and isinstance(got[0], GoOn) and not got[0].stop


def _opened(order: Order, descriptor: int | None) -> BinaryIO:
    """The encoded bytes as a file; raises DecodeError."""
    if order.path is None:
        assert descriptor is not None
        file = os.fdopen(descriptor, "rb")
        file.seek(0)
        return file
    try:
        # Not blocking: a pipe that took the place of a file would be waited for without end.
        file = os.fdopen(os.open(order.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except OSError as error:
        missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
        kind = ErrorKind.NOT_FOUND if missing else ErrorKind.UNREADABLE
        raise DecodeError(kind, error.strerror or str(error)) from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise DecodeError(ErrorKind.UNREADABLE, "not a regular file")
    return file


def _digest(file: BinaryIO) -> str:
    """sha256 of a file that is too long to be read at once."""
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _failure(error: Exception) -> Failed:
    if isinstance(error, DecodeError):
        return Failed(error.kind, error.message[:LONGEST_WORDS])
    if isinstance(error, UnseenShapeError):
        return Failed(ErrorKind.ENGINE_REJECTED, str(error))
    if isinstance(error, MemoryError):
        return Failed(ErrorKind.TOO_LARGE, "there is not enough memory to decode this image")
    if isinstance(error, OSError):
        return Failed(ErrorKind.UNREADABLE, error.strerror or str(error))
    trace = "".join(traceback.format_exception(error))[-LONGEST_WORDS:]
    return Failed(ErrorKind.UNREADABLE, f"{type(error).__name__}: {error}"[:LONGEST_WORDS], trace=trace)


def _end_with_parent(descriptor: int) -> None:
    """Wait until the other end of the socket is closed, as it is when the parent was killed, and end at once."""
    ends = select.poll()
    ends.register(descriptor, 0)
    while not any(event & (select.POLLHUP | select.POLLERR) for _, event in ends.poll()):
        pass
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
