"""Decode: from an item to the views of it that the model is asked about, made ready in other processes."""

from __future__ import annotations

import asyncio
import io
import logging
import os
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass

from zellige.data.decode import DecodeError, DecodeLimits, Probed
from zellige.data.decode_pool import DecodeFailed, DecodePool
from zellige.data.decode_wire import Failed, Header
from zellige.data.header_process import read_header
from zellige.data.regions import FORMATS
from zellige.data.schema import ErrorKind, Item
from zellige.data.sources import ReadError, Source
from zellige.data.views import View, ViewRule

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decoder:
    """Reads and decodes the items of one source by one rule; ``readers`` are the threads that wait for bytes."""

    source: Source
    rule: ViewRule
    pool: DecodePool
    readers: ThreadPoolExecutor

    async def views(self, item: Item) -> AsyncGenerator[tuple[Header, View, float], None]:
        """The item's views as they are asked for, each with the seconds it took; raises DecodeFailed, PoolError.

        A whole local file is read by the process that decodes it.
        """
        if item.error_kind is not None:
            raise DecodeFailed(Failed(item.error_kind, item.error or "", item.width, item.height))
        path = self.source.local_path(item)
        data = await self._bytes(item) if path is None else path
        size = item.size_bytes or (len(data) if path is None else 0)
        found = self.pool.views(self.rule, data, is_path=path is not None, page=item.page, size_bytes=size)
        async with aclosing(found) as views:
            try:
                async for view in views:
                    yield view
            except DecodeFailed as error:
                if error.failed.trace is not None:
                    log.error("reading %s raised an error that it should not have\n%s", item.uri, error.failed.trace)
                raise

    async def _bytes(self, item: Item) -> bytes:
        try:
            return await asyncio.get_running_loop().run_in_executor(self.readers, self.source.read, item)
        except Exception as error:
            raise DecodeFailed(_failed(error, item)) from error


def probe_item(source: Source, item: Item) -> Probed | Failed:
    """What the item's header says, or why it cannot be read; decodes nothing."""
    if item.error_kind is not None:
        return Failed(item.error_kind, item.error or "")
    try:
        path = source.local_path(item)
        if path is None:
            probed = read_header(io.BytesIO(source.read(item)), item.page)
        else:
            # Not blocking: a pipe that took the place of a file would be waited for without end.
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                probed = read_header(file, item.page)
        if probed.format not in FORMATS:
            DecodeLimits().check(probed.width, probed.height)
    except Exception as error:
        return _failed(error, item)
    return probed


def _failed(error: Exception, item: Item) -> Failed:
    """The kind and the words for an item whose bytes or header could not be had."""
    if isinstance(error, (ReadError, DecodeError)):
        return Failed(error.kind, error.message, item.width, item.height)
    if isinstance(error, OSError):
        return Failed(ErrorKind.UNREADABLE, error.strerror or str(error), item.width, item.height)
    # A fault of ours in reading one item must cost that item and not the run; the trace goes to the log.
    log.error("reading %s raised an error that it should not have", item.uri, exc_info=error)
    return Failed(ErrorKind.UNREADABLE, f"{type(error).__name__}: {error}", item.width, item.height)
