"""Images on the device: normalised and cut into patches there, encoded several at once, remembered by content."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from zellige.engine.layers.vision import cell_order
from zellige.engine.models.qwen3_vl import Qwen3VL
from zellige.engine.processor import ImageRules, PromptImage


class VisionCache:
    """Encoded images by content key, the longest unused thrown out past a number of bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        #: Images asked for, and those of them that were there.
        self.queries = self.hits = 0
        self._bytes = 0
        self._encoded: OrderedDict[str, Tensor] = OrderedDict()

    def get(self, key: str) -> Tensor | None:
        self.queries += 1
        if (found := self._encoded.get(key)) is not None:
            self.hits += 1
            self._encoded.move_to_end(key)
        return found

    def put(self, key: str, encoded: Tensor) -> None:
        if key in self._encoded:
            return
        self._encoded[key] = encoded
        self._bytes += encoded.nbytes
        while self._bytes > self._limit and len(self._encoded) > 1:
            _, old = self._encoded.popitem(last=False)
            self._bytes -= old.nbytes

    def clear(self) -> None:
        """Forget all of them."""
        self._encoded.clear()
        self._bytes = 0


class ImageEncoder:
    """The tower at work. At most ``most_patches`` go through it at once, or one larger image."""

    def __init__(
        self, model: Qwen3VL, rules: ImageRules, device: torch.device, most_patches: int, cache_bytes: int
    ) -> None:
        self._model, self._rules, self._device, self._most_patches = model, rules, device, most_patches
        self.cache = VisionCache(cache_bytes)
        self._mean = torch.tensor(rules.mean, device=device)
        self._std = torch.tensor(rules.std, device=device)
        self._order = lru_cache(maxsize=256)(self._make_order)

    def encode(self, images: Sequence[PromptImage]) -> dict[str, Tensor]:
        """Encodings (1 + deepstack layers, tokens, H) by content key: from the cache, or by the tower."""
        encoded: dict[str, Tensor] = {}
        missing: dict[str, PromptImage] = {}
        for image in {i.key: i for i in images}.values():
            if (known := self.cache.get(image.key)) is None:
                missing[image.key] = image
            else:
                encoded[image.key] = known
        for group in self._groups(list(missing.values())):
            for image, tensor in zip(group, self.see(group), strict=True):
                encoded[image.key] = tensor
                self.cache.put(image.key, tensor)
        return encoded

    def _groups(self, images: Sequence[PromptImage]) -> list[list[PromptImage]]:
        """Images that go through the tower together."""
        groups: list[list[PromptImage]] = []
        room = 0
        for image in images:
            patches = image.grid[0] * image.grid[1]
            if patches > room:
                groups.append([])
                room = self._most_patches
            groups[-1].append(image)
            room -= patches
        return groups

    def see(self, images: Sequence[PromptImage]) -> list[Tensor]:
        """Encode ``images`` together, whatever is remembered."""
        layers = self._model.see(torch.cat([self.patches(i) for i in images]), [i.grid for i in images])
        stacked = torch.stack(layers)
        if stacked.shape[1] != sum(i.tokens for i in images):
            raise RuntimeError(f"{stacked.shape[1]} image embeddings for {sum(i.tokens for i in images)} places")
        # Copies, so that one image in the cache does not hold the memory of all that were encoded with it.
        return [part.contiguous() for part in stacked.split([i.tokens for i in images], dim=1)]

    def patches(self, image: PromptImage) -> Tensor:
        """Normalised patches (N, 3·patch²) of one image, in cell order, channel first inside a patch."""
        patch = self._rules.budget.patch
        rows, columns = image.grid
        # Pinned, so that the host need not wait for the copy; memory of this kind is kept and reused by torch.
        pixels = torch.empty(image.pixels.shape, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        pixels.numpy()[...] = image.pixels
        x = pixels.to(self._device, non_blocking=True)
        x = (x.float() * self._rules.rescale - self._mean) / self._std
        by_patch = x.view(rows, patch, columns, patch, 3).permute(0, 2, 4, 1, 3).reshape(rows * columns, -1)
        return by_patch.index_select(0, self._order(rows, columns))

    def _make_order(self, rows: int, columns: int) -> Tensor:
        r, c = cell_order(rows, columns, self._rules.budget.merge)
        return (r * columns + c).to(self._device)


def touched(image: PromptImage, begin: int, end: int) -> bool:
    """Whether tokens ``begin`` to ``end`` of a prompt hold some of the image's."""
    return image.start < end and image.start + image.tokens > begin
