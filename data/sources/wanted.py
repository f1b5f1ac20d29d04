"""Which files of a walk are wanted: the user's filters, and the glob that was an input itself."""

from __future__ import annotations

import os

from zellige.data.globs import NameFilter
from zellige.data.sources.options import SourceOptions


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

    def image(self, name: bytes) -> bool:
        """Whether the filters take an image or document."""
        return self._image.wants(name)

    def container(self, name: bytes) -> bool:
        """Whether the filters take a container: ``--include`` is for the names inside it."""
        return self._container.wants(name)
