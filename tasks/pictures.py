"""Pictures: a run's items drawn small, read again from where they came, in processes that may die."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, replace
from types import TracebackType

from zellige.data.decode_pool import DecodeFailed, DecodePool, PoolError, default_workers
from zellige.data.run import Run
from zellige.data.schema import Item
from zellige.data.sources import open_source
from zellige.data.thumbnail import as_jpeg, thumbnail_rule
from zellige.tasks.decode import Decoder

_READ_THREADS = 4


class NoPicture(Exception):
    """An item that cannot be drawn; the message says why."""


@dataclass(frozen=True)
class Wanted:
    """An item to draw, known by ``key``; ``content_sha256`` is that of the bytes that were answered (None: any)."""

    key: int
    item: Item
    content_sha256: str | None


class Pictures:
    """Draws while the context lasts, from any thread. Raises SourceError where the inputs cannot be opened any more."""

    def __init__(self, run: Run) -> None:
        source = open_source(run.inputs, run.source_options)
        self._readers = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="zellige-read")
        self._pool = DecodePool()
        self._decoder = Decoder(source, thumbnail_rule(1), self._pool, self._readers)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="zellige-pictures", daemon=True)

    def draw(self, wanted: Wanted, side: int) -> bytes:
        """The item as a JPEG, no side longer than ``side`` pixels; raises NoPicture."""
        return asyncio.run_coroutine_threadsafe(self._draw(wanted, side), self._loop).result()

    def draw_all(self, wanted: Sequence[Wanted], side: int, most_bytes: int) -> tuple[dict[int, bytes], dict[int, str]]:
        """As many as there is room for, the first ones first; and why some cannot be drawn. Both by key."""
        work = self._draw_all(wanted, side, most_bytes)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def __enter__(self) -> Pictures:
        self._thread.start()
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._pool.close()
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._loop.close()

    async def _draw(self, wanted: Wanted, side: int) -> bytes:
        decoder = replace(self._decoder, rule=thumbnail_rule(side))
        try:
            async with aclosing(decoder.views(wanted.item)) as views:
                async for header, view, _ in views:
                    if wanted.content_sha256 not in (None, header.content_sha256):
                        raise NoPicture("the image has changed since")
                    return as_jpeg(view.pixels)
        except DecodeFailed as error:
            raise NoPicture(error.failed.message) from error
        except PoolError as error:
            raise NoPicture(str(error)) from error
        raise NoPicture("the image has no views")

    async def _draw_all(
        self, wanted: Sequence[Wanted], side: int, most_bytes: int
    ) -> tuple[dict[int, bytes], dict[int, str]]:
        drawn: dict[int, bytes] = {}
        why: dict[int, str] = {}
        left, room = iter(wanted), most_bytes

        async def worker() -> None:
            nonlocal room
            for one in left:
                if room <= 0:
                    return
                try:
                    picture = await self._draw(one, side)
                except NoPicture as error:
                    why[one.key] = str(error)
                    continue
                # As text in the page a byte takes four thirds; the rest is for its name.
                if (size := len(picture) * 4 // 3 + 64) <= room:
                    drawn[one.key] = picture
                room -= size

        await asyncio.gather(*(worker() for _ in range(default_workers() + 1)))
        return drawn, why
