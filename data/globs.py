"""Globs for ``--include`` and ``--exclude``, over names in bytes.

``*`` and ``?`` stay within one folder name, ``**`` crosses folders, ``[abc]`` and ``[!abc]`` are one character. A glob
without a slash is for the name in any folder; one with a slash is for the path below the folder that was named.
What ``--exclude`` names may be a folder, with or without a slash behind it: all below it is left out.
A question's ``uri`` is a glob too, for the end of an item's whole address.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import lru_cache

_TOKENS = re.compile(rb"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)
_SIMPLE = {b"**/": rb"(?:.*/)?", b"**": rb".*", b"*": rb"[^/]*", b"?": rb"[^/]"}


def _regex(glob: str) -> re.Pattern[bytes]:
    anywhere = b"" if "/" in glob else rb"(?:.*/)?"
    return re.compile(anywhere + _body(glob.removeprefix("./")), re.DOTALL)


@lru_cache(maxsize=100_000)  # a file of questions may hold one glob an image
def tail_regex(glob: str) -> re.Pattern[bytes]:
    """For whole addresses: the glob matches from any folder on, or from the first letter of the address."""
    return re.compile(rb"(?:.*/)?" + _body(glob.removeprefix("./")), re.DOTALL)


def _body(glob: str) -> bytes:
    def translated(token: bytes) -> bytes:
        if token in _SIMPLE:
            return _SIMPLE[token]
        if len(token) > 1:  # a set of characters; "!" negates, "-" makes ranges
            inside = token[1:-1].replace(b"\\", b"\\\\").replace(b"[", b"\\[")
            return b"[^/" + inside[1:] + b"]" if inside.startswith(b"!") else b"[" + inside.replace(b"^", b"\\^") + b"]"
        return re.escape(token)

    return b"".join(translated(token) for token in _TOKENS.findall(os.fsencode(glob)))


class NameFilter:
    """Which names are wanted: those that match an ``include`` (all where none is given) and no ``exclude``."""

    def __init__(self, include: Sequence[str], exclude: Sequence[str]) -> None:
        self._include = [_regex(glob) for glob in include]
        self._exclude = [_regex(glob) for glob in exclude if not glob.endswith("/")]
        # "a/*" means the files of a: a last part of stars alone names no folder.
        below = (glob.rstrip("/") for glob in exclude)
        self._folders = [_regex(glob) for glob in below if glob.rpartition("/")[2].strip("*")]

    def wants(self, name: bytes) -> bool:
        """Whether to take ``name``, a path relative to the folder that was named."""
        if self._include and not any(r.fullmatch(name) for r in self._include):
            return False
        if any(r.fullmatch(name) for r in self._exclude):
            return False
        slash = name.find(b"/") if self._folders else -1
        while slash > 0:
            if self.excludes_folder(name[:slash]):
                return False
            slash = name.find(b"/", slash + 1)
        return True

    def excludes_folder(self, name: bytes) -> bool:
        """Whether an ``exclude`` names this folder, and so all below it."""
        return any(r.fullmatch(name) for r in self._folders)
