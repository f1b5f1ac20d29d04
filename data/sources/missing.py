"""Inputs that are not there: found before a run is made, with the names that may have been meant."""

from __future__ import annotations

import difflib
import os

from zellige.data.schema import ErrorKind, Item
from zellige.data.sources.base import Source
from zellige.data.uri import from_uri, is_file_uri

_GLOB = (b"*", b"?", b"[")
_TOLD = 5


def nothing_named(source: Source) -> tuple[ErrorKind, str] | None:
    """(kind, what to say) where the inputs name nothing that is there: names, patterns and lists alike.

    The kind is ``TIMEOUT`` where a server could not be reached. None where anything is there, be it unreadable, and for
    a folder without images: that is a run of nothing. Looks no further than the first item that is there.
    """
    found: list[Item] = []
    count, unreachable = 0, False
    for item in source.items():
        if not _is_missing(source, item):
            return None
        count, unreachable = count + 1, unreachable or item.error_kind == ErrorKind.TIMEOUT
        if count <= _TOLD:
            found.append(item)
    if not found:
        return None
    told = "; ".join(map(_about, found)) + (f"; … and {count - _TOLD:,} more" if count > _TOLD else "")
    lists = [text.removeprefix("list:") for text in source.inputs if text.startswith("list:")]
    if lists and any(item.uri not in lists for item in found):
        told += "; names in a list are relative to the list's own folder"
    return (ErrorKind.TIMEOUT if unreachable else ErrorKind.NOT_FOUND), f"nothing to look at: {told}"


def _is_missing(source: Source, item: Item) -> bool:
    if item.error_kind == ErrorKind.EMPTY:
        return f"list:{item.uri}" in source.inputs
    if item.error_kind not in (ErrorKind.NOT_FOUND, ErrorKind.TIMEOUT) or item.member is not None:
        return False
    try:
        return not (is_file_uri(item.uri) and os.path.lexists(from_uri(item.uri)))
    except ValueError:  # a NUL byte
        return True


def _about(item: Item) -> str:
    if not is_file_uri(item.uri):
        return f"{item.uri}: {item.error}"
    path = from_uri(item.uri)
    if item.error_kind == ErrorKind.EMPTY:
        return f"the list {os.fsdecode(path)!r} names no file; put one name on a line"
    if any(c in path for c in _GLOB):
        return f"no file matches {os.fsdecode(path)!r}; ** crosses folders, * does not"
    return near_names(path)


def near_names(path: bytes) -> str:
    """That ``path`` does not exist, with the names beside it that may have been meant."""
    folder, name = os.path.split(path)
    try:
        near = difflib.get_close_matches(os.fsdecode(name), map(os.fsdecode, os.listdir(folder or b".")), n=3)
    except (OSError, ValueError):
        return f"{os.fsdecode(path)!r} does not exist, nor does its folder"
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "; check the path"
    return f"{os.fsdecode(path)!r} does not exist{hint}"
