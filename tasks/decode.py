"""Decode and tile: from an item to the views of it that the model is asked about."""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zellige.data.decode import DecodeError, DecodeLimits, decode, probe
from zellige.data.schema import ErrorKind, Item, Tiling
from zellige.data.sources import ReadError, Source
from zellige.data.tiling import Tile, cut, plan_tiles
from zellige.engine.api import VisionBudget

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class View:
    """One picture for the model: the whole image, its overview or a tile; ``pixels`` are (height, width, 3)."""

    tile: Tile
    pixels: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Prepared:
    """An item as far as it came: its ``views``, or none and the kind of error. ``error`` alone is a warning."""

    views: tuple[View, ...]
    width: int | None = None
    height: int | None = None
    frames: int | None = None
    content_sha256: str | None = None
    error_kind: ErrorKind | None = None
    error: str | None = None
    decode_s: float = 0.0


@dataclass(frozen=True, eq=False)
class Loaded:
    """The encoded bytes of an item, and the size that its header names, in pixels of the upright image."""

    data: bytes
    content_sha256: str
    width: int
    height: int
    seconds: float


def load(source: Source, item: Item, limits: DecodeLimits) -> Loaded | Prepared:
    """Read one item and its header; a failure comes back as an item with no views. Meant for a thread."""
    start = time.perf_counter()
    if item.error_kind is not None:
        return Prepared((), item.width, item.height, error_kind=item.error_kind, error=item.error)
    digest: str | None = None
    try:
        data = source.read(item)
        digest = hashlib.sha256(data).hexdigest()
        probed = probe(data, limits)
    except Exception as e:
        kind, message = _failure(e, item)
        return Prepared((), item.width, item.height, None, digest, kind, message, time.perf_counter() - start)
    return Loaded(data, digest, probed.width, probed.height, time.perf_counter() - start)


def prepare(item: Item, loaded: Loaded, budget: VisionBudget, tiling: Tiling, limits: DecodeLimits) -> Prepared:
    """Decode one item and cut it into views; a failure comes back without any. Meant for a thread."""
    start, width, height = time.perf_counter() - loaded.seconds, loaded.width, loaded.height
    try:
        decoded = decode(loaded.data, limits)
        views = see(decoded.pixels, budget, tiling)
    except Exception as e:
        kind, message = _failure(e, item)
        seconds = time.perf_counter() - start
        return Prepared((), width, height, None, loaded.content_sha256, kind, message, seconds)
    seconds = time.perf_counter() - start
    return Prepared(
        views, width, height, decoded.frames, loaded.content_sha256, error=decoded.warning, decode_s=seconds
    )


def _failure(error: Exception, item: Item) -> tuple[ErrorKind, str]:
    """The kind and the words for the row of an item that could not be made ready."""
    if isinstance(error, (ReadError, DecodeError)):
        return error.kind, error.message
    if isinstance(error, UnseenShapeError):
        return ErrorKind.ENGINE_REJECTED, str(error)
    if isinstance(error, MemoryError):
        return ErrorKind.TOO_LARGE, "there is not enough memory to decode this image"
    # A fault of ours in reading one item must cost that item and not the run; the trace goes to the log.
    log.error("reading %s raised an error that it should not have", item.uri, exc_info=error)
    return ErrorKind.UNREADABLE, f"{type(error).__name__}: {error}"


class UnseenShapeError(Exception):
    """The model cannot see an image of this shape."""


def see(pixels: NDArray[np.uint8], budget: VisionBudget, tiling: Tiling) -> tuple[View, ...]:
    """What the model is shown of an image: one view of the whole, or the overview and then its tiles.

    Raises UnseenShapeError.
    """
    height, width = pixels.shape[:2]
    try:
        tiles = plan_tiles(width, height, budget, tiling)
    except ValueError as e:
        raise UnseenShapeError(str(e)) from e
    if not tiles:
        return (View(Tile(0, 0, width, height, 1.0, overview=True), pixels),)
    return tuple(View(tile, cut(pixels, tile)) for tile in tiles)
