"""What decoding takes and gives, whatever the format: the budget, the pixels, and the error that names its kind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zellige.data.schema import ErrorKind


class DecodeError(Exception):
    """An image that cannot be used: ``kind`` for the row, and a message that says what was found."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message

    def __reduce__(self) -> tuple[type[DecodeError], tuple[ErrorKind, str]]:
        """Pickled whole: decoding may run in another process."""
        return DecodeError, (self.kind, self.message)


@dataclass(frozen=True)
class DecodeLimits:
    """``max_pixels``: width x height by the header, checked before a pixel is decoded."""

    max_pixels: int = 200_000_000

    def check(self, width: int, height: int) -> None:
        """Raises DecodeError ``too_large`` for an image over the budget."""
        if width * height > self.max_pixels:
            raise DecodeError(
                ErrorKind.TOO_LARGE, f"{width} x {height} pixels are more than the limit of {self.max_pixels:,} pixels"
            )


DEFAULT_LIMITS = DecodeLimits()


@dataclass(frozen=True, eq=False)
class Decoded:
    """``pixels`` is upright 8-bit RGB (H, W, 3), contiguous and writable; ``warning`` says what was lost on the way."""

    pixels: NDArray[np.uint8]
    width: int
    height: int
    frames: int
    format: str
    warning: str | None = None


@dataclass(frozen=True)
class Probed:
    """What the header says: pixels of the upright image, and the media type."""

    width: int
    height: int
    format: str


def no_page(page: int, count: int) -> DecodeError:
    """The error for a page that a document of ``count`` pages does not have."""
    return DecodeError(ErrorKind.UNREADABLE, f"there is no page {page}: the document has {count}")


def first_of(count: int) -> str:
    """The warning for a document that stands where one image was expected, such as a cell of a table."""
    return f"page 1 of {count}; the others were not looked at"
