"""The images of a request: from what ``image_url`` says to pixels, in a bounded pool of threads."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple
from urllib.parse import unquote_to_bytes

import numpy as np
from numpy.typing import NDArray
from PIL.ImageFile import ImageFile

from zellige.engine.api import VisionBudget
from zellige.engine.server.decode import decode, open_image
from zellige.engine.server.errors import ApiError, too_large
from zellige.engine.server.fetch import Fetcher
from zellige.engine.server.limits import Limits

T = TypeVar("T")
A = TypeVarTuple("A")

_DATA = re.compile(r"data:[^,;]*(;[^,;]*)*?;base64,", re.IGNORECASE)
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)


@dataclass(frozen=True)
class ImageRef:
    """One ``image_url`` of a request and where it stands, for messages."""

    url: str
    where: str


class ImageReader:
    """Turns references into pixels. Only ``limits.decoders`` images are in the works at once, whoever sends them."""

    def __init__(self, limits: Limits, fetcher: Fetcher) -> None:
        self._limits, self._fetcher = limits, fetcher
        self._pool = ThreadPoolExecutor(limits.decoders, thread_name_prefix="zellige-decode")

    async def read(
        self, refs: Sequence[ImageRef], budget: VisionBudget, hold: Callable[[int], None]
    ) -> list[NDArray[np.uint8]]:
        """Pixels of all images in order; raises ApiError that names the image by its number.

        ``hold`` is told their bytes before the first is decoded, and may refuse.
        """
        if len(refs) > self._limits.images:
            raise too_large(f"{len(refs)} images in one request; the limit is {self._limits.images}", "messages")
        opened: list[ImageFile] = []
        for number, ref in enumerate(refs, start=1):
            with _named(number, ref):
                data = await self._bytes_of(ref.url)
                opened.append(await self._in_pool(open_image, data, self._limits.image_pixels))
        hold(sum(_model_bytes(image, budget) for image in opened))
        pixels: list[NDArray[np.uint8]] = []
        for number, (ref, image) in enumerate(zip(refs, opened, strict=True), start=1):
            with _named(number, ref):
                pixels.append(await self._in_pool(decode, image, budget))
        return pixels

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _bytes_of(self, url: str) -> bytes:
        scheme = match[1].lower() if (match := _SCHEME.match(url[:32])) else ""
        if scheme in ("http", "https"):
            return await self._fetcher.fetch(url)
        if scheme == "file":
            raise ApiError(403, "files of the server are not read; send the image as a data: URI", code="url_refused")
        if scheme != "data":
            raise ApiError(400, "give a data: URI (data:image/png;base64,…)", code="invalid_image_url")
        # Three bytes from four characters; what is escaped with % takes more.
        if len(url) * 3 // 4 > self._limits.image_bytes and "%" not in url[:4096]:
            raise too_large(f"over the limit of {self._limits.image_bytes >> 20} MiB an image")
        return await self._in_pool(from_data_uri, url, self._limits.image_bytes)

    async def _in_pool(self, work: Callable[[*A], T], *args: *A) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)


@contextmanager
def _named(number: int, ref: ImageRef) -> Iterator[None]:
    """What is wrong with an image is told with its number and its place in the request."""
    try:
        yield
    except ApiError as error:
        message = f"image {number} ({ref.where}): {error.message}"
        raise ApiError(error.status, message, code=error.code, param=ref.where) from error


def from_data_uri(url: str, max_bytes: int) -> bytes:
    """The bytes of a base64 ``data:`` URI; raises ApiError 400 or 413.

    Scheme and ``;base64`` in any case, any parameters, %-escapes and line breaks are as the RFCs have them. Spaces
    (what is left of a + in a form), other alphabets and wrong padding are refused: they would give another image.
    """
    head = _DATA.match(url[:512])
    if head is None:
        raise ApiError(400, "give the data: URI as data:image/png;base64,…", code="invalid_image_url")
    payload = url[head.end() :].encode("ascii", "replace")
    if b"%" in payload:
        payload = unquote_to_bytes(payload)
    try:
        data = base64.b64decode(payload.translate(None, b"\r\n"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ApiError(400, "its base64 is damaged (alphabet or padding)", code="invalid_image") from error
    if not data:
        raise ApiError(400, "the data: URI is empty", code="invalid_image")
    if len(data) > max_bytes:
        raise too_large(f"over the limit of {max_bytes >> 20} MiB an image")
    return data


def _model_bytes(image: ImageFile, budget: VisionBudget) -> int:
    """Bytes of the image as the model sees it; one that it cannot see is refused when it is decoded."""
    try:
        width, height = budget.resized(*image.size)
    except ValueError:
        return 0
    return width * height * 3
