"""Inputs that are not there: found before a run is made, with the names that may have been meant."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence

from zellige.data.uri import from_uri, is_file_uri

_GLOB = (b"*", b"?", b"[")


def nothing_there(inputs: Sequence[str]) -> str | None:
    """What to say where none of a source's ``inputs`` exists; None where one does, or may (globs, other machines)."""
    if not all(is_file_uri(uri) for uri in inputs):
        return None
    paths = [from_uri(uri) for uri in inputs]
    if any(os.path.lexists(path) or any(c in path for c in _GLOB) for path in paths):
        return None
    return "; ".join(_about(path) for path in paths[:5]) + ("; …" if len(paths) > 5 else "")


def _about(path: bytes) -> str:
    folder, name = os.path.split(path)
    try:
        near = difflib.get_close_matches(os.fsdecode(name), map(os.fsdecode, os.listdir(folder)), n=3)
    except OSError:
        return f"{os.fsdecode(path)!r} does not exist, nor does its folder"
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "; check the path"
    return f"{os.fsdecode(path)!r} does not exist{hint}"
