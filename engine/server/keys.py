"""API keys from a file: who may ask, and by what name."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path


class KeyFileError(Exception):
    """The file of keys cannot be used; the message names the line and never the key."""


class KeyRing:
    """Names by key. A key is compared with every one, in a time that says nothing of how much of it was right."""

    def __init__(self, keys: dict[str, str]) -> None:
        self._digests = [(name, _digest(key)) for name, key in keys.items()]

    @classmethod
    def load(cls, path: Path) -> KeyRing:
        """From lines of ``name:key`` (empty lines and those that begin with # aside); raises KeyFileError."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise KeyFileError(f"{path}: cannot be read ({error}); give a file of lines name:key") from error
        keys: dict[str, str] = {}
        for number, line in enumerate(lines, start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            name, colon, key = (part.strip() for part in line.partition(":"))
            if not (name and colon and key):
                raise KeyFileError(f"{path}, line {number}: not of the form name:key")
            if name in keys or key in keys.values():
                raise KeyFileError(f"{path}, line {number}: this name or this key stands there twice")
            keys[name] = key
        if not keys:
            raise KeyFileError(f"{path}: holds no key; write lines of name:key")
        return cls(keys)

    def name_of(self, authorization: str | None) -> str | None:
        """Who sent ``Authorization: Bearer KEY``; None where no key or a wrong one came."""
        scheme, _, key = (authorization or "").partition(" ")
        sent = _digest(key.strip())
        found = None
        for name, digest in self._digests:
            if hmac.compare_digest(sent, digest):
                found = name
        return found if scheme.lower() == "bearer" else None


def _digest(key: str) -> bytes:
    """Of one length for every key, so that the comparison does not tell how long the right one is."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
