"""Where items come from: ``open_source`` for what a user named, one file a kind of source."""

from zellige.data.sources.base import ReadError, Source, SourceError
from zellige.data.sources.opening import open_source
from zellige.data.sources.options import SourceOptions

__all__ = ["ReadError", "Source", "SourceError", "SourceOptions", "open_source"]
