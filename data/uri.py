"""File names as text and back: any bytes a file system allows, nothing lost.

A URI is ``file://`` and the absolute path, every byte outside ``A-Z a-z 0-9 - . _ ~ /`` percent-encoded. Two paths
that differ in any byte have different URIs, and a URI is plain ASCII: safe in Parquet, JSON, DuckDB and on a terminal.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes

_PREFIX = "file://"


def is_file_uri(text: str) -> bool:
    """Whether ``text`` is a URI that ``from_uri`` turns into a path."""
    return text.startswith(_PREFIX + "/")


def absolute(path: bytes) -> bytes:
    """``path`` made absolute without following its last name, so that a link keeps its own name.

    ``..`` is resolved as the kernel does (through links), not by cutting text.
    """
    joined = os.path.join(os.getcwdb(), path)
    head, dots, tail = joined.rpartition(b"/../")
    if dots:
        joined = os.path.join(os.path.realpath(head + b"/.."), tail)
    elif joined.endswith(b"/.."):
        joined = os.path.realpath(joined)
    return os.path.normpath(joined).replace(b"//", b"/")


def to_uri(path: bytes | str | Path) -> str:
    """The URI of a local path; text is turned into bytes as the operating system does (surrogates are raw bytes)."""
    raw = os.fsencode(path)
    # Walks hand over millions of paths that are absolute already.
    plain = raw.startswith(b"/") and b"//" not in raw and b"/." not in raw and not raw.endswith(b"/")
    return _PREFIX + quote(raw if plain else absolute(raw), safe="/-._~")


def from_uri(uri: str) -> bytes:
    """The path, in bytes, that ``to_uri`` was given; raises ValueError for anything but a file URI."""
    if not is_file_uri(uri):
        raise ValueError(f"{uri!r} is not a file:/// URI")
    return unquote_to_bytes(uri[len(_PREFIX) :])
