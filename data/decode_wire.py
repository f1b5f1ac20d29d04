"""What the pool and its worker processes say to each other: small messages, with pixels and bytes as open files."""

from __future__ import annotations

import mmap
import os
import pickle
import socket
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zellige.data.schema import ErrorKind
from zellige.data.tiling import Tile
from zellige.data.views import ViewRule

#: One message; a path of the longest kind and the words of an error fit in.
MESSAGE_BYTES = 64 << 10
LONGEST_WORDS = 4000


@dataclass(frozen=True)
class Setup:
    """The first message to a worker: bytes of memory it may take."""

    memory_bytes: int


@dataclass(frozen=True)
class Ready:
    """The first message of a worker."""


@dataclass(frozen=True)
class Order:
    """One image to make ready: the file at ``path``, or the bytes in the file that came with the message.

    ``skip`` views were given already, by a worker that died.
    """

    rule: ViewRule
    path: bytes | None
    page: int | None
    skip: int = 0


@dataclass(frozen=True)
class CountPages:
    """How many pages has the PDF in the file that came with the message? The answer is ``Counted`` or ``Failed``."""


@dataclass(frozen=True)
class Counted:
    """Pages that can be found, and what is wrong with the one after the last, where there should be more."""

    count: int
    missing: tuple[ErrorKind, str] | None


@dataclass(frozen=True)
class ReadHeader:
    """What does the header of the file say of the image, or of one page? The answer is a ``Probed`` or ``Failed``."""

    page: int | None


@dataclass(frozen=True)
class GoOn:
    """To a worker: the next view, please; or (``stop``) no more of this image."""

    stop: bool = False


@dataclass(frozen=True)
class Large:
    """An image that is read by region, which takes a while: the pixels of one pass over it."""

    pixels: int


@dataclass(frozen=True)
class Header:
    """What is known of an image once it is decoded: pixels of the upright image, sha256 of the encoded bytes."""

    width: int
    height: int
    frames: int
    content_sha256: str
    warning: str | None


@dataclass(frozen=True)
class Piece:
    """One view, its pixels in the file that comes with it; ``seconds`` of work since the message before."""

    header: Header
    tile: Tile
    index: int
    shape: tuple[int, int]
    last: bool
    seconds: float


@dataclass(frozen=True)
class Failed:
    """The image cannot be used, or not the rest of it; ``trace`` where the fault may be ours and not the image's."""

    kind: ErrorKind
    message: str
    width: int | None = None
    height: int | None = None
    content_sha256: str | None = None
    seconds: float = 0.0
    trace: str | None = None


def send(sock: socket.socket, message: object, file: int | None = None) -> None:
    """Send one message, and an open file with it; whoever sent a file still has to close it."""
    data = pickle.dumps(message)
    if file is None:
        sock.send(data)
    else:
        socket.send_fds(sock, [data], [file])


def receive(sock: socket.socket) -> tuple[Any, int | None] | None:
    """The next message and the file with it (to be closed by the caller); None where the other side is gone."""
    data, files, _, _ = socket.recv_fds(sock, MESSAGE_BYTES, 1)
    return (pickle.loads(data), files[0] if files else None) if data else None


def written(data: bytes | memoryview) -> int:
    """A nameless file in memory that holds ``data``: nothing of it is left once everyone has closed it."""
    file = os.memfd_create("zellige", os.MFD_CLOEXEC)
    try:
        rest = memoryview(data)
        while len(rest):
            rest = rest[os.write(file, rest) :]
    except BaseException:
        os.close(file)
        raise
    return file


def pixels_in(file: int, shape: tuple[int, int]) -> NDArray[np.uint8]:
    """The (height, width, 3) pixels in such a file, mapped and not copied; closes the file."""
    try:
        return np.frombuffer(mmap.mmap(file, shape[0] * shape[1] * 3), np.uint8).reshape(*shape, 3)
    finally:
        os.close(file)
