"""A file of OpenAI batch requests, a line each: a request's image is an item, and its text comes along as metadata.

``custom_id`` is the item's member and is kept, so that answers can be told apart by it. Of several images of a request
none is chosen: the request fails and says so.
"""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO

from zellige.data.batch_requests import BatchRequest, parse_request
from zellige.data.schema import ITEM_QUESTION, ErrorKind, Item
from zellige.data.sources.base import ReadError, StoredFile, check_same, why
from zellige.data.sources.cells import image_in
from zellige.data.sources.options import SourceOptions

#: What is longer is no request: the API takes 200 MB a file.
LONGEST_LINE_BYTES = 256 << 20
_REQUEST = re.compile(rb'\s*\{.*"custom_id"\s*:.*"(?:method|url|body)"\s*:', re.DOTALL)


def holds_requests(head: bytes) -> bool:
    """Whether a file that begins with these bytes looks like one of requests."""
    return _REQUEST.match(head.removeprefix(b"\xef\xbb\xbf")) is not None


class RequestContainer:
    """The requests of one file; a line that is none is a failed item with the line's number."""

    def __init__(self, file: StoredFile, options: SourceOptions) -> None:
        self.ignored: Counter[str] = Counter()
        self._stored = file
        self._file: BinaryIO | None = None
        #: Where each request begins, by ordinal, as far as the file was read, and where the next line begins.
        self._places, self._next = array("q"), 0

    def items(self) -> Iterator[Item]:
        seen: set[bytes] = set()
        try:
            with self._stored.open() as file:
                for ordinal, (number, _, line) in enumerate(_lines(file, 0)):
                    yield self._item(line, number, ordinal, seen)
        except OSError as error:
            raise ReadError(*why(error)) from error

    def read(self, item: Item) -> bytes:
        assert item.ordinal is not None, "a request has a place in its file"
        try:
            request = _request(self._line(item.ordinal))
        except OSError as error:
            raise ReadError(*why(error)) from error
        except ValueError as error:
            raise ReadError(ErrorKind.UNREADABLE, str(error)) from error
        check_same(item.member, request.custom_id, f"custom_id of request {item.ordinal + 1:,}")
        check_same(1, len(request.images), "the number of its images")
        return image_in(request.images[0], self._stored)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._places, self._next = None, array("q"), 0

    def _item(self, line: bytes, number: int, ordinal: int, seen: set[bytes]) -> Item:
        uri = self._stored.uri
        try:
            request = _request(line)
            digest = hashlib.sha256(request.custom_id.encode("utf-8", "surrogatepass")).digest()[:16]
            if digest in seen:
                raise ValueError(f"custom_id {request.custom_id!r} is used twice")
            seen.add(digest)
        except ValueError as error:
            return Item(uri, ordinal=ordinal, error_kind=ErrorKind.UNREADABLE, error=f"line {number}: {error}")
        metadata = (("custom_id", request.custom_id), (ITEM_QUESTION, request.question))
        if len(request.images) == 1:
            return Item(uri, request.custom_id, ordinal, size_bytes=len(line), metadata=metadata)
        told = f"line {number}: a request of {len(request.images)} images; give each image a request of its own"
        kind = ErrorKind.UNSUPPORTED_FORMAT
        return Item(uri, request.custom_id, ordinal, metadata=metadata, error_kind=kind, error=told)

    def _line(self, ordinal: int) -> bytes:
        if self._file is None:
            self._file = self._stored.open()
        while ordinal >= len(self._places):
            found = next(_lines(self._file, self._next), None)
            if found is None:
                raise ReadError(ErrorKind.NOT_FOUND, f"the file holds {len(self._places):,} requests now")
            self._places.append(found[1])
            self._next = self._file.tell()
            if ordinal < len(self._places):
                return found[2]
        self._file.seek(self._places[ordinal])
        return self._file.readline(LONGEST_LINE_BYTES)


def _request(line: bytes) -> BatchRequest:
    """Raises ValueError."""
    if len(line) >= LONGEST_LINE_BYTES:
        raise ValueError(f"it is longer than {LONGEST_LINE_BYTES:,} bytes")
    try:
        parsed = json.loads(line)  # a mark of the byte order before it is read over
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON: {error}") from error
    return parse_request(parsed)


def _lines(file: BinaryIO, place: int) -> Iterator[tuple[int, int, bytes]]:
    """(number of the line from ``place`` on, its place, the line) of those that are not blank."""
    file.seek(place)
    number = 0
    while line := file.readline(LONGEST_LINE_BYTES):
        at, place, number = place, place + len(line), number + 1
        more = line
        while len(more) == LONGEST_LINE_BYTES:  # the rest of a line that is too long
            more = file.readline(LONGEST_LINE_BYTES)
            place += len(more)
        if line.strip():
            yield number, at, line
