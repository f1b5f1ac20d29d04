"""From what a user named to a source."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from zellige.data.sniff import HEAD_BYTES, sniff
from zellige.data.sources.base import ReadError, Source, SourceError
from zellige.data.sources.containers import kind_by_head, kind_by_name
from zellige.data.sources.inputs import Input, InputSource
from zellige.data.sources.lists import SUFFIXES, TEXT, ListFile, names_images
from zellige.data.sources.options import NO_OPTIONS, SourceOptions
from zellige.data.sources.requests import holds_requests
from zellige.data.sources.storage import SCHEME, filesystem, local_file
from zellige.data.uri import absolute, from_uri, is_file_uri

_READINGS = ("list", "wds", "batch")


def open_source(inputs: Sequence[str | bytes | Path], options: SourceOptions = NO_OPTIONS) -> Source:
    """The source of the named inputs; raises SourceError for one of a kind that cannot be read."""
    if not inputs:
        raise SourceError("no input was named; give files or folders")
    return InputSource([_input(given, options) for given in inputs], options)


def _input(given: str | bytes | Path, options: SourceOptions) -> Input:
    try:
        path = os.fsencode(given)
    except UnicodeEncodeError as error:
        raise SourceError(f"{given!r} is no name of a file on this system") from error
    if not path:
        raise SourceError("an empty name was given; give a file or a folder")
    reading = ""
    if not _exists(path):  # a name that exists is a path, whatever it looks like
        reading = next((r for r in _READINGS if path.startswith(f"{r}:".encode())), "")
        path = path[len(reading) + 1 :] if reading else path
        if not path:
            raise SourceError(f"{given!r} names nothing; put a file after the colon")
    place = _place(path)
    if isinstance(place, str):
        filesystem(place)
    if not reading and _is_batch(place):
        reading = "batch"
    elif not reading and _is_list(place, options):
        reading = "list"
    found = Input(place, reading)
    if reading in ("list", "batch") and isinstance(place, bytes) and os.path.isdir(place):
        raise SourceError(f"{os.fsdecode(place)!r} is a folder; name a file after {reading}:, or leave {reading}: out")
    if reading == "list" and isinstance(place, bytes):
        ListFile(found.file, options).check()
    if reading == "batch" and isinstance(place, bytes) and (kind := sniff(_head(place))) not in TEXT:
        raise SourceError(f"{os.fsdecode(place)!r} is {kind}, and no file of batch requests; name it without batch:")
    if reading == "wds" and isinstance(place, bytes) and os.path.isfile(place) and not _is_tar(place):
        raise SourceError(f"{os.fsdecode(place)!r} is no tar, and so no WebDataset; name it without wds:")
    return found


def _place(path: bytes) -> bytes | str:
    """The absolute path in bytes, or the literal address."""
    text = os.fsdecode(path)
    if _exists(path):
        return absolute(path)
    if is_file_uri(text):
        return from_uri(text)
    return text if SCHEME.match(text) else absolute(path)


def _is_batch(place: bytes | str) -> bool:
    """Whether a file that was named is one of requests, by its bytes; elsewhere only ``batch:`` says so."""
    return isinstance(place, bytes) and place.lower().endswith(b".jsonl") and holds_requests(_head(place))


def asks_itself(inputs: Sequence[str], options: SourceOptions = NO_OPTIONS) -> bool:
    """Whether each input is a file of requests, which bring their own questions; raises SourceError."""
    return bool(inputs) and all(text.startswith("batch:") for text in open_source(inputs, options).inputs)


def _is_list(place: bytes | str, options: SourceOptions) -> bool:
    """Whether a file that was named is a list: by its suffix, unless it is an image; Parquet by its columns."""
    name = place if isinstance(place, bytes) else place.encode("utf-8", "surrogateescape")
    if name.lower().endswith(SUFFIXES):
        return isinstance(place, str) or not (os.path.isdir(place) or _is_image(place))
    parquet = isinstance(place, bytes) and name.lower().endswith(b".parquet") and os.path.isfile(place)
    return parquet and isinstance(place, bytes) and names_images(local_file(place), options)


def _is_image(path: bytes) -> bool:
    kind = sniff(_head(path)) or ""
    return kind.startswith("image/") or kind == "application/pdf"


def _is_tar(path: bytes) -> bool:
    return "tar" in (kind_by_name(path), kind_by_head(path, _head(path)))


def _head(path: bytes) -> bytes:
    try:
        with local_file(path).open() as file:
            return file.read(HEAD_BYTES)
    except (OSError, ReadError):  # told where it is read
        return b""


def _exists(path: bytes) -> bool:
    try:
        return os.path.lexists(path)
    except ValueError:  # a NUL byte
        return False
