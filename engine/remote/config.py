"""How engines behind URLs are asked: one typed object, from configs/remote.toml; and where they are."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from zellige.engine.api import EngineError, VisionBudget

DEFAULTS = Path(__file__).parent.parent.parent / "configs" / "remote.toml"
#: The key that is sent to every engine, or the file that holds it; never part of a spec, a store or a log.
KEY, KEY_FILE = "ZELLIGE_ENGINE_KEY", "ZELLIGE_ENGINE_KEY_FILE"


class Address(NamedTuple):
    """One engine: the ``base`` of its API (``http://host:port/v1``) and which ``model`` of it (None: its only one)."""

    base: str
    model: str | None

    @property
    def root(self) -> str:
        """Where ``/health`` is."""
        return self.base.removesuffix("/v1")

    @classmethod
    def parse(cls, url: str) -> Address:
        """From ``http://host:port[/v1][#model]``; raises EngineError with what is wrong with it."""
        parts = urlsplit(url.strip())
        try:
            port_is_fine = parts.port is None or parts.port > 0
        except ValueError:
            port_is_fine = False
        if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_fine:
            raise EngineError(f"--engine {_shown(url)}: give http://HOST:PORT/v1")
        if parts.username is not None or parts.query:
            raise EngineError(f"--engine {_shown(url)}: a key belongs in {KEY} or in the file that {KEY_FILE} names")
        base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"
        return cls(base, unquote(parts.fragment) or None)


def _shown(url: str) -> str:
    """The URL without what may be secret in it."""
    plain = url.partition("?")[0]
    return plain.partition("://")[0] + "://…" + plain.rpartition("@")[2] if "@" in plain else plain


@dataclass(frozen=True)
class RemoteConfig:
    """See configs/remote.toml for what each means."""

    kept_connections: int
    connect_s: float
    deadline_s: float
    unreachable_s: float
    tries: int
    first_s: float
    most_s: float
    vision: VisionBudget

    @classmethod
    def load(cls) -> RemoteConfig:
        table: dict[str, Any] = tomllib.loads(DEFAULTS.read_text(encoding="utf-8"))
        return cls(**table["limits"], **table["backoff"], vision=VisionBudget(**table["vision"]))


def api_key() -> str | None:
    """The key from the environment or from the file it names; raises EngineError where that cannot be read."""
    if key := os.environ.get(KEY, "").strip():
        return key
    if not (file := os.environ.get(KEY_FILE)):
        return None
    try:
        key = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"{KEY_FILE} names {file}, which cannot be read: {error}") from error
    if not key or len(key.split()) > 1:
        raise EngineError(f"{KEY_FILE} names {file}, which should hold the key and nothing else")
    return key
