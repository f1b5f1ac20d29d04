"""A folder of the store on an object store: anything that fsspec writes (``s3://bucket/prefix``).

There is no renaming and no appending there: a file is one PUT, and who comes first to a name is settled by a PUT on the
condition that nothing has it. What is read more than once is copied to this machine.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, TypeVar

from zellige.data.files import StoreUnusable
from zellige.data.folder import Stamp
from zellige.data.schema import ErrorKind
from zellige.data.sources.base import SourceError
from zellige.data.sources.storage import causes, filesystem, remote_version, told

#: How long a request is made again and again where the place is away, or says that it is busy; and of a place that has
#: never answered, whose address is likely wrong.
PATIENT_S, FIRST_PATIENT_S = 180.0, 5.0
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 10.0
_AT_ONCE = 16
#: More than the footer of any part.
_END_BYTES = 65536
_ENDS_HELD = 256
#: An object of events is not written anew beyond this.
_LONG_BYTES = 65536
_MARK = ".changed"
#: What another PUT to the same name, or too many of them, are told; besides the 500s.
_BUSY = (409, 429)
_EXISTS, _NOT_KNOWN = 412, 501
_T = TypeVar("_T")


def cache_of(url: str) -> Path:
    """Where this machine keeps its index and copies of a store elsewhere; they may be deleted at any time."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "zellige" / "stores" / hashlib.sha256(url.encode("utf-8", "backslashreplace")).hexdigest()[:16]


