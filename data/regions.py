"""Huge JPEG, PNG and TIFF images, read in strips from top to bottom: their views, with the image never whole in memory.

The file is read once for the overview, or to find the print of a page to read, and once for the tiles (once more before
both for greys of 16 bits and more, whose scale is that of their least and greatest value). Pixels follow the table in
``data/decode.py``; what that table has and strips cannot follow (LAB, YCbCr without JPEG) is refused as unsupported,
and so is what would have to be whole in memory (interlaced PNG, progressive JPEG). Tiles come in the order in which the
file stores them, which for a photo that is turned is not that of the upright image.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from zellige.data.decoded import DecodeError, DecodeLimits, no_page
from zellige.data.ink import band_rows, ink_of_bands
from zellige.data.orientation import UPRIGHT, orientation
from zellige.data.pages import first_directory_at, tiff_pages
from zellige.data.pixels import finite_range, grey_image, to_grey, to_rgb
from zellige.data.reading import Page, on_canvas
from zellige.data.schema import ErrorKind
from zellige.data.sniff import ends_early
from zellige.data.tiff_samples import region_samples
from zellige.data.tiling import Budget, Tile
from zellige.data.turning import turned
from zellige.data.views import View, ViewRule, is_cut, pieces_of, planned

FORMATS = frozenset({"image/jpeg", "image/png", "image/tiff"})
REGION_LIMITS = DecodeLimits(4_000_000_000)
#: Rows that are read and converted at once, and columns that are shrunk at once.
STRIP_ROWS = 64
COLUMNS = 256
#: Cells of the mask by which a page is cut at most; each cell is a byte.
MASK_CELLS = 64_000_000
#: An image that has to be decoded whole before its first row comes may take so many bytes.
WHOLE_BYTES = 768 << 20
#: Of the end of a file, what tells whether it lacks its end.
_TAIL_BYTES = 1 << 20
#: Samples of a pixel -> Pillow's mode of them.
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
#: libvips's names of sample types.
_TYPES = {"uchar": "u1", "ushort": "u2", "short": "i2", "uint": "u4", "int": "i4", "float": "f4"}
_SPACES = ("b-w", "grey16", "srgb", "rgb16", "rgb", "multiband")


class RegionImage:
    """A huge image in ``file``, its header read; ``width`` and ``height`` are of the upright image.

    Raises DecodeError.
    """

    def __init__(self, file: BinaryIO, kind: str, page: int | None) -> None:
        self._kind, self._file, self.frames = kind, file, 1
        self._range: tuple[float, float] | None = None
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
        self._range = rows.range = rows.find_range(self._open)
        self.warning = "; ".join(filter(None, (exif_warning, rows.colour_warning()))) or None

    def views(self, rule: ViewRule) -> Iterator[View]:
        """The overview, then the tiles, or the pieces of a page to read; raises DecodeError or UnseenShapeError."""
        as_page = is_cut(rule)
        tiles = pieces_of(self._page(), rule) if as_page else planned(self.width, self.height, rule)
        boxes: list[tuple[int, Tile]] = []
        for index, tile in enumerate(tiles):
            if tile.overview:
                yield View(tile, self._overview(tile.turn, rule.budget), index)
            else:
                boxes.append((index, tile))
        for (index, tile), pixels in self._cut(boxes):
            yield View(tile, on_canvas(pixels, tile.turn, rule.budget) if as_page else pixels, index)

    def _cut(self, tiles: Sequence[tuple[int, Tile]]) -> Iterator[tuple[tuple[int, Tile], NDArray[np.uint8]]]:
        """The pixels of the tiles from the top of the file to its end; held are the strips that reach into the next."""
        rows, held, at = self._open(), deque[tuple[int, NDArray[np.uint8]]](), 0
        boxes = [(self._stored(tile), (index, tile)) for index, tile in tiles]
        for (x, y, width, height), entry in sorted(boxes, key=lambda box: (box[0][1], box[1][0])):
            while held and held[0][0] + len(held[0][1]) <= y:
                held.popleft()
            while at < y + height:
                count = min(STRIP_ROWS, self._height - at)
                if at + count > y:
                    held.append((at, rows.read(count)))
                else:
                    rows.skip(count)
                at += count
            parts = [
                strip[max(0, y - top) : y + height - top, x : x + width] for top, strip in held if top < y + height
            ]
            yield entry, self._upright(np.concatenate(parts))

    def _page(self) -> Page:
        """The mask of its ink, in cells so large that it takes ``MASK_CELLS`` at most.

        Where cells do not divide the sides, a mirrored or turned mask lies less than a cell beside the pixels: within
        the margin of a piece.
        """
        shrink = math.ceil(math.sqrt(self._width * self._height / MASK_CELLS))
        rows, count = self._open(), band_rows(self._width, shrink)
        bands = (rows.read(min(count, self._height - y)) for y in range(0, self._height, count))
        mask = ink_of_bands(bands, self._height, self._width, shrink)
        if self._turn != 1:
            mask = np.array(Image.fromarray(mask).transpose(UPRIGHT[self._turn]))
        return Page(self.width, self.height, mask, shrink)

    def _open(self) -> _Rows:
        rows = _Rows(self._file, self._kind)
        rows.range = self._range
        return rows

    def _overview(self, turn: int, budget: Budget) -> NDArray[np.uint8]:
        """The whole image as the model sees it, by the two passes that Pillow makes: along rows, then across.

        Each strip is shrunk along its rows as it comes; what is kept of all of them is shrunk across at the end.
        """
        size = budget.resized(self.width, self.height) if turn in (0, 180) else budget.resized(self.height, self.width)
        sideways = (self._turn >= 5) != (turn in (90, 270))
        width, height = (size[1], size[0]) if sideways else size
        rows = self._open()
        narrow = np.empty((self._height, width, 3), np.uint8)
        for at in range(0, self._height, STRIP_ROWS):
            strip = Image.fromarray(rows.read(min(STRIP_ROWS, self._height - at)))
            narrow[at : at + STRIP_ROWS] = np.asarray(strip.resize((width, strip.height), Image.Resampling.BICUBIC))
        seen = np.empty((height, width, 3), np.uint8)
        for x in range(0, width, COLUMNS):  # a few columns at a time: Pillow's own copy of all of them is larger still
            part = Image.fromarray(np.ascontiguousarray(narrow[:, x : x + COLUMNS]))
            seen[:, x : x + COLUMNS] = np.asarray(part.resize((part.width, height), Image.Resampling.BICUBIC))
        return turned(self._upright(seen), turn)

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
    """One reading of the file from top to bottom; ``range`` is that of the greys of an image of more than 8 bits."""

    def __init__(self, file: BinaryIO, kind: str) -> None:
        # Loaded here alone: few images are so large, and a process that decodes small ones starts without it.
        import pyvips

        pyvips.cache_set_max(0)
        self._file, self._kind, self._error = file, kind, pyvips.Error
        self._tiff = region_samples(file) if kind == "image/tiff" else None
        file.seek(0)
        source = pyvips.SourceCustom()
        source.on_read(file.read)
        source.on_seek(file.seek)
        try:
            image: Any = pyvips.Image.new_from_source(source, "", access="sequential", fail_on="truncated")
        except pyvips.Error as error:
            raise self._fault(error) from error
        self._image, self._region, self._at = image, pyvips.Region.new(image), 0
        self.range: tuple[float, float] | None = None
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
        if self.range is not None:
            image = grey_image(to_grey(samples[..., 0], self.range), self._white_is_zero)
        else:
            samples = samples[..., : len(Image.new(self._mode, (1, 1)).getbands())]
            if samples.dtype != np.uint8:
                samples = (samples >> 8).astype(np.uint8)
            image = Image.frombuffer(
                self._mode, (self.width, count), np.ascontiguousarray(samples), "raw", self._mode, 0, 1
            )
        if self._profile is not None:
            image.info["icc_profile"] = self._profile
        return to_rgb(image, "")

    def skip(self, count: int) -> None:
        """Leave out the next ``count`` rows, which no tile shows."""
        self._samples(count)

    def turn(self) -> tuple[int, str | None]:
        """(orientation 1 to 8, warning)."""
        if self._kind == "image/tiff":
            return (int(self._image.get("orientation")) if self._image.get_typeof("orientation") else 1), None
        names = {"exif": "exif-data", "xmp": "xmp-data"}
        return orientation({k: self._image.get(name) for k, name in names.items() if self._image.get_typeof(name)})

    def find_range(self, again: Callable[[], _Rows]) -> tuple[float, float] | None:
        """The ``finite_range`` of greys of more than 8 bits, by a reading of its own; None for all else."""
        if not self._is_wide_grey:
            return None
        rows, low, high = again(), math.inf, -math.inf
        for y in range(0, self.height, STRIP_ROWS):
            least, greatest = finite_range(rows._samples(min(STRIP_ROWS, self.height - y)))
            low, high = min(low, least), max(high, greatest)
        return low, high

    @property
    def _is_wide_grey(self) -> bool:
        wide = self._image.format == "ushort" or (self._tiff is not None and self._tiff.mode in ("I", "F"))
        return bool(self._image.bands == 1 and wide)

    @property
    def _white_is_zero(self) -> bool:
        return self._tiff is not None and self._tiff.white_is_zero

    def _samples(self, count: int) -> NDArray[Any]:
        try:
            data = self._region.fetch(0, self._at, self.width, count)
        except self._error as error:
            raise self._fault(error) from error
        self._at += count
        samples = np.frombuffer(data, _TYPES[self._image.format]).reshape(count, self.width, self._image.bands)
        if self._white_is_zero and self._is_wide_grey and samples.dtype.kind != "f":
            return ~samples  # libvips has turned integers round, which is done after scaling here
        return samples

    def _mode_of(self) -> str:
        image, stored = self._image, "" if self._tiff is None else self._tiff.mode
        if self._is_wide_grey and image.format in _TYPES:
            return "L"
        if image.format in ("uchar", "ushort"):
            if image.interpretation == "cmyk" and image.bands == 4:
                return "CMYK"
            if stored in ("RGB", "YCbCr") and image.bands >= 3:  # further samples are no alpha here, and are left out
                return "RGB"
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
