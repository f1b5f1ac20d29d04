"""Huge JPEG, PNG and TIFF images, read in strips from top to bottom: their views, with the image never whole in memory.

The file is read once for the overview and once for the tiles (once more before both for 16-bit greys, whose scale is
that of their greatest value). Pixels follow the table in ``data/decode.py``; what that table has and strips cannot
follow (floats, 32-bit integers, LAB) is refused as unsupported, and so is what would have to be whole in memory
(interlaced PNG, progressive JPEG). Tiles come in the order in which the file stores them, which for a photo that is
turned is not that of the upright image.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from zellige.data.decoded import DecodeError, DecodeLimits, no_page
from zellige.data.orientation import UPRIGHT, orientation
from zellige.data.pages import first_directory_at, tiff_pages
from zellige.data.pixels import to_rgb
from zellige.data.schema import ErrorKind
from zellige.data.sniff import ends_early
from zellige.data.tiling import Tile
from zellige.data.views import View, ViewRule, planned

FORMATS = frozenset({"image/jpeg", "image/png", "image/tiff"})
REGION_LIMITS = DecodeLimits(4_000_000_000)
#: Rows that are read and converted at once, and columns that are shrunk at once.
STRIP_ROWS = 64
COLUMNS = 256
#: An image that has to be decoded whole before its first row comes may take so many bytes.
WHOLE_BYTES = 768 << 20
#: Of the end of a file, what tells whether it lacks its end.
_TAIL_BYTES = 1 << 20
#: Samples of a pixel -> Pillow's mode of them.
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_SPACES = ("b-w", "grey16", "srgb", "rgb16", "rgb", "multiband")


class RegionImage:
    """A huge image in ``file``, its header read; ``width`` and ``height`` are of the upright image.

    Raises DecodeError.
    """

    def __init__(self, file: BinaryIO, kind: str, page: int | None) -> None:
        self._kind, self._file, self.frames, self._shift = kind, file, 1, 8
        if kind == "image/tiff":
            offsets, missing = tiff_pages(file)
            self.frames, number = len(offsets), page or 1
            if number > len(offsets):
                raise missing or no_page(number, len(offsets))
            self._file = first_directory_at(file, offsets[number - 1])
        rows = _Rows(self._file, kind)
        self._turn, exif_warning = rows.turn()
        self._width, self._height = rows.width, rows.height
        upright = (self._height, self._width) if self._turn >= 5 else (self._width, self._height)
        self.width, self.height = upright
        self._shift = rows.find_shift(self._open)
        self.warning = "; ".join(filter(None, (exif_warning, rows.colour_warning()))) or None

    def views(self, rule: ViewRule) -> Iterator[View]:
        """The overview, then the tiles; raises DecodeError or UnseenShapeError."""
        tiles = planned(self.width, self.height, rule)
        if rule.task != "read" or len(tiles) == 1:  # an overview of a page is no piece of its text
            yield View(tiles[0], self._overview(rule.budget.resized(self.width, self.height)))
        bands: dict[int, list[tuple[int, Tile, tuple[int, int, int, int]]]] = defaultdict(list)
        for index, tile in enumerate(tiles[1:], 1):
            box = self._stored(tile)
            bands[box[1]].append((index, tile, box))
        rows, held, top = self._open(), np.empty((0, self._width, 3), np.uint8), 0
        for y in sorted(bands):
            height = bands[y][0][2][3]
            band = np.empty((height, self._width, 3), np.uint8)
            rows.skip_to(y, top + len(held))
            keep = max(0, top + len(held) - y)
            band[:keep] = held[len(held) - keep :]
            for at in range(keep, height, STRIP_ROWS):
                band[at : at + STRIP_ROWS] = rows.read(min(STRIP_ROWS, height - at))
            for index, tile, (x, _, width, _) in bands[y]:
                yield View(tile, self._upright(band[:, x : x + width]), index)
            below = min((other for other in bands if other > y), default=y + height)
            held, top = band[max(0, below - y) :].copy(), min(below, y + height)
            del band  # before the next one is made: each may take hundreds of megabytes

    def _open(self) -> _Rows:
        rows = _Rows(self._file, self._kind)
        rows.shift = self._shift
        return rows

    def _overview(self, size: tuple[int, int]) -> NDArray[np.uint8]:
        """The whole image at ``size``, by the two passes that Pillow makes over a whole one: along rows, then across.

        Each strip is shrunk along its rows as it comes; what is kept of all of them is shrunk across at the end.
        """
        width, height = (size[1], size[0]) if self._turn >= 5 else size
        rows = self._open()
        narrow = np.empty((self._height, width, 3), np.uint8)
        for at in range(0, self._height, STRIP_ROWS):
            strip = Image.fromarray(rows.read(min(STRIP_ROWS, self._height - at)))
            narrow[at : at + STRIP_ROWS] = np.asarray(strip.resize((width, strip.height), Image.Resampling.BICUBIC))
        seen = np.empty((height, width, 3), np.uint8)
        for x in range(0, width, COLUMNS):  # a few columns at a time: Pillow's own copy of all of them is larger still
            part = Image.fromarray(np.ascontiguousarray(narrow[:, x : x + COLUMNS]))
            seen[:, x : x + COLUMNS] = np.asarray(part.resize((part.width, height), Image.Resampling.BICUBIC))
        return self._upright(seen)

    def _upright(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """A contiguous copy, turned."""
        if self._turn == 1:
            return np.ascontiguousarray(pixels)
        return np.array(Image.fromarray(pixels).transpose(UPRIGHT[self._turn]))

    def _stored(self, tile: Tile) -> tuple[int, int, int, int]:
        """(x, y, width, height) of a tile in the image as it is stored."""
        x, y, width, height = tile.x, tile.y, tile.width, tile.height
        if self._turn >= 5:
            x, y, width, height = y, x, height, width
        if self._turn in (2, 3, 7, 8):
            x = self._width - x - width
        if self._turn in (3, 4, 6, 7):
            y = self._height - y - height
        return x, y, width, height


class _Rows:
    """One reading of the file from top to bottom; ``shift`` is how 16-bit greys become 8 bits."""

    def __init__(self, file: BinaryIO, kind: str) -> None:
        # Loaded here alone: few images are so large, and a process that decodes small ones starts without it.
        import pyvips

        pyvips.cache_set_max(0)
        self._file, self._kind, self._error = file, kind, pyvips.Error
        file.seek(0)
        source = pyvips.SourceCustom()
        source.on_read(file.read)
        source.on_seek(file.seek)
        try:
            image: Any = pyvips.Image.new_from_source(source, "", access="sequential", fail_on="truncated")
        except pyvips.Error as error:
            raise self._fault(error) from error
        self._image, self._region, self._at, self.shift = image, pyvips.Region.new(image), 0, 8
        self.width, self.height = int(image.width), int(image.height)
        self._mode = self._mode_of()
        self._profile = image.get("icc-profile-data") if image.get_typeof("icc-profile-data") else None
        if self._is_interlaced() and self.width * self.height * image.bands > WHOLE_BYTES:
            raise DecodeError(
                ErrorKind.TOO_LARGE,
                f"{self.width} x {self.height} pixels, interlaced or progressive, would have to be whole in memory; "
                "save it as baseline JPEG, as PNG without interlace or as TIFF",
            )

    def read(self, count: int) -> NDArray[np.uint8]:
        """The next ``count`` rows as they are stored, 8-bit RGB (count, width, 3); raises DecodeError."""
        return np.asarray(self._converted(count)[0])

    def colour_warning(self) -> str | None:
        """What the first row says of the colour profile; reads it."""
        return self._converted(1)[1]

    def _converted(self, count: int) -> tuple[Image.Image, str | None]:
        samples = self._samples(count)
        if samples.dtype != np.uint8:
            samples = (samples >> self.shift).astype(np.uint8)
        image = Image.frombuffer(
            self._mode, (self.width, count), np.ascontiguousarray(samples), "raw", self._mode, 0, 1
        )
        if self._profile is not None:
            image.info["icc_profile"] = self._profile
        return to_rgb(image, "")

    def skip_to(self, row: int, at: int) -> None:
        """Read on from row ``at`` up to ``row``, where tiles leave rows out between them."""
        for y in range(at, row, STRIP_ROWS):
            self._samples(min(STRIP_ROWS, row - y))

    def turn(self) -> tuple[int, str | None]:
        """(orientation 1 to 8, warning)."""
        if self._kind == "image/tiff":
            return (int(self._image.get("orientation")) if self._image.get_typeof("orientation") else 1), None
        names = {"exif": "exif-data", "xmp": "xmp-data"}
        return orientation({k: self._image.get(name) for k, name in names.items() if self._image.get_typeof(name)})

    def find_shift(self, again: Callable[[], _Rows]) -> int:
        """8; or 4 for 16-bit greys of which none is over 4,095, by a reading of its own."""
        if self._image.format != "ushort" or self._image.bands != 1:
            return 8
        rows = again()
        strips = range(0, self.height, STRIP_ROWS)
        return 8 if any(rows._samples(min(STRIP_ROWS, self.height - y)).max() > 4095 for y in strips) else 4

    def _samples(self, count: int) -> NDArray[Any]:
        try:
            data = self._region.fetch(0, self._at, self.width, count)
        except self._error as error:
            raise self._fault(error) from error
        self._at += count
        kind = np.uint16 if self._image.format == "ushort" else np.uint8
        return np.frombuffer(data, kind).reshape(count, self.width, self._image.bands)

    def _mode_of(self) -> str:
        image = self._image
        if image.format == "uchar" and image.interpretation == "cmyk" and image.bands == 4:
            return "CMYK"
        if image.format in ("uchar", "ushort") and image.interpretation in _SPACES and image.bands in _MODES:
            return _MODES[image.bands]
        raise DecodeError(
            ErrorKind.UNSUPPORTED_FORMAT,
            f"{self.width} x {self.height} pixels are read by region, which cannot be done for {image.bands} samples "
            f"of type {image.format} ({image.interpretation}); save it as 8-bit RGB or make it smaller",
        )

    def _is_interlaced(self) -> bool:
        return any(
            bool(self._image.get_typeof(n)) and bool(self._image.get(n)) for n in ("interlaced", "jpeg-multiscan")
        )

    def _fault(self, error: Exception) -> DecodeError:
        said = " ".join(str(error).split())
        self._file.seek(0, 2)
        self._file.seek(max(0, self._file.tell() - _TAIL_BYTES))
        early = self._kind != "image/tiff" and ends_early(self._file.read(), self._kind)
        if early or any(word in said.lower() for word in ("truncated", "premature", "end of file", "not enough data")):
            return DecodeError(ErrorKind.TRUNCATED, f"{self._kind} cut short: {said}")
        return DecodeError(ErrorKind.UNREADABLE, f"damaged {self._kind}: {said}")
