"""Which files of a walk are wanted: the user's filters, and the glob that was an input itself."""

from __future__ import annotations

import os

from zellige.data.globs import NameFilter
from zellige.data.sources.options import SourceOptions

#: Kinds of containers whose items have no names.
TABLES = frozenset(("parquet", "arrow"))


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

    def file(self, name: bytes, kind: str | None) -> bool:
        """Whether the filters take a file, a container of ``kind`` or (None) an image or document.

        Of an archive, ``--include`` is for the names inside it as well; the rows of a table have none.
        """
        return self._container.wants(name) if kind is not None and kind not in TABLES else self.included(name)
