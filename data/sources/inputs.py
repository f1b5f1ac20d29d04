"""The source of what a user named: files, folders, globs, lists and archives, here or elsewhere."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from zellige.data.pages import page_items
from zellige.data.schema import ErrorKind, Item
from zellige.data.sniff import HEAD_BYTES
from zellige.data.sources.base import ReadError, StoredFile, why
from zellige.data.sources.containers import OPENERS, ContainerPool, kind_by_head, kind_by_name
from zellige.data.sources.files import Found, named, read_local, walk
from zellige.data.sources.image_column import NoImages
from zellige.data.sources.lists import Kept, ListFile, names_images
from zellige.data.sources.options import NO_OPTIONS, SourceOptions
from zellige.data.sources.remote import named_remote, not_there, walk_remote
from zellige.data.sources.storage import (
    SCHEME,
    is_glob,
    literal_prefix,
    local_file,
    local_version,
    look,
    remote_file,
    remote_uri,
    remote_url,
    remote_version,
    stored_file,
)
from zellige.data.sources.wanted import Wanted
from zellige.data.uri import absolute, from_uri, is_file_uri, to_uri

_EMBEDDED = "a list names files; an image that is written out (data:) is read from Parquet, Arrow or batch requests"


@dataclass(frozen=True)
class Input:
    """One input: an absolute local path in bytes, or the literal address of something elsewhere.

    ``reading`` says how: "" as what it is, "list" as a list of names, "wds" as a WebDataset, "batch" as requests.
    """

    place: bytes | str
    reading: str = ""

    @property
    def uri(self) -> str:
        """For rows."""
        return to_uri(self.place) if isinstance(self.place, bytes) else remote_uri(self.place)

    @property
    def text(self) -> str:
        """What ``open_source`` takes again."""
        place = to_uri(self.place) if isinstance(self.place, bytes) else self.place
        return f"{self.reading}:{place}" if self.reading else place

    @property
    def top(self) -> str:
        """What the URIs of all that is found below it begin with: the folder, or that of a pattern."""
        place = self.place
        if is_glob(place) and not (isinstance(place, bytes) and os.path.lexists(place)):
            place = (
                os.fsencode(literal_prefix(os.fsdecode(place))) if isinstance(place, bytes) else literal_prefix(place)
            )
        uri = to_uri(place or b"/") if isinstance(place, bytes) else remote_uri(place)
        return uri.rstrip("/") + "/"

    @property
    def file(self) -> StoredFile:
        return local_file(self.place) if isinstance(self.place, bytes) else remote_file(self.place)


class InputSource:
    """The images among ``inputs``, in that order."""

    def __init__(self, inputs: Sequence[Input], options: SourceOptions = NO_OPTIONS) -> None:
        self._inputs = tuple(inputs)
        self._options = options
        self._wanted = Wanted(options)
        self._ignored: Counter[str] = Counter()
        batches = {given.uri for given in inputs if given.reading == "batch"}
        self._pool = ContainerPool(lambda uri: _container_at(uri, uri in batches), options)

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(given.text for given in self._inputs)

    @property
    def ignored(self) -> Mapping[str, int]:
        return dict(self._ignored)

    def describe(self) -> str:
        shown = ", ".join(self.inputs[:3])
        return shown if len(self._inputs) <= 3 else f"{shown} and {len(self._inputs) - 3} more"

    def items(self) -> Iterator[Item]:
        self._ignored = Counter()
        yield from self._once(self._inputs)

    def _once(self, inputs: Sequence[Input]) -> Iterator[Item]:
        # One folder cannot name a file twice; several inputs and lists can, and digests keep millions small.
        several = len(inputs) > 1 or any(given.reading == "list" for given in inputs)
        seen: dict[bytes, int] = {}
        for given in inputs:
            for number, kept, item in self._numbered(given):
                digest = bytes.fromhex(item.item_id)
                if several and kept and seen.get(digest, hash(kept)) != hash(kept):
                    told = f"{item.uri} is named before with other kept values; an image is one item, give it one row"
                    item = Item(given.uri, None, number, error_kind=ErrorKind.UNREADABLE, error=told, metadata=kept)
                    digest = bytes.fromhex(item.item_id)
                if digest in seen:
                    self._ignored["named twice"] += 1
                    continue
                if several:
                    seen[digest] = hash(kept)
                yield item

    def local_path(self, item: Item) -> bytes | None:
        whole = item.member is None and item.ordinal is None
        return from_uri(item.uri) if whole and is_file_uri(item.uri) else None

    def read(self, item: Item) -> bytes:
        if item.member is not None or item.ordinal is not None:
            with self._pool.use(item.uri) as container:
                return container.read(item)
        path = self.local_path(item)
        return stored_file(item.uri).read() if path is None else read_local(path)

    def again(self, uri: str) -> Iterator[Item]:
        named = [given for given in self._inputs if given.uri.rstrip("/") == uri.rstrip("/")]
        place = from_uri(uri) if is_file_uri(uri) else remote_url(uri)
        owner = next((given for given in self._inputs if uri.startswith(given.top)), None)
        if named or owner is None:
            yield from self._once(named or [Input(place)])
        elif isinstance(place, bytes) and not os.path.isdir(place):
            yield from self._opened(owner, iter([_file_again(place)]))
        elif isinstance(place, str) and not uri.endswith("/"):
            yield from self._opened(owner, iter([_remote_again(place)]))
        else:
            # Walked from the top, so that filters see the names that they saw before; nothing else is opened.
            folder = uri.rstrip("/") + "/"
            yield from self._opened(owner, (one for one in self._found(owner) if f"{_uri(one)}/".startswith(folder)))

    def _of(self, given: Input) -> Iterator[Item]:
        if given.reading == "batch":
            return self._of_container(Found(given.file, "requests", named=True, included=True), "requests")
        if given.reading == "list":
            return (item for _, _, item in self._of_list(given))
        return self._opened(given, self._found(given))

    def _numbered(self, given: Input) -> Iterator[tuple[int | None, Kept, Item]]:
        """The items, each with the row of the list that names it and what is kept of that row."""
        if given.reading == "list":
            return self._of_list(given)
        return ((None, (), item) for item in self._of(given))

    def _found(self, given: Input) -> Iterator[Item | Found]:
        return self._of_path(given.place) if isinstance(given.place, bytes) else self._of_address(given.place)

    def _opened(self, given: Input, found: Iterator[Item | Found]) -> Iterator[Item]:
        for one in found:
            if given.reading == "wds" and isinstance(given.place, str) and _uri(one) == given.uri and _no_tar(one):
                yield Item(given.uri, error_kind=ErrorKind.UNSUPPORTED_FORMAT, error="no tar; name it without wds:")
            elif isinstance(one, Item):
                yield one
            elif one.kind is None:
                yield from _of_document(one.file)
            else:
                samples = given.reading == "wds" and one.kind == "tar"
                yield from self._of_container(one, "webdataset" if samples else one.kind)

    def _of_path(self, path: bytes) -> Iterator[Item | Found]:
        try:
            status = os.stat(path)
        except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
            if is_glob(path) and not os.path.lexists(path):
                top = os.fsencode(literal_prefix(os.fsdecode(path))) or b"/"
                pattern = path[len(os.path.join(top, b"")) :]
                yield from self._matching(to_uri(path), walk(top, Wanted(self._options, pattern), self._ignored))
                return
            kind, said = why(error) if isinstance(error, OSError) else (ErrorKind.NOT_FOUND, str(error))
            yield Item(to_uri(path), error_kind=kind, error=said)
            return
        if stat.S_ISDIR(status.st_mode):
            yield from walk(path, self._wanted, self._ignored)
        elif not stat.S_ISREG(status.st_mode):
            yield Item(to_uri(path), error_kind=ErrorKind.UNREADABLE, error="not a regular file")
        else:
            yield from self._named(os.path.basename(path), named(path, status))

    def _of_address(self, url: str) -> Iterator[Item | Found]:
        try:
            about = look(url)
        except ReadError as error:
            yield Item(remote_uri(url), error_kind=error.kind, error=error.message)
            return
        if about is not None and about["type"] == "directory":
            yield from walk_remote(url, self._wanted, self._ignored)
        elif about is not None:
            name = url.rpartition("/")[2].encode("utf-8", "surrogateescape")
            yield from self._named(name, named_remote(url, about.get("size"), remote_version(about)))
        elif is_glob(url) and not url.startswith("http"):
            top = literal_prefix(url)
            pattern = url[len(top) + 1 :].encode("utf-8", "surrogateescape")
            found = walk_remote(top, Wanted(self._options, pattern), self._ignored)
            yield from self._matching(remote_uri(url), found)
        else:
            yield not_there(remote_uri(url))

    def _named(self, name: bytes, found: Item | Found) -> Iterator[Item | Found]:
        if not self._wanted.file(name, found.kind if isinstance(found, Found) else None):
            self._ignored["excluded"] += 1
        elif isinstance(found, Found):
            yield replace(found, named=True, included=self._wanted.included(name))
        else:
            yield found

    def _matching(self, uri: str, walked: Iterator[Item | Found]) -> Iterator[Item | Found]:
        nothing, before = True, self._ignored.total()
        for found in walked:
            nothing = False
            yield found
        if nothing and self._ignored.total() == before:
            yield Item(uri, error_kind=ErrorKind.NOT_FOUND, error="there is no file of this name, and none like it")

    def _of_container(self, found: Found, kind: str) -> Iterator[Item]:
        if kind == "parquet" and not found.named and names_images(found.file, self._options):
            self._ignored["a list"] += 1  # of images that may lie beside it: a list is read where it is named
            return
        options = replace(self._options, include=()) if found.included else self._options
        container = OPENERS[kind](found.file, options)
        whole = Item(found.file.uri, size_bytes=found.file.size, file_version=_version(found.file))
        nothing = True
        try:
            for item in container.items():
                nothing = False
                yield replace(item, file_version=whole.file_version)
        except ReadError as error:
            if nothing and not found.named and isinstance(error, NoImages):
                self._ignored["a table without images"] += 1
            elif error.kind == ErrorKind.EMPTY and options.include:
                self._ignored["excluded"] += 1  # nothing in it could be what was asked for
            else:
                yield replace(whole, error_kind=error.kind, error=error.message)
            nothing = False
        finally:
            self._ignored.update(container.ignored)
            container.close()
        if nothing and not container.ignored["excluded"]:
            if options.include:
                self._ignored["excluded"] += 1
            elif found.named or found.sure:
                yield replace(whole, error_kind=ErrorKind.EMPTY, error="it holds no image")
            else:
                self._ignored["not an image"] += 1

    def _of_list(self, given: Input) -> Iterator[tuple[int | None, Kept, Item]]:
        uri = given.uri
        rows, number = ListFile(given.file, self._options).rows(), -1
        try:
            for number, (name, kept, wrong) in enumerate(rows):
                wrong = _EMBEDDED if name[:11].lower() == b"data:image/" else wrong
                if wrong is not None:
                    failed = Item(uri, ordinal=number, error_kind=ErrorKind.UNREADABLE, error=wrong, metadata=kept)
                    yield number, kept, failed
                    continue
                for item in self._of(_in_list(given, name)):
                    yield number, kept, replace(item, metadata=(*item.metadata, *kept)) if kept else item
            if number < 0:
                yield None, (), Item(uri, error_kind=ErrorKind.EMPTY, error="this list names no file")
        except ReadError as error:
            yield None, (), Item(uri, error_kind=error.kind, error=error.message)


def _in_list(listing: Input, name: bytes) -> Input:
    """What a row of a list names."""
    text = os.fsdecode(name)
    if is_file_uri(text):
        return Input(from_uri(text))
    if SCHEME.match(text):
        return Input(name.decode("utf-8", "surrogateescape"))
    if isinstance(listing.place, bytes):
        return Input(absolute(os.path.join(os.path.dirname(listing.place), name)))
    return Input(f"{listing.place.rpartition('/')[0]}/{text.removeprefix('./')}")


def _uri(found: Item | Found) -> str:
    return found.uri if isinstance(found, Item) else found.file.uri


def _version(file: StoredFile) -> str | None:
    """The version of a file, also of a local one that was found without a look at it."""
    if file.version is not None or file.path is None:
        return file.version
    try:
        return local_version(os.stat(file.path))
    except (OSError, ValueError):  # told where it is read
        return None


def _no_tar(found: Item | Found) -> bool:
    return found.error_kind is None if isinstance(found, Item) else found.kind != "tar"


def _file_again(path: bytes) -> Item | Found:
    """A file that a walk had found, whatever filters took it then."""
    try:
        found = named(path, os.stat(path))
    except OSError as error:
        kind, said = why(error)
        return Item(to_uri(path), error_kind=kind, error=said)
    return replace(found, named=True) if isinstance(found, Found) else found


def _remote_again(url: str) -> Item | Found:
    try:
        about = look(url)
    except ReadError as error:
        return Item(remote_uri(url), error_kind=error.kind, error=error.message)
    if about is None:
        return not_there(remote_uri(url))
    found = named_remote(url, about.get("size"), remote_version(about))
    return replace(found, named=True) if isinstance(found, Found) else found


def _of_document(file: StoredFile) -> Iterator[Item]:
    item = Item(file.uri, size_bytes=file.size, file_version=file.version)
    try:
        with file.open() as opened:
            yield from page_items(item, opened)
    except ReadError as error:
        yield replace(item, error_kind=error.kind, error=error.message)
    except OSError as error:
        kind, said = why(error)
        yield replace(item, error_kind=kind, error=said)


def _container_at(uri: str, requests: bool) -> tuple[StoredFile, str]:
    """The container of a row's URI and its kind; raises ReadError where it is none."""
    file, name = stored_file(uri), uri.encode()
    if requests:
        return file, "requests"
    if (kind := kind_by_name(name)) is None:
        with file.open() as opened:
            kind = kind_by_head(name, opened.read(HEAD_BYTES))
    if kind is None:
        raise ReadError(ErrorKind.UNREADABLE, "this is no archive or table any more")
    return file, kind
