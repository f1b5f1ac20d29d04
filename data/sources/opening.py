"""From what a user named to a source."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from zellige.data.sources.base import Source, SourceError
from zellige.data.sources.files import FileSource
from zellige.data.uri import absolute, from_uri, is_file_uri

_SCHEME = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://")


def open_source(
    inputs: Sequence[str | bytes | Path], include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> Source:
    """The source of the named files and folders; raises SourceError for an input of a kind that cannot be read."""
    if not inputs:
        raise SourceError("no input was named; give files or folders")
    return FileSource([_path(given) for given in inputs], include, exclude)


def _path(given: str | bytes | Path) -> bytes:
    """The absolute path, in bytes. A name that exists is a path, whatever it looks like."""
    try:
        path = os.fsencode(given)
    except UnicodeEncodeError as error:
        raise SourceError(f"{given!r} is no name of a file on this system") from error
    if not path:
        raise SourceError("an empty name was given; give a file or a folder")
    if os.path.lexists(path):
        return absolute(path)
    if isinstance(given, str) and is_file_uri(given):
        return from_uri(given)
    if scheme := _SCHEME.match(path):
        raise SourceError(f"{scheme[0].decode()} addresses are not read; copy the images to a folder and name that")
    return absolute(path)
