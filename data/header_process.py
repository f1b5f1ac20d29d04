"""What planning asks of documents and headers, asked in a process of its own.

The libraries that read them are as likely to crash on a damaged file as those that decode: there it costs the file one
failed item, and not the listing of all the others. One such process serves all threads of a planning process, one file
after another; it is started when there is first work for it and ends when its parent does.
"""

from __future__ import annotations

import atexit
import io
import os
import signal
import socket
import subprocess
import threading
from typing import Any, BinaryIO

from zellige.data import decode_pool
from zellige.data.decode_wire import Counted, CountPages, Failed, ReadHeader, Ready, Setup, receive, send
from zellige.data.decoded import DecodeError, Probed
from zellige.data.schema import ErrorKind

#: More is not copied into memory to be looked at; a local file is not copied.
MOST_BYTES = 2 << 30
_BLOCK_BYTES = 1 << 20


def count_pages(file: BinaryIO) -> tuple[int, DecodeError | None]:
    """As ``pdf.count_pages``; raises DecodeError for a file that crashes PDFium, or keeps it busy without end, too."""
    counted: Counted = _asked(CountPages(), file)
    return counted.count, None if counted.missing is None else DecodeError(*counted.missing)


def read_header(file: BinaryIO, page: int | None) -> Probed:
    """As ``decode.probe`` with the limits of images that are read by region; raises DecodeError."""
    probed: Probed = _asked(ReadHeader(page), file)
    return probed


class _Process:
    """The process and the socket to it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.parent = os.getpid()
        with theirs:
            self._process = subprocess.Popen(
                [*decode_pool.COMMAND, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=os.environ | decode_pool.ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,  # an interrupt at the terminal is the parent's to handle
            )
        send(self._socket, Setup(decode_pool.MEMORY_BYTES))
        self._socket.settimeout(decode_pool.DEADLINE_S)
        if not isinstance(self._received(), Ready):
            command = " ".join(decode_pool.COMMAND)
            raise ChildProcessError(f"a process for reading headers ended while it started; try: {command} 0")

    def ask(self, question: object, file: int, seconds: float) -> Any:
        """The answer; None where the process died of it. Raises TimeoutError."""
        self._socket.settimeout(seconds)
        try:
            send(self._socket, question, file)
        except OSError:
            return None
        return self._received()

    def _received(self) -> Any:
        try:
            got = receive(self._socket)
        except ConnectionError:
            return None
        return None if got is None else got[0]

    def how_it_ended(self) -> str:
        code = self._process.wait()
        return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

    def end(self) -> None:
        self._socket.close()
        if self.parent == os.getpid():  # else it is the process of whom we were forked from
            self._process.kill()
            self._process.wait()


_LOCK = threading.Lock()
_process: _Process | None = None


def _asked(question: object, file: BinaryIO) -> Any:
    descriptor, size = _descriptor(file)
    try:
        return _answer(question, descriptor, decode_pool.DEADLINE_S + decode_pool.DEADLINE_S_A_MB * size / 1e6)
    finally:
        os.close(descriptor)


def _answer(question: object, descriptor: int, seconds: float) -> Any:
    global _process
    how = ""
    with _LOCK:
        for _ in range(decode_pool.TRIES):
            if _process is None or _process.parent != os.getpid():
                _process = _Process()
            try:
                answer = _process.ask(question, descriptor, seconds)
            except TimeoutError as error:
                _end()
                raise DecodeError(ErrorKind.TIMEOUT, f"its header was not read within {seconds:.0f} seconds") from error
            if isinstance(answer, Failed):
                raise DecodeError(answer.kind, answer.message)
            if answer is not None:
                return answer
            how = _process.how_it_ended()
            _end()
    raise DecodeError(ErrorKind.UNREADABLE, f"the process that read its header died ({how}), {decode_pool.TRIES} times")


def _end() -> None:
    global _process
    if _process is not None:
        _process.end()
        _process = None


atexit.register(_end)


def _descriptor(file: BinaryIO) -> tuple[int, int]:
    """(a descriptor of the file's bytes with a place of its own, how many they are); raises DecodeError, OSError."""
    if isinstance(file, io.BufferedReader) and isinstance(file.raw, io.FileIO):
        descriptor = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | os.O_CLOEXEC)
        return descriptor, os.fstat(descriptor).st_size
    descriptor, size = os.memfd_create("zellige", os.MFD_CLOEXEC), 0
    try:
        file.seek(0)
        while block := file.read(_BLOCK_BYTES):
            size += len(block)
            if size > MOST_BYTES:
                raise DecodeError(ErrorKind.TOO_LARGE, f"more than the limit of {MOST_BYTES:,} bytes")
            rest = memoryview(block)
            while len(rest):
                rest = rest[os.write(descriptor, rest) :]
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, size
