"""What a user may say about the inputs beside their names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SourceOptions:
    """Which names are wanted, which column holds the images, and which further columns go into ``metadata``.

    ``include`` and ``exclude`` are globs (``data/globs.py``); ``column`` is for tables and list files.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    column: str | None = None
    keep: tuple[str, ...] = ()


NO_OPTIONS = SourceOptions()
