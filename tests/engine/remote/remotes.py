"""Clients of stand-in servers whose waits are short."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from standin import StandIn

from zellige.engine.remote.client import RemoteEngine
from zellige.engine.remote.config import Address, RemoteConfig
from zellige.engine.remote.identity import assumed_identity

#: As in configs/remote.toml, but nobody wants to wait for a test.
QUICK = replace(
    RemoteConfig.load(), deadline_s=10.0, unreachable_s=2.0, tries=4, first_s=0.01, most_s=0.05, connect_s=2.0
)


@asynccontextmanager
async def remote(*servers: StandIn | str, key: str | None = None, **config: Any) -> AsyncIterator[RemoteEngine]:
    """A client of these servers, or of these addresses; closed at the end."""
    settings = replace(QUICK, **config)
    addresses = [Address.parse(s if isinstance(s, str) else s.url) for s in servers]
    engine = RemoteEngine(addresses, assumed_identity(settings, None), settings, key)
    try:
        yield engine
    finally:
        await engine.close()
