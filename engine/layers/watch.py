"""A look at what passes from layer to layer: to find the first one that is wrong."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

#: Told the name of a place and what comes out there; what it gives back goes on in its place.
Watch = Callable[[str, Tensor], Tensor]


def unwatched(_: str, x: Tensor) -> Tensor:
    """Nobody looks."""
    return x


class NonFiniteFound(Exception):
    """Raised by ``stop_at_nonfinite`` with the name of the place."""


def stop_at_nonfinite(place: str, x: Tensor) -> Tensor:
    """A watch that ends the computation at the first place where a value is NaN or infinite."""
    if not bool(x.isfinite().all()):
        raise NonFiniteFound(place)
    return x
