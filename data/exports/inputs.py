"""The files on this machine that a run was made of, which no export replaces."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from zellige.data.exports.base import WrongPlace
from zellige.data.run import Run
from zellige.data.uri import from_uri, is_file_uri

Identity = tuple[int, int]


def identities(run: Run, ending: str = "") -> Iterator[tuple[Identity, bytes]]:
    """Device, inode and path of the run's inputs, and of the files of its items whose address ends so."""
    for place in _places(run, ending):
        try:
            status = Path(os.fsdecode(place)).stat()
        except (OSError, ValueError):  # gone, a pattern, or a name that no file can have
            continue
        yield (status.st_dev, status.st_ino), place


def refuse_inputs(run: Run, dest: Path, replaced: Iterable[Path]) -> None:
    """Raise WrongPlace where one of ``replaced``, which an export to ``dest`` would replace, is an input of the run."""
    statuses = [path.stat() for path in replaced]
    ours = {(status.st_dev, status.st_ino) for status in statuses}
    for identity, place in identities(run):
        if identity in ours:
            raise WrongPlace(
                f"{dest} is not replaced: run {run.run_id} was made of {os.fsdecode(place)}; name another place"
            )


def _places(run: Run, ending: str) -> Iterator[bytes]:
    for given in run.inputs:
        reading, found, path = given.partition("file://")  # "list:file:///x" is read in a way of its own
        if is_file_uri(found + path) and "/" not in reading:
            yield from_uri(found + path)
    last = None
    for item in run.items():
        if item.uri != last and is_file_uri(item.uri) and item.uri.lower().endswith(ending):
            yield from_uri(item.uri)
        last = item.uri
