"""On the device, ink becomes a printed, photographed page and scenes get their light: fresh at every step.

Shapes: B images, H x W pixels, M marks (centre x, centre y, code), P patches in raster order.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from zellige.engine.demo.architecture import PATCH
from zellige.engine.demo.net import CHARACTERS_A_PATCH

#: Luminance quantisation of JPEG at quality 50, and the 8 x 8 cosine transform.
_QUANTISATION = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
_COSINES = tuple(
    tuple(math.cos(math.pi * (2 * j + 1) * i / 16) * (math.sqrt(1 / 8) if i == 0 else 0.5) for j in range(8))
    for i in range(8)
)
#: Type smaller than this after shrinking is hard to read, so turning and shrinking stop there.
_LEAST_PX = 9.0


class Augment:
    """Random pictures out of clean drawings; ``difficulty`` 0..1 says how far it goes."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.difficulty = 0.5
        self._cosines = torch.tensor(_COSINES, device=device)
        self._quantisation = torch.tensor(_QUANTISATION, device=device, dtype=torch.float)

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, device=self.device)

    def _share(self, probability: float, *shape: int) -> Tensor:
        return (self._uniform(*shape) < probability).float()

    def _sign(self, count: int, reach: float) -> Tensor:
        return (self._uniform(count) * 2 - 1) * reach

    def ink(self, ink: Tensor, marks: Tensor, type_px: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
        """(B, H, W) uint8 ink and its marks (B, M, 3) -> pictures (B, 3, H, W) in 0..1, labels (B, P, 4).

        ``type_px`` (B, 2): smallest and largest type; ``whole`` (B,): 1 where the sheet may be moved about.
        """
        b, height, width = ink.shape
        turn, scale, shift = self._placement(marks, type_px, whole, height, width)
        grid, moved = _transform(marks, turn, scale, shift, height, width)
        x = F.grid_sample(ink[:, None].float() / 255, grid, mode="bilinear", align_corners=False)[:, 0]
        labels = _labels(moved, marks[..., 2], height, width)
        soft = F.avg_pool2d(x[:, None], 3, 1, 1)[:, 0]
        x = x + (soft - x) * (self._share(0.16 * self.difficulty, b) * self._uniform(b))[:, None, None]
        squeezed = self._share(0.35 * self.difficulty, b)[:, None, None] > 0
        x = torch.where(squeezed, self._jpeg(x, 35 + 60 * self._uniform(b)), x)
        return self._light(self._print(x, grid, turn)), labels

    def _placement(
        self, marks: Tensor, type_px: Tensor, whole: Tensor, height: int, width: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Angle (B,), scale (B,), shift (B, 2) that keep every character in view and large enough."""
        b = len(marks)
        moved = whole * self._share(0.65 * self.difficulty, b)
        wide = self._share(0.42, b)
        turn = (wide * self._sign(b, 8.2) + (1 - wide) * self._share(0.7, b) * self._sign(b, 2.5)) * moved
        turn = turn + (1 - whole) * self._share(0.3, b) * self._sign(b, 1.2) * self.difficulty
        turn = turn * math.pi / 180
        least = (_LEAST_PX / type_px[:, 0].clamp(min=1)).clamp(max=1.0)
        wanted = 1 + moved * (self._uniform(b) * 0.09 - 0.05 - self._share(0.3, b) * self._uniform(b) * 0.3)
        wanted = torch.maximum(wanted, least)
        margin = type_px[:, 1] * 0.75
        box = _turned_box(marks, turn, margin, height, width)
        fits = _fitting(box, wanted, height, width)
        # Where turning would shrink the print too far, turn less.
        turn = torch.where(fits < least * 0.97, turn * 0.2, turn)
        box = _turned_box(marks, turn, margin, height, width)
        scale = torch.where(moved > 0, _fitting(box, wanted, height, width), torch.ones_like(wanted))
        low = torch.stack([1 - width / 2 - box[0] * scale, 1 - height / 2 - box[1] * scale], -1)
        high = torch.stack([width / 2 - 1 - box[2] * scale, height / 2 - 1 - box[3] * scale], -1)
        anywhere = low + (high - low) * self._uniform(b, 2)
        near = self._uniform(b, 2) * 6 - 3
        shift = torch.where(self._share(0.3, b)[:, None] > 0, anywhere, near)
        shift = torch.minimum(torch.maximum(shift, low), torch.maximum(low, high))
        return turn, scale, torch.where(moved[:, None] > 0, shift, torch.zeros_like(shift))

    def _jpeg(self, x: Tensor, quality: Tensor) -> Tensor:
        """(B, H, W) in 0..1 through JPEG's transform and rounding at a quality (B,) of 1..100."""
        b, height, width = x.shape
        factor = torch.where(quality < 50, 50 / quality, 2 - quality / 50)[:, None, None, None, None]
        step = (self._quantisation * factor).clamp(1, 255)
        blocks = (x * 255 - 128).view(b, height // 8, 8, width // 8, 8).permute(0, 1, 3, 2, 4)
        rounded = ((self._cosines @ blocks @ self._cosines.T) / step).round() * step
        blocks = self._cosines.T @ rounded @ self._cosines
        return ((blocks.permute(0, 1, 3, 2, 4).reshape(b, height, width) + 128) / 255).clamp(0, 1)

    def _print(self, x: Tensor, grid: Tensor, turn: Tensor) -> Tensor:
        """Ink on paper in random colours, and now and then another ground around a turned sheet; (B, 3, H, W)."""
        b = len(x)
        paper = 1 - self._uniform(b, 3) * 0.22 * self._share(0.65, b, 1)
        ink = (self._uniform(b, 1) * 0.35 + (self._uniform(b, 3) - 0.5) * 0.16) * self._share(0.75, b, 1)
        swapped = self._share(0.08, b, 1) > 0
        paper, ink = torch.where(swapped, ink, paper), torch.where(swapped, paper, ink)
        ground = torch.where(self._share(0.5, b, 1) > 0, torch.ones_like(paper), self._uniform(b, 3) * 0.9)
        off = (grid.abs().amax(-1) > 1) & (self._share(0.35, b) * turn.abs() > 0)[:, None, None]
        paper, ink, ground = paper[:, :, None, None], ink[:, :, None, None], ground[:, :, None, None]
        return torch.where(off[:, None], ground, paper + (ink - paper) * x[:, None])

    def _light(self, x: Tensor) -> Tensor:
        """Uneven light and grain over (B, 3, H, W)."""
        b, _, height, width = x.shape
        across = torch.linspace(-1, 1, width, device=self.device)
        down = torch.linspace(-1, 1, height, device=self.device)[:, None]
        slope = (self._uniform(b, 2, 1, 1, 1) - 0.5) * 0.16 * self.difficulty * self._share(0.7, b, 1, 1, 1, 1)
        x = x * (1 + slope[:, 0] * across + slope[:, 1] * down)
        grain = self._uniform(b, 1, 1, 1) * self._share(0.75, b, 1, 1, 1) * 0.055 * (0.3 + 0.7 * self.difficulty)
        return (x + torch.randn_like(x) * grain).clamp(0, 1)

    def scene(self, pixels: Tensor) -> Tensor:
        """(B, H, W, 3) uint8 -> pictures (B, 3, H, W) in 0..1: moved a little, softened, lit."""
        b, height, width, _ = pixels.shape
        x = pixels.permute(0, 3, 1, 2).float() / 255
        moved = self._share(0.4, b)
        turn, scale = self._sign(b, 2.0) * moved * math.pi / 180, 1 + self._sign(b, 0.03) * moved
        side = torch.tensor([width, height], device=self.device)
        shift = (self._uniform(b, 2) - 0.5) * 0.02 * side * moved[:, None]
        grid, _ = _transform(torch.zeros(b, 1, 3, device=self.device), turn, scale, shift, height, width)
        x = F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)
        soft = F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
        x = x + (soft - x) * (self._share(0.2, b) * self._uniform(b))[:, None, None, None]
        quality = (30 + 65 * self._uniform(b)).repeat_interleave(3)
        squeezed = self._jpeg(x.flatten(0, 1), quality).view_as(x)
        x = torch.where((self._share(0.25, b) > 0)[:, None, None, None], squeezed, x)
        return self._light(x * (1 + (self._uniform(b, 1, 1, 1) - 0.5) * 0.12))


def _turned_box(
    marks: Tensor, turn: Tensor, margin: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Left, top, right, bottom (B,) from the middle, of all characters after turning, with a margin."""
    x, y = marks[..., 0] - width / 2, marks[..., 1] - height / 2
    cos, sin = turn.cos()[:, None], turn.sin()[:, None]
    u, v = cos * x - sin * y, sin * x + cos * y
    there, far = marks[..., 2] > 0, 1e6
    some = there.any(1)

    def edge(values: Tensor, sign: float) -> Tensor:
        reach = torch.where(there, values * sign, torch.full_like(values, -far)).amax(1)
        return sign * torch.where(some, reach + margin, torch.zeros_like(reach))

    return edge(u, -1.0), edge(v, -1.0), edge(u, 1.0), edge(v, 1.0)


def _fitting(box: tuple[Tensor, Tensor, Tensor, Tensor], wanted: Tensor, height: int, width: int) -> Tensor:
    left, top, right, bottom = box
    room = torch.minimum((width - 2) / (right - left).clamp(min=1), (height - 2) / (bottom - top).clamp(min=1))
    return torch.minimum(wanted, room)


def _transform(
    marks: Tensor, turn: Tensor, scale: Tensor, shift: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor]:
    """Sampling grid (B, H, W, 2) of "turn, scale, then shift about the middle", and where marks land (B, M, 2)."""
    cos, sin = turn.cos(), turn.sin()
    a, b = cos / scale, sin / scale
    matrix = torch.stack(
        [
            torch.stack([a, b * (height / width), -(2 / width) * (a * shift[:, 0] + b * shift[:, 1])], -1),
            torch.stack([-b * (width / height), a, -(2 / height) * (a * shift[:, 1] - b * shift[:, 0])], -1),
        ],
        1,
    )
    grid = F.affine_grid(matrix, [len(turn), 1, height, width], align_corners=False)
    x, y = marks[..., 0] - width / 2, marks[..., 1] - height / 2
    u = scale[:, None] * (cos[:, None] * x - sin[:, None] * y) + shift[:, :1] + width / 2
    v = scale[:, None] * (sin[:, None] * x + cos[:, None] * y) + shift[:, 1:] + height / 2
    return grid, torch.stack([u, v], -1)


def _labels(at: Tensor, codes: Tensor, height: int, width: int) -> Tensor:
    """Codes of up to four characters a patch, left to right: (B, P, 4), 0 where there is none."""
    rows, columns = height // PATCH, width // PATCH
    column, row = (torch.div(at[..., i], PATCH, rounding_mode="floor").long() for i in (0, 1))
    inside = (codes > 0) & (column >= 0) & (column < columns) & (row >= 0) & (row < rows)
    patch = torch.where(inside, row * columns + column, rows * columns)
    order = (patch.float() * 1024 + at[..., 0].clamp(0, 1023)).argsort(1)
    patch, code = patch.gather(1, order), codes.gather(1, order).long()
    place = torch.arange(patch.shape[1], device=patch.device).expand_as(patch)
    starts = torch.ones_like(patch, dtype=torch.bool)
    starts[:, 1:] = patch[:, 1:] != patch[:, :-1]
    rank = place - torch.where(starts, place, 0).cummax(1).values
    good = (rank < CHARACTERS_A_PATCH) & (patch < rows * columns)
    size = rows * columns * CHARACTERS_A_PATCH
    labels = torch.zeros(len(patch), size + 1, dtype=torch.long, device=patch.device)
    labels.scatter_(1, torch.where(good, patch * CHARACTERS_A_PATCH + rank, size), code)
    return labels[:, :-1].view(len(patch), rows * columns, CHARACTERS_A_PATCH)
