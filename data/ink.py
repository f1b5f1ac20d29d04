"""Where something is printed: a mask of ink on any ground, without rules and frames. Pure numpy.

Ground is what most of each block of 32 x 32 pixels looks like, so dark pages and uneven light do not matter; ink is
what differs from it by more than the picture's noise.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]

#: Rows that are looked at together, so that a large page needs little memory beyond its mask.
_BAND, _BAND_PIXELS = 1024, 16 << 20
_BLOCK = 32
#: Rows of the neighbouring bands that are looked at too: more than the length of the shortest rule.
_HALO = 128
#: Least difference from the ground in any channel (0..255), and in multiples of the noise's standard deviation.
_LEAST_CONTRAST, _NOISES = 36, 5.0
#: A run of ink longer than this is no letter: a rule where it is thin, a border where it runs along most of a side.
_RULE_PX, _THIN_PX, _MOST_OF_A_SIDE = 96, 9, 0.6


def ink_of(pixels: NDArray[np.uint8]) -> Mask:
    """Where an (H, W, 3) image bears ink: (H, W), rules, frames and single specks left out."""
    height, width = pixels.shape[:2]
    rows = band_rows(width)
    return ink_of_bands((pixels[y : y + rows] for y in range(0, height, rows)), height, width)


def band_rows(width: int, shrink: int = 1) -> int:
    """Rows of a band of an image of this width: for ``ink_of_bands``."""
    step = _BLOCK * shrink
    return max(step, min(_BAND, _BAND_PIXELS // width) // step * step)


def ink_of_bands(bands: Iterable[NDArray[np.uint8]], height: int, width: int, shrink: int = 1) -> Mask:
    """``ink_of`` of an image that comes in bands of ``band_rows`` from top to bottom.

    Each cell of the mask stands for ``shrink`` x ``shrink`` pixels and bears ink where one of them does.
    """
    mask = np.zeros((-(-height // shrink), -(-width // shrink)), np.bool_)
    top = 0
    for band in _cleaned(map(_inked, bands)):
        rows = -(-len(band) // shrink)
        mask[top : top + rows] = _shrunk(band, shrink)
        top += rows
    return mask


def _cleaned(bands: Iterable[Mask]) -> Iterator[Mask]:
    """The bands without specks and rules, which may lie across the edge of two."""
    held: Mask | None = None
    before = None
    for band in itertools.chain(bands, (None,)):
        if held is not None:
            near = [part for part in (before, held, None if band is None else band[:_HALO]) if part is not None]
            start = 0 if before is None else len(before)
            yield _without_rules(_without_specks(np.concatenate(near)))[start : start + len(held)]
            before = held[-_HALO:]
        held = band


def _shrunk(band: Mask, by: int) -> Mask:
    """One cell for ``by`` x ``by`` pixels, with ink where any of them has it."""
    if by == 1:
        return band
    height, width = band.shape
    padded = np.pad(band, ((0, -height % by), (0, -width % by)))
    return np.asarray(padded.reshape(-1, by, padded.shape[1] // by, by).any(axis=(1, 3)), np.bool_)


def runs(line: Mask) -> list[tuple[int, int]]:
    """The (start, end) of every run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], line, [False])).astype(np.int8)))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _inked(band: NDArray[np.uint8]) -> Mask:
    height, width = band.shape[:2]
    down, across = -(-height // _BLOCK), -(-width // _BLOCK)
    padded = np.pad(band, ((0, down * _BLOCK - height), (0, across * _BLOCK - width), (0, 0)), mode="edge")
    blocks = padded.reshape(down, _BLOCK, across, _BLOCK, 3)
    ground = np.median(blocks[:, ::2, :, ::2], axis=(1, 3)).astype(np.uint8)
    ground = _middle_of_neighbours(ground)[:, None, :, None]
    # The larger less the smaller stays within a byte, where a plain difference would wrap around.
    differs = np.maximum(blocks, ground) - np.minimum(blocks, ground)
    differs = np.maximum(np.maximum(differs[..., 0], differs[..., 1]), differs[..., 2])
    contrast = differs.reshape(down * _BLOCK, across * _BLOCK)[:height, :width]
    noise = 1.4826 * float(np.median(contrast[::2, ::2]))
    return np.asarray(contrast > max(_LEAST_CONTRAST, _NOISES * noise))


def _middle_of_neighbours(ground: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The median over 3 x 3 blocks: a block that a bold letter fills takes its ground from those around it."""
    padded = np.pad(ground, ((1, 1), (1, 1), (0, 0)), mode="edge")
    rows, columns = ground.shape[:2]
    around = [padded[y : y + rows, x : x + columns] for y in range(3) for x in range(3)]
    return np.asarray(np.median(np.stack(around), axis=0), np.uint8)


def _without_specks(mask: Mask) -> Mask:
    """The mask without pixels that stand alone."""
    near = np.zeros_like(mask)
    near[1:] |= mask[:-1]
    near[:-1] |= mask[1:]
    near[:, 1:] |= mask[:, :-1]
    near[:, :-1] |= mask[:, 1:]
    return mask & near


def _without_rules(mask: Mask) -> Mask:
    return mask & ~(_rules(mask, 1) | _rules(mask, 0))


def _rules(mask: Mask, axis: int) -> Mask:
    """Pixels of rules along an axis: long runs that are thin, and very long ones however thick they are."""
    # Spread by a pixel, a rule that is turned by a degree still makes long runs.
    spread = mask.copy()
    for to, of in ((slice(1, None), slice(None, -1)), (slice(None, -1), slice(1, None))):
        if axis == 1:
            spread[to] |= mask[of]
        else:
            spread[:, to] |= mask[:, of]
    long = _long_runs(spread, _RULE_PX, axis)
    if not long.any():
        return long
    borders = _long_runs(spread, max(_RULE_PX, round(_MOST_OF_A_SIDE * mask.shape[axis])), axis)
    thick = _long_runs(long, _THIN_PX + 2, 1 - axis)
    return np.asarray((long & ~thick) | borders)


def _long_runs(mask: Mask, least: int, axis: int) -> Mask:
    """What lies in runs of at least ``least`` pixels along an axis: the opening by a line of that length."""
    if mask.shape[axis] < least:
        return np.zeros_like(mask)
    # Where a run of ``length`` begins, and of twice that, and so on.
    starts, length = mask, 1
    while length < least:
        step = min(length, least - length)
        starts = _ends(starts, step, axis)[0] & _ends(starts, step, axis)[1]
        length += step
    # A start stands for the pixels after it.
    kept = np.zeros_like(mask)
    if not starts.any():
        return kept
    _ends(kept, least - 1, axis)[0][:] = starts
    length = 1
    while length < least:
        step = min(length, least - length)
        before, after = _ends(kept, step, axis)
        after |= before.copy()
        length += step
    return kept


def _ends(mask: Mask, step: int, axis: int) -> tuple[Mask, Mask]:
    """The mask without its last ``step`` rows or columns, and without its first ones; both are views of it."""
    size = mask.shape[axis]
    return (mask[: size - step], mask[step:]) if axis == 0 else (mask[:, : size - step], mask[:, step:])
