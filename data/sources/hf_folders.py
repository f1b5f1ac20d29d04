"""Folders that ``datasets`` wrote with ``save_to_disk``: which of their files hold rows, and in which order."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from zellige.data.schema import ErrorKind
from zellige.data.sources.base import ReadError

#: The files by which such a folder is known: of one data set, and of several splits.
DATASET_MARK, SPLITS_MARK = "state.json", "dataset_dict.json"


def dataset_files(read: Callable[[str], bytes | None]) -> list[str] | None:
    """The Arrow files of a saved data set or of its splits, in order, relative to its folder; None for other folders.

    ``read`` gives a file of the folder, None where it is missing. Raises ReadError where the lists are damaged.
    """
    if (marks := read(SPLITS_MARK)) is not None:
        splits = _json(SPLITS_MARK, marks).get("splits")
        if not isinstance(splits, list):
            return None
        # A list may name a split twice; its rows are there once.
        return [
            f"{split}/{name}"
            for split in dict.fromkeys(map(str, splits))
            for name in _of_split(read, f"{split}/") or ()
        ]
    return _of_split(read, "")


def _of_split(read: Callable[[str], bytes | None], folder: str) -> list[str] | None:
    name = folder + DATASET_MARK
    if (state := read(name)) is None:
        if folder:
            raise ReadError(ErrorKind.NOT_FOUND, f"{name} of this saved data set is missing")
        return None
    files = _json(name, state).get("_data_files")
    if not isinstance(files, list):
        return None  # a state.json of something else
    names = [str(file.get("filename")) for file in files if isinstance(file, dict)]
    if any(part in ("", ".", "..") for listed in names for part in listed.split("/")):
        raise ReadError(ErrorKind.UNREADABLE, f"{name} names files outside of the data set's folder")
    return list(dict.fromkeys(names))


def _json(name: str, text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ReadError(ErrorKind.UNREADABLE, f"{name} of this saved data set is damaged: {error}") from error
    return value if isinstance(value, dict) else {}
