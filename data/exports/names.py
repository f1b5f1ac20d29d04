"""What an exported item is called: its place below the run's inputs, safe as a path and never the name of another.

The name is the path relative to the deepest folder that holds all inputs (for a list or a pattern: all that it names):
``x/a.jpg``; a member of an archive is ``photos.zip/x/a.jpg``, a row of a table ``table.parquet/0000012``, a page of a
document ``doc.page-0003.pdf``. A part that would climb (``..``) is percent-encoded, one too long for file systems is
cut and marked with its hash; so is a name that an ending makes too long (``fitting``).

The short name has no suffix; it is for what lies beside an image. Where two items would share it (``a.jpg`` and
``a.png``; letters that differ in case or in Unicode form alone count as the same) each keeps its suffix, and where even
whole names are shared (two members of one name) each gets the beginning of its item's id.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import unicodedata
from array import array
from itertools import takewhile
from urllib.parse import unquote_to_bytes

import numpy as np
from numpy.typing import NDArray

from zellige.data.exports.base import Row
from zellige.data.run import Run

#: A part of a path in bytes, at most; the rest of the 255 that file systems take is for a suffix.
_LONGEST = 240
#: What file systems take for one name.
_LONGEST_NAME = 255


class Names:
    """The names of a run's items. Some bytes an item are kept, so the names of millions fit in memory."""

    def __init__(self, run: Run, suffix: str = "") -> None:
        """``suffix`` is what the caller adds to short names: with it none may be the name of an image of the run."""
        self._suffix = suffix
        self._base = _base(run)
        full, short = array("Q"), array("Q")
        for item in run.items():
            name = self._name(item.uri, item.member, item.ordinal, item.page)
            full.append(_digest(name))
            short.append(_digest(_stem(name)))
        self._full = np.sort(np.frombuffer(full, np.uint64))
        self._shared_full = _repeated(self._full)
        self._shared_short = _repeated(np.sort(np.frombuffer(short, np.uint64)))

    def full(self, row: Row) -> str:
        """The name with its suffix. Bytes that are not UTF-8 are surrogates in it, as in ``os.fsdecode``."""
        name = self._name_of(row)
        return _marked(name, row) if _digest(name) in self._shared_full else name

    def text(self, row: Row) -> str:
        """``full`` with what is not UTF-8 percent-encoded."""
        return re.sub("[\udc80-\udcff]", lambda m: f"%{ord(m[0]) - 0xDC00:02X}", self.full(row))

    def short(self, row: Row) -> str:
        """The name without its suffix where nobody else has that, else the full one."""
        name = self._name_of(row)
        stem = _stem(name)
        shared = _digest(stem) in self._shared_short or (stem != name and self._is_image(stem))
        for chosen in ([] if shared else [stem]) + [self.full(row)]:
            if not self._is_image(chosen + self._suffix):
                return chosen
        return _marked(name, row)

    def _is_image(self, name: str) -> bool:
        digest = np.uint64(_digest(name))
        place = int(np.searchsorted(self._full, digest))
        return place < len(self._full) and bool(self._full[place] == digest)

    def _name_of(self, row: Row) -> str:
        return self._name(row["uri"], row["member"], row["ordinal"], row["page"])

    def _name(self, uri: str, member: str | None, ordinal: int | None, page: int | None) -> str:
        parts = _parts(uri)
        if parts[: len(self._base)] == self._base:
            parts = parts[len(self._base) :]
        if member is not None:
            parts += [part for part in member.split("/") if part]
        elif ordinal is not None:
            parts.append(f"{ordinal:07d}")
        name = "/".join(map(_safe, parts)) or "item"
        if page is not None:
            stem = _stem(name)
            name = f"{stem}.page-{page:04d}{name[len(stem) :]}"
        return name


def _base(run: Run) -> list[str]:
    """The deepest folder that holds all inputs that are folders, and all items that came otherwise."""
    given = {tuple(_parts(uri)) for uri in run.inputs}
    base: list[str] | None = None
    for item in run.items():
        parts = _parts(item.uri)
        # Of an input that is a file, a list or a pattern, the folders of its items count.
        depth = next((n for n in range(1, len(parts)) if tuple(parts[:n]) in given), len(parts) - 1)
        if base is None:
            base = parts[:depth]
        elif parts[: len(base)] != base or len(base) > depth:
            base = [a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(base, parts[:depth], strict=False))]
    return base or []


def _parts(uri: str) -> list[str]:
    scheme, _, path = uri.partition("://")
    return [scheme, *(os.fsdecode(unquote_to_bytes(part)) for part in path.split("/") if part)]


def _safe(part: str) -> str:
    """One part of a path, of at most ``_LONGEST`` bytes, that neither climbs nor holds a slash or a NUL."""
    if part in (".", ".."):
        return part.replace(".", "%2E")
    part = part.replace("/", "%2F").replace("\0", "%00")
    raw = os.fsencode(part)
    if len(raw) <= _LONGEST:
        return part
    mark = b"-" + hashlib.sha256(raw).hexdigest()[:12].encode() + posixpath.splitext(raw)[1][-16:]
    return os.fsdecode(raw[: _LONGEST - len(mark)].decode("utf-8", "ignore").encode() + mark)


def fitting(name: str, ending: str) -> str:
    """``name`` and ``ending``; cut to ``_LONGEST_NAME`` bytes, in favour of a hash of it all, where it is longer."""
    folder, slash, last = name.rpartition("/")
    raw, kept = os.fsencode(last), os.fsencode(ending)
    if len(raw) + len(kept) <= _LONGEST_NAME:
        return name + ending
    mark = b"-" + hashlib.sha256(raw).hexdigest()[:12].encode()
    cut = raw[: _LONGEST_NAME - len(mark) - len(kept)].decode("utf-8", "ignore").encode()
    return folder + slash + os.fsdecode(cut + mark + kept)


def _stem(name: str) -> str:
    return posixpath.splitext(name)[0]


def _marked(name: str, row: Row) -> str:
    stem = _stem(name)
    return f"{stem}-{row['item_id'][:12]}{name[len(stem) :]}"


def _digest(name: str) -> int:
    """64 bits of what file systems that ignore case and Unicode form hold for the same name.

    Two names that share them by chance are treated as if they were the same, which is never wrong, only longer.
    """
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
    return int.from_bytes(hashlib.blake2b(folded.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _repeated(digests: NDArray[np.uint64]) -> set[int]:
    return set(digests[1:][digests[1:] == digests[:-1]].tolist())
