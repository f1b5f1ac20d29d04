"""What stands in a cell of a table: an image, the address of one, or a value to keep."""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

from zellige.data.schema import ErrorKind
from zellige.data.sniff import HEAD_BYTES, sniff
from zellige.data.sources.base import ReadError, StoredFile
from zellige.data.sources.storage import SCHEME, local_file, remote_file, remote_url
from zellige.data.uri import from_uri, is_file_uri

#: No path is longer; what is, and is no base64, is some other text.
_LONGEST_ADDRESS = 4096
_URL_SAFE = bytes.maketrans(b"-_", b"+/")


def image_in(cell: Any, table: StoredFile) -> bytes:
    """The encoded image of a cell: bytes, ``{bytes, path}``, base64, a data URI, or a path or address that is read.

    Paths are relative to the folder of ``table``. Raises ReadError, ``empty`` for a cell without a value.
    """
    if isinstance(cell, Mapping):
        cell = cell.get("path") if cell.get("bytes") is None else cell["bytes"]
    if cell is None:
        raise ReadError(ErrorKind.EMPTY, "the cell holds no image (null)")
    if isinstance(cell, bytes):
        return cell
    text = str(cell)
    if not text.strip():
        raise ReadError(ErrorKind.EMPTY, "the cell holds an empty text")
    if text[:5].lower() == "data:":
        return _data_uri(text)
    if (image := _base64_image(text)) is not None:
        return image
    try:
        return _addressed(text, table).read()
    except ReadError as error:
        raise ReadError(error.kind, f"{text[:200]}: {error.message}") from error


def is_embedded(text: str) -> bool:
    """Whether a text holds the image itself, as base64 or a data: address, and is not the name of a file."""
    try:
        return text[:5].lower() == "data:" or _base64_image(text) is not None
    except ReadError:  # damaged, and longer than any name
        return True


def begins_as_image(text: str) -> bool:
    """Whether a text begins as an image that is written out: a data: address of one, or base64."""
    return text[:11].lower() == "data:image/" or _kind_in_base64(text) is not None


def _data_uri(text: str) -> bytes:
    head, comma, body = text[5:].partition(",")
    if not comma:
        raise ReadError(ErrorKind.UNREADABLE, "a data: address without a comma")
    data = unquote_to_bytes(body)
    if not head.lower().rstrip().endswith(";base64"):
        return data
    try:
        return _decoded(data)
    except ValueError as error:
        raise ReadError(ErrorKind.UNREADABLE, f"a data: address whose base64 is damaged: {error}") from error


def _base64_image(text: str) -> bytes | None:
    """The image that ``text`` is the base64 of; None where it is something else, such as a path."""
    if (kind := _kind_in_base64(text)) is None:
        if len(text) > _LONGEST_ADDRESS:
            raise ReadError(ErrorKind.UNREADABLE, f"a text of {len(text):,} letters that is no base64 of an image")
        return None
    try:
        return _decoded(text.encode("ascii"))
    except ValueError as error:
        raise ReadError(ErrorKind.UNREADABLE, f"base64 of {kind} that is damaged: {error}") from error


def _kind_in_base64(text: str) -> str | None:
    """The kind of image or document that a text is the base64 of, by its first letters."""
    try:
        kind = sniff(_decoded(text[: HEAD_BYTES // 4 * 4].encode("ascii"))) or ""
    except ValueError:
        return None
    return kind if kind.startswith("image/") or kind == "application/pdf" else None


def _decoded(text: bytes) -> bytes:
    """Base64 of either alphabet, with or without line ends and padding; raises ValueError (binascii.Error is one)."""
    packed = b"".join(text.split()).translate(_URL_SAFE).rstrip(b"=")
    if len(packed) % 4 == 1:
        raise binascii.Error("its length is that of no base64")
    return base64.b64decode(packed + b"=" * (-len(packed) % 4), validate=True)


def _addressed(text: str, table: StoredFile) -> StoredFile:
    if is_file_uri(text):
        return _local(from_uri(text), table)
    if SCHEME.match(text):
        if "::" in text:
            raise ReadError(ErrorKind.UNREADABLE, f"chained addresses such as {text[:200]} are not read")
        return remote_file(text)
    if table.path is None:
        return remote_file(f"{remote_url(table.uri).rpartition('/')[0]}/{text.lstrip('/')}")
    return _local(os.path.join(os.path.dirname(table.path), text.encode("utf-8", "surrogateescape")), table)


def _local(path: bytes, table: StoredFile) -> StoredFile:
    if table.path is None:
        raise ReadError(ErrorKind.NOT_FOUND, "a table that lies elsewhere names a file of this machine")
    if b"\0" in path:
        raise ReadError(ErrorKind.NOT_FOUND, f"no path: {quote_from_bytes(path[:200])}")
    return local_file(os.path.normpath(path))


def kept_text(value: Any) -> str | None:
    """A cell as the text of a row's metadata: nested ones as JSON; None where it has no value."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return _plain(value)
    if isinstance(value, (bool, int, float, list, tuple, Mapping)):
        return json.dumps(value, ensure_ascii=False, default=_plain)
    return _plain(value)


def _plain(value: Any) -> str:
    """What JSON does not know: bytes as text or else as base64, dates and decimals as they are printed."""
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return base64.b64encode(value).decode("ascii")
