"""Which files of a walk are wanted: the user's filters, and the glob that was an input itself."""

from __future__ import annotations

import os
from collections.abc import Collection, Set

from zellige.data.globs import NameFilter
from zellige.data.sources.options import SourceOptions

#: Kinds of containers whose items have no names.
TABLES = frozenset(("parquet", "arrow"))

#: What lies in the folder of one run of answers, whose parts are tables of images to nobody.
_RUN_FILE, _RUN_FOLDERS = b"recipe.json", frozenset((b"leases", b"events", b"parts"))


def is_run(names: Collection[bytes], folders: Set[bytes]) -> bool:
    """Whether a folder with these names, some of them of folders, is a run in a store of answers."""
    return folders >= _RUN_FOLDERS and _RUN_FILE in names


class Wanted:
    """Names are paths, in bytes, below the folder that is walked."""

    def __init__(self, options: SourceOptions, glob: bytes | None = None) -> None:
        self._image = NameFilter(options.include, options.exclude)
        self._container = NameFilter((), options.exclude)
        # What a glob names may be a folder; "./" holds a glob without a slash to the folder it stands in.
        globs = () if glob is None else (f"./{os.fsdecode(glob)}", f"./{os.fsdecode(glob)}/**")
        self._glob = NameFilter(globs, ())

    def in_glob(self, name: bytes) -> bool:
        """Whether the input that is walked means this file at all."""
        return self._glob.wants(name)

    def included(self, name: bytes) -> bool:
        """Whether the filters take a file of this name, and so all that is in it."""
        return self._image.wants(name)

    def excludes_folder(self, name: bytes) -> bool:
        """Whether the filters leave out a folder of this name with all below it."""
        return self._container.excludes_folder(name)

    def file(self, name: bytes, kind: str | None) -> bool:
        """Whether the filters take a file, a container of ``kind`` or (None) an image or document.

        Of an archive, ``--include`` is for the names inside it as well; the rows of a table have none.
        """
        return self._container.wants(name) if kind is not None and kind not in TABLES else self.included(name)