class ObjectFolder:
    """A prefix of an object store; ``path`` is where copies of its files go."""

    _answered: ClassVar[set[int]] = set()  # file systems that have

    def __init__(self, url: str, path: Path) -> None:
        self._url, self.path = url.rstrip("/"), path
        try:
            self._system = filesystem(url)
        except SourceError as error:
            raise StoreUnusable(f"{url}: no store can be there: {error}") from error
        self._key: str = self._system._strip_protocol(self._url)
        self._appended: dict[str, tuple[int, bytes]] = {}
        self._appending = threading.Lock()

    def __truediv__(self, name: str) -> ObjectFolder:
        return ObjectFolder(f"{self._url}/{name}", self.path / name)

    def __str__(self) -> str:
        return self._url

    def at(self, name: str) -> str:
        return f"{self._url}/{name}"

    def make(self) -> None:
        """There are no folders."""

    def names(self) -> list[str]:
        return [_name(about) for about in self._listed()]

    def stamps(self) -> dict[str, Stamp]:
        return {_name(about): _stamp(about) for about in self._listed() if about["type"] == "file"}

    def has(self, name: str) -> bool:
        try:
            self._info(name)
        except FileNotFoundError:
            return False
        return True

    def read(self, name: str) -> bytes:
        return bytes(self._asked("read", name, self._system.cat_file))

    def put(self, name: str, write: Callable[[BinaryIO], object], *, first: bool = False) -> bool:
        with tempfile.TemporaryDirectory(prefix="zellige-") as folder:
            path, mode = Path(folder) / "file", "create" if first else "overwrite"
            with path.open("wb") as file:
                write(file)
            try:
                self._asked("write", name, lambda key: self._system.put_file(str(path), key, mode=mode))
            except FileExistsError:
                return self._is(name, path.read_bytes())
        return True

    def create(self, name: str, data: bytes) -> bool:
        try:
            self._asked("write", name, lambda key: self._system.pipe_file(key, data, mode="create"))
        except FileExistsError:
            return self._is(name, data)
        return True

    def append(self, name: str, line: bytes) -> None:
        stem, dot, suffix = name.rpartition(".")
        with self._appending:
            number, before = self._appended.get(name, (1, b""))
            if len(before) > _LONG_BYTES:
                number, before = number + 1, b""
            self._put_bytes(f"{stem}.{number:04d}{dot}{suffix}", before + line)
            self._appended[name] = number, before + line

    def touch(self, name: str, data: bytes) -> None:
        self._put_bytes(name, data)

    def heard(self, name: str) -> float:
        return float(self._asked("look at", name, self._system.modified).timestamp())

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._asked("remove", name, self._system.rm_file)

    def move(self, name: str, to: ObjectFolder, new_name: str) -> None:
        self._asked("copy", name, lambda key: self._system.cp_file(key, f"{to._key}/{new_name}"))
        self.remove(name)

    def clear(self, name: str) -> None:
        """A PUT that is cut short leaves nothing."""

    def fetch(self, names: Sequence[str]) -> list[Path]:
        now = {names[0]: _stamp(self._info(names[0]))} if len(names) == 1 else self.stamps()
        if missing := [name for name in names if name not in now]:
            raise FileNotFoundError(f"{self.at(missing[0])} is not there")
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="zellige-fetch") as threads:
            return list(threads.map(lambda name: self._copied(name, now[name]), names))

    def ends(self, names: Iterable[str]) -> Iterator[tuple[str, BinaryIO]]:
        def end(name: str) -> tuple[str, bytes | None]:
            try:
                return name, self._asked("read", name, lambda key: self._system.cat_file(key, start=-_END_BYTES))
            except FileNotFoundError:
                return name, None

        names = list(names)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="zellige-fetch") as threads:
            for first in range(0, len(names), _ENDS_HELD):
                for name, data in threads.map(end, names[first : first + _ENDS_HELD]):
                    if data is not None:
                        yield name, BytesIO(data)

    def changed(self) -> int:
        digest = hashlib.sha256(repr(sorted(self.stamps().items())).encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def mark(self) -> None:
        self._put_bytes(_MARK, secrets.token_bytes(8))

    def begin(self, name: str, file: str, data: bytes, folders: Sequence[str]) -> bool:
        return (self / name).create(file, data)

    def having(self, file: str) -> list[str]:
        names = [_name(about) for about in self._listed() if about["type"] == "directory"]
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="zellige-fetch") as threads:
            there = threads.map(lambda name: (self / name).has(file), names)
        return sorted(name for name, has in zip(names, there, strict=True) if has)

    def delete(self, name: str, file: str) -> None:
        (self / name).remove(file)
        self._remove_all(name)

    def sweep(self, file: str) -> None:
        with suppress(StoreUnusable):
            names = {_name(about) for about in self._listed() if about["type"] == "directory"}
            for name in names.difference(self.having(file)):
                self._remove_all(name)

    def check_writable(self) -> None:
        name = f".try-{secrets.token_hex(8)}"
        try:
            made = [self._created(name, data) for data in (b"one", b"other")]
        except StoreUnusable as error:
            if _status(error) != _NOT_KNOWN:
                raise
            made = []
        finally:
            with suppress(StoreUnusable):
                self.remove(name)
        if made != [True, False]:
            raise StoreUnusable(
                f"{self._url}: this storage knows no conditional writes (If-None-Match: *), so workers would not know "
                "who has a shard; name a local folder, or a storage that knows them (Amazon S3, MinIO, Ceph, R2, …)"
            )

    def _created(self, name: str, data: bytes) -> bool:
        try:
            return self.create(name, data)
        except FileNotFoundError as error:
            raise StoreUnusable(f"cannot write to {self._url}: there is no such bucket; make it first") from error
        except (NotImplementedError, TypeError, ValueError) as error:
            raise StoreUnusable(f"{self._url}: no store can be there, it cannot be written: {error}") from error

    def _remove_all(self, name: str) -> None:
        """File by file: not every S3 takes the list of many that Amazon's takes."""
        with suppress(FileNotFoundError), ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="zellige-remove") as threads:
            begin = len(self._key) + 1
            keys = self._asked("list", name, self._system.find)
            list(threads.map(self.remove, [key[begin:] for key in keys]))

    def _is(self, name: str, data: bytes) -> bool:
        """Whether a file that is there already is ours: the answer to an earlier try was lost on the way."""
        try:
            return self.read(name) == data
        except FileNotFoundError:  # given back this instant
            return False

    def _put_bytes(self, name: str, data: bytes) -> None:
        self._asked("write", name, lambda key: self._system.pipe_file(key, data))

    def _copied(self, name: str, stamp: Stamp) -> Path:
        """The file's copy, under a name that says which state it is of; copies of older states go."""
        tag = hashlib.sha256(repr(stamp).encode()).hexdigest()[:16]
        copy = self.path / f"{tag}-{name}"
        if not copy.exists():
            self.path.mkdir(parents=True, exist_ok=True)
            unfinished = self.path / f".{secrets.token_hex(8)}.tmp"
            try:
                self._asked("read", name, lambda key: self._system.get_file(key, str(unfinished)))
                unfinished.replace(copy)
            finally:
                unfinished.unlink(missing_ok=True)
            for older in self.path.glob(f"{'[0-9a-f]' * 16}-{name}"):
                if older != copy:
                    older.unlink(missing_ok=True)
        return copy

    def _listed(self) -> list[dict[str, Any]]:
        try:
            listed = self._asked("list", "", lambda key: self._system.ls(key.rstrip("/"), detail=True))
        except FileNotFoundError:
            return []
        # An object store may list the folder itself, as an empty object.
        return [about for about in listed if about["name"].strip("/") != self._key.strip("/")]

    def _info(self, name: str) -> dict[str, Any]:
        return dict(self._asked("look at", name, self._system.info))

    def _asked(self, doing: str, name: str, call: Callable[[str], _T]) -> _T:
        """What ``call`` of the file's key gives: the one place where a request is made again.

        Raises FileNotFoundError, FileExistsError, and StoreUnusable once patience is over.
        """
        pause, begun, mark = _PAUSE_S, time.monotonic(), id(self._system)
        while True:
            try:
                given = call(f"{self._key}/{name}")
            except Exception as error:
                if _status(error) == _EXISTS or isinstance(error, FileExistsError):
                    raise FileExistsError(self.at(name)) from error
                said = told(error)
                if said.kind == ErrorKind.NOT_FOUND:
                    raise FileNotFoundError(f"{self.at(name)}: {said}") from error
                away = said.kind == ErrorKind.TIMEOUT or _status(error) in _BUSY or _status(error) // 100 == 5
                patient_s = PATIENT_S if mark in self._answered else FIRST_PATIENT_S
                if not away or _status(error) == _NOT_KNOWN or time.monotonic() - begun > patient_s:
                    step = (
                        "; nothing committed is lost, and --resume goes on" if away and mark in self._answered else ""
                    )
                    if away:  # whoever says goodbye on the way out does not wait as long again
                        self._answered.discard(mark)
                    raise StoreUnusable(f"cannot {doing} {self.at(name).rstrip('/')}: {said}{step}") from error
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            else:
                self._answered.add(mark)
                return given


def _name(about: dict[str, Any]) -> str:
    return str(about["name"]).rstrip("/").rpartition("/")[2]


def _stamp(about: dict[str, Any]) -> Stamp:
    return (about["size"], remote_version(about))


def _status(error: BaseException) -> int:
    """The HTTP status that an error came from; 0 where it came from none."""
    for cause in causes(error):
        response = getattr(cause, "response", None)
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
        status = getattr(cause, "status", None) if status is None else status
        if isinstance(status, int):
            return status
    return 0
