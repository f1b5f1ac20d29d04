"""What a GPU's memory is for, decided before it is taken: afterwards no request can ask for more than there is.

    cache = fraction · total − in use − work − encoded − remembered images − graphs

``in use``: weights, and what others hold on the same card. ``work``: the most that a step was seen to take, with the
largest image, the longest chunk and the costliest choice of tokens. ``encoded``: images that one step's chunks touch.
"""

from __future__ import annotations

from dataclasses import dataclass


class NotEnoughMemory(Exception):
    """The model does not fit; the message has the numbers and what to do."""


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes. ``total`` is the card's, ``in_use`` before anything of this plan was taken."""

    total: int
    fraction: float
    in_use: int
    work: int
    encoded: int
    remembered_images: int
    graphs: int

    @property
    def cache(self) -> int:
        """What is left for keys and values; may be negative."""
        allowed = int(self.total * self.fraction)
        return allowed - self.in_use - self.work - self.encoded - self.remembered_images - self.graphs

    def blocks(self, block_bytes: int, needed: int) -> int:
        """Blocks of cache, one more of which nobody owns; raises NotEnoughMemory below ``needed``."""
        blocks = self.cache // block_bytes - 1
        if blocks >= needed:
            return int(blocks)
        short = (needed + 1) * block_bytes - self.cache
        raise NotEnoughMemory(f"the engine needs {_gb(short)} more GPU memory: {self}; {_ADVICE}")

    def __str__(self) -> str:
        return (
            f"of {_gb(self.total)}, {self.fraction:.0%} may be used: {_gb(self.in_use)} weights and other programs, "
            f"{_gb(self.work)} work, {_gb(self.encoded + self.remembered_images)} images, {_gb(self.graphs)} graphs, "
            f"{_gb(max(self.cache, 0))} keys and values"
        )


_ADVICE = (
    "end other programs on the card, raise gpu_memory_fraction, or lower step_tokens, vision_patches or max_sequences"
)


def _gb(n: int) -> str:
    return f"{n / 1e9:.1f} GB"
