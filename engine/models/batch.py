"""What a model is given in one step: the new tokens of several sequences, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from zellige.kernels.paged_attention import PagedLayout


@dataclass(frozen=True, eq=False)
class ForwardBatch:
    """T new tokens, R rows whose logits are wanted, n of the tokens places of images.

    ``tokens`` (T,) int64; ``positions`` (T, 3) int64 (time, row, column); ``logit_rows`` (R,) int64;
    ``image_rows`` (n,) int64 or None; ``image_layers``: embeddings (n, H), then one such for each deepstack layer.
    """

    tokens: Tensor
    positions: Tensor
    layout: PagedLayout
    logit_rows: Tensor
    image_rows: Tensor | None
    image_layers: list[Tensor]
