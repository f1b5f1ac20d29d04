"""Where files lie: this machine's file system, or anything that fsspec reads (``s3://``, ``https://``, …).

An address outside this machine is taken literally: ``#``, ``?``, ``%`` and ``[1]`` in a key are letters of it. In rows
its path is percent-encoded like a local one's; an ``http`` address is kept as it is, because it is encoded already.
"""

from __future__ import annotations

import io
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, cast
from urllib.parse import quote, unquote_to_bytes

from zellige.data.schema import ErrorKind
from zellige.data.sources.base import ReadError, SourceError, StoredFile
from zellige.data.uri import from_uri, is_file_uri, to_uri

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_WEB = ("http", "https")
_WEB_SAFE = "%/:?#[]@!$&'()*+,;=-._~"
#: Classes, by name, of the errors of Python, aiohttp and botocore: importing those to tell them takes a second.
_UNREACHABLE = frozenset(
    (
        "ConnectionError",
        "TimeoutError",
        "gaierror",
        "ClientConnectionError",
        "HTTPClientError",
        "EndpointConnectionError",
    )
)
_NO_CREDENTIALS = frozenset(
    (
        "NoCredentialsError",
        "PartialCredentialsError",
        "CredentialRetrievalError",
        "ProfileNotFound",
        "TokenRetrievalError",
    )
)
_S3_KEYS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE) to keys that may read it"
_S3_ENDPOINT = "AWS_ENDPOINT_URL where the storage is not Amazon's"
#: Where storages say when a file was last written.
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")
_SYSTEMS: dict[str, Any] = {}
_LOCK = threading.Lock()


def remote_uri(url: str) -> str:
    """The URI, for rows, of a literal address; ``remote_url`` gives the address back."""
    scheme, _, rest = url.partition("://")
    safe = _WEB_SAFE if scheme in _WEB else "/-._~"
    return f"{scheme}://{quote(rest.encode('utf-8', 'surrogateescape'), safe=safe)}"


def remote_url(uri: str) -> str:
    """The literal address of a row's URI."""
    scheme, _, rest = uri.partition("://")
    return uri if scheme in _WEB else f"{scheme}://{unquote_to_bytes(rest).decode('utf-8', 'surrogateescape')}"


def filesystem(url: str) -> Any:
    """The fsspec file system of an address, made once; raises SourceError that says what to install or to give."""
    scheme = url.partition("://")[0]
    with _LOCK:
        if scheme not in _SYSTEMS:
            import fsspec

            options: dict[str, Any] = {"use_listings_cache": False} if scheme != "memory" else {}
            if scheme in _WEB:
                options["encoded"] = True  # or "%2F" in a query would arrive as "/"
            endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
            if scheme in ("s3", "s3a") and endpoint:
                options["endpoint_url"] = endpoint
            try:
                _SYSTEMS[scheme] = fsspec.filesystem(scheme, **options)
            except ImportError as error:
                raise SourceError(f"{scheme}:// addresses need a package that is not installed: {error}") from error
            except ValueError as error:
                raise SourceError(
                    f"{scheme}:// addresses are not read; copy the images to a folder and name that"
                ) from error
        return _SYSTEMS[scheme]


def remote_file(url: str, size: int | None = None, version: str | None = None) -> StoredFile:
    """The file at a literal address."""
    return StoredFile(remote_uri(url), size, None, lambda: cast(BinaryIO, _Remote.opened(url)), version)


def local_file(path: bytes, status: os.stat_result | None = None) -> StoredFile:
    """The regular file at ``path``."""
    size, version = (None, None) if status is None else (status.st_size, local_version(status))
    return StoredFile(to_uri(path), size, path, lambda: open_regular(path), version)


def local_version(status: os.stat_result) -> str:
    """The version of a local file: its size and when it was last written."""
    return f"{status.st_size}-{status.st_mtime_ns}"


def remote_version(about: Mapping[str, Any]) -> str | None:
    """The version in what a storage says of a file: its etag, else its size and time; None where it has neither."""
    if etag := about.get("ETag") or about.get("etag"):
        return str(etag).strip('"')
    time = next((about[name] for name in _TIMES if about.get(name)), None)
    return None if time is None else f"{about.get('size')}-{time}"


