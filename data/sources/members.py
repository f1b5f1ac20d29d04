"""What members of archives are items: the same rules for every kind of archive."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import BinaryIO
from urllib.parse import unquote_to_bytes

from zellige.data.globs import NameFilter
from zellige.data.pages import page_items
from zellige.data.schema import Item
from zellige.data.sniff import HEAD_BYTES, IMAGE_SUFFIXES, sniff
from zellige.data.sources.options import SourceOptions

HIDDEN = (b".", b"__MACOSX")
#: Suffixes of documents, which have pages.
DOCUMENT_SUFFIXES = frozenset((b".pdf", b".tif", b".tiff"))
_ARCHIVES = frozenset(b".zip .cbz .tar .tgz .gz .bz2 .xz .zst .7z .rar .tbz2 .txz .tzst .parquet .arrow".split())
_ARCHIVE_TYPES = frozenset(("application/zip", "application/gzip", "application/vnd.apache.parquet"))


class MemberRules:
    """Decides by a member's name, and by its first bytes where that says nothing; counts what is passed by."""

    def __init__(self, container: str, options: SourceOptions) -> None:
        """``container`` is the URI of the archive: one whose own name is included is taken whole."""
        whole = NameFilter(options.include, ()).wants(unquote_to_bytes(container.rpartition("/")[2]))
        self._filter = NameFilter(() if whole else options.include, options.exclude)
        self.ignored: Counter[str] = Counter()

    def wants(self, name: bytes, head: Callable[[], bytes]) -> bool:
        """Whether the member is an item; ``head`` gives its first ``HEAD_BYTES``."""
        reason = self._reason(name, head)
        if reason:
            self.ignored[reason] += 1
        return reason is None

    def _reason(self, name: bytes, head: Callable[[], bytes]) -> str | None:
        parts = [part for part in name.split(b"/") if part not in (b"", b".", b"..")]
        if any(part.startswith(HIDDEN) for part in parts):
            return "hidden"
        suffix = os.path.splitext(name)[1].lower()
        if suffix in _ARCHIVES:
            return "an archive in an archive"
        if not self._filter.wants(name.removeprefix(b"./")):
            return "excluded"
        if suffix in IMAGE_SUFFIXES or suffix in DOCUMENT_SUFFIXES:
            return None
        kind = sniff(head()[:HEAD_BYTES]) or ""
        if kind in _ARCHIVE_TYPES:
            return "an archive in an archive"
        return None if kind.startswith("image/") or kind == "application/pdf" else "not an image"


def may_have_pages(name: bytes) -> bool:
    """Whether only its bytes tell what a member is: all but those with the suffix of an image that has no pages."""
    suffix = os.path.splitext(name)[1].lower()
    return suffix not in IMAGE_SUFFIXES or suffix in DOCUMENT_SUFFIXES


def with_pages(item: Item, name: bytes, open_member: Callable[[], BinaryIO]) -> Iterator[Item]:
    """The pages of a member that is a document, by its suffix or its bytes; of all others the item as it is."""
    if not may_have_pages(name):
        yield item  # without a look at its bytes: there may be millions
        return
    with open_member() as file:
        yield from page_items(item, file)


def member_name(raw: bytes) -> str:
    """A member's name as text: UTF-8, or Latin-1 where it is not that. Else unchanged; the ordinal is the key."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")
