"""Where something is printed: a mask of ink on any ground, without rules and frames. Pure numpy.

Ground is what most of each block of 32 x 32 pixels looks like, so dark pages and uneven light do not matter; ink is
what differs from it by more than the picture's noise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]

#: Rows that are looked at together, so that a large page needs little memory beyond its mask.
_BAND = 1024
_BLOCK = 32
#: Least difference from the ground in any channel (0..255), and in multiples of the noise's standard deviation.
_LEAST_CONTRAST, _NOISES = 36, 5.0
#: A run of ink longer than this is no letter: a rule where it is thin, a border where it runs along most of a side.
_RULE_PX, _THIN_PX, _MOST_OF_A_SIDE = 96, 9, 0.6


def ink_of(pixels: NDArray[np.uint8]) -> Mask:
    """Where an (H, W, 3) image bears ink: (H, W), rules, frames and single specks left out."""
    bands = [_inked(pixels[y : y + _BAND]) for y in range(0, pixels.shape[0], _BAND)]
    mask = np.concatenate(bands)
    return _without_rules(_without_specks(mask))


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
    differs = (np.maximum(blocks, ground) - np.minimum(blocks, ground)).max(axis=4)
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
    return mask & ~(_rules(mask) | _rules(mask.T).T)


def _rules(mask: Mask) -> Mask:
    """Pixels of horizontal rules: long runs that are thin, and very long ones however thick they are."""
    # Spread by a pixel, a rule that is turned by a degree still makes long runs.
    spread = mask.copy()
    spread[1:] |= mask[:-1]
    spread[:-1] |= mask[1:]
    long = _long_runs(spread, _RULE_PX)
    borders = _long_runs(spread, max(_RULE_PX, round(_MOST_OF_A_SIDE * mask.shape[1])))
    thick = _long_runs(np.ascontiguousarray(long.T), _THIN_PX + 2).T
    return np.asarray((long & ~thick) | borders)


def _long_runs(mask: Mask, least: int) -> Mask:
    """What lies in horizontal runs of at least ``least`` pixels."""
    kept = np.zeros(mask.shape, np.bool_)
    if mask.shape[1] >= least:
        for y in range(0, mask.shape[0], _BAND):
            kept[y : y + _BAND] = _long_runs_of_band(mask[y : y + _BAND], least)
    return kept


def _long_runs_of_band(mask: Mask, least: int) -> Mask:
    height, width = mask.shape
    flat = np.zeros((height, width + 2), np.int8)
    flat[:, 1:-1] = mask
    steps = np.diff(flat, axis=1)
    starts, ends = np.nonzero(steps == 1), np.nonzero(steps == -1)
    long = ends[1] - starts[1] >= least
    marks = np.zeros((height, width + 1), np.int8)
    marks[starts[0][long], starts[1][long]] = 1
    marks[ends[0][long], ends[1][long]] = -1
    return np.asarray(np.cumsum(marks[:, :-1], axis=1, dtype=np.int8) > 0)