def stored_file(uri: str) -> StoredFile:
    """The file of a row's URI."""
    return local_file(from_uri(uri)) if is_file_uri(uri) else remote_file(remote_url(uri))


def open_regular(path: bytes) -> BinaryIO:
    """Raises ReadError for what is no regular file: a pipe that took a file's place would be waited for without end."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ReadError(ErrorKind.UNREADABLE, "not a regular file")
    return file


def look(url: str) -> dict[str, Any] | None:
    """What the storage says of an address ("type", "size"); None where there is nothing. Raises ReadError."""
    system = filesystem(url)
    try:
        return cast(dict[str, Any], system.info(_key(system, url)))
    except Exception as error:
        if (said := told(error)).kind == ErrorKind.NOT_FOUND:
            return None
        raise said from error


def entries(url: str) -> list[tuple[str, str, int | None, str | None]]:
    """(literal address, "file" or "directory", size, version) of what lies in a remote folder; raises ReadError.

    Sorted by address.
    """
    system, scheme = filesystem(url), url.partition("://")[0]
    key = _key(system, url).rstrip("/")
    try:
        listed = system.ls(key, detail=True)
    except Exception as error:
        raise told(error) from error
    # An object store may list the folder itself, as an empty object.
    inside = [e for e in listed if e["name"].strip("/") != key.strip("/")]
    found = [(_url(scheme, e["name"].rstrip("/")), e["type"], e.get("size"), remote_version(e)) for e in inside]
    return sorted(found, key=lambda entry: entry[:2])


def _key(system: Any, url: str) -> str:
    return remote_uri(url) if url.partition("://")[0] in _WEB else cast(str, system._strip_protocol(url))


def _url(scheme: str, name: str) -> str:
    return name if name.startswith(f"{scheme}://") else f"{scheme}://{name.lstrip('/')}"


def told(error: Exception) -> ReadError:
    """Storages raise what their libraries raise, so anything counts as "cannot be had"; some of it has advice."""
    if isinstance(error, ReadError):
        return error
    said = str(error).partition("\n")[0] or type(error).__name__
    # A server that is not there is a missing file to some of fsspec's systems: what it came from says more.
    came_from = list(causes(error))
    names = {kind.__name__ for cause in came_from for kind in type(cause).__mro__}
    if names & _NO_CREDENTIALS:
        return ReadError(ErrorKind.UNREADABLE, f"{said}: {_S3_KEYS}")
    if names & _UNREACHABLE:
        reason = next(str(c) for c in came_from if {kind.__name__ for kind in type(c).__mro__} & _UNREACHABLE)
        advice = "check the address and the network" + (f", and {_S3_ENDPOINT}" if "BotoCoreError" in names else "")
        return ReadError(ErrorKind.TIMEOUT, f"the server cannot be reached ({reason.strip()}): {advice}")
    if isinstance(error, PermissionError) and names & {"ClientError", "BotoCoreError"}:
        return ReadError(ErrorKind.UNREADABLE, f"the storage refuses it ({said}): {_S3_KEYS}")
    missing = isinstance(error, FileNotFoundError)
    return ReadError(ErrorKind.NOT_FOUND if missing else ErrorKind.UNREADABLE, said)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what it came from, what that came from, …."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class _Remote(io.RawIOBase):
    """A remote file whose every fault is an OSError or ReadError."""

    def __init__(self, file: Any) -> None:
        self._file = file

    @classmethod
    def opened(cls, url: str) -> io.BufferedReader:
        system = filesystem(url)
        file = _do(lambda: system.open(_key(system, url), "rb"))
        return io.BufferedReader(cls(file), 1 << 20)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return cast(int, _do(lambda: self._file.seek(offset, whence)))

    def tell(self) -> int:
        return cast(int, self._file.tell())

    def readinto(self, buffer: Any) -> int:
        data = _do(lambda: self._file.read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _do(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (ReadError, MemoryError):
        raise
    except Exception as error:
        raise told(error) from error


def literal_prefix(url: str) -> str:
    """The folder of an address up to its first part with a glob character, without the last slash."""
    head = re.split(r"[*?\[]", url, maxsplit=1)[0]
    return head.rpartition("/")[0]


def is_glob(name: str | bytes) -> bool:
    """Whether a name has a character that globs use."""
    text = name if isinstance(name, str) else name.decode("latin-1")
    return any(letter in text for letter in "*?[")
