"""Huge images read by region: the pixels of decoding whole, in little memory, and errors of the same kind."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageCms

from zellige.data import regions
from zellige.data.decode import DecodeError, decode
from zellige.data.orientation import UPRIGHT
from zellige.data.regions import RegionImage
from zellige.data.samples.fonts import BUILT_IN, Face
from zellige.data.samples.glyphs import load_font
from zellige.data.samples.ink import Ink
from zellige.data.schema import ErrorKind
from zellige.data.turning import turned
from zellige.data.views import View, ViewRule, views_of
from zellige.engine.api import VisionBudget

RULE = ViewRule("caption", "auto", VisionBudget(16, 2, 32 * 32, 192 * 192))
#: What an upright image is stored as, for each orientation that makes it upright again.
STORED = UPRIGHT | {6: UPRIGHT[8], 8: UPRIGHT[6]}
KINDS = {"JPEG": "image/jpeg", "PNG": "image/png", "TIFF": "image/tiff"}
LONG = os.environ.get("ZELLIGE_TEST_LONG") == "1"


def picture(width: int = 700, height: int = 500) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def by_region(data: bytes, kind: str, page: int | None = None) -> list[View]:
    return list(RegionImage(io.BytesIO(data), KINDS[kind], page).views(RULE))


def same(found: list[View], data: bytes, page: int | None = None) -> None:
    wanted = list(views_of(decode(data, page=page).pixels, RULE))
    assert len(wanted) > 5
    assert found[0].index == 0
    for ours, theirs in zip(sorted(found, key=lambda v: v.index), wanted, strict=True):
        assert ours.tile == theirs.tile
        assert ours.pixels.shape == theirs.pixels.shape
        assert int(np.abs(ours.pixels.astype(int) - theirs.pixels).max()) <= 1


def grey16(top: int) -> Image.Image:
    return Image.fromarray((np.asarray(picture().convert("L")).astype(np.uint16) * top // 255).astype(np.uint16))


@pytest.mark.parametrize(
    ("kind", "mode", "options"),
    [
        *(("JPEG", mode, {}) for mode in ("RGB", "L", "CMYK")),
        ("JPEG", "RGB", {"subsampling": 0, "quality": 95}),
        *(("PNG", mode, {}) for mode in ("RGB", "1", "L", "LA", "RGBA", "P")),
        *(("TIFF", mode, {}) for mode in ("RGB", "1", "L", "RGBA", "CMYK", "P")),
        ("TIFF", "RGB", {"compression": "tiff_lzw"}),
        ("TIFF", "RGB", {"compression": "jpeg"}),
        ("TIFF", "1", {"compression": "group4"}),
    ],
)
def test_views_are_those_of_decoding_whole(kind: str, mode: str, options: dict[str, Any]) -> None:
    image = picture()
    if mode in ("RGBA", "LA"):
        image.putalpha(Image.linear_gradient("L").resize(image.size))
    data = saved(image.convert(mode), kind, **options)
    same(by_region(data, kind), data)


@pytest.mark.parametrize("top", [65535, 4095])
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_and_twelve_bit_greys_follow_the_table(kind: str, top: int) -> None:
    data = saved(grey16(top), kind)
    same(by_region(data, kind), data)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_turned_images_are_shown_upright(kind: str, turn: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = turn
    options = {"tiffinfo": {0x0112: turn}} if kind == "TIFF" else {"exif": exif}
    data = saved(picture(), kind, **options)
    same(by_region(data, kind), data)


def test_colour_profile_of_another_kind_is_ignored_and_told() -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    data = saved(picture(), "JPEG", icc_profile=profile)
    image = RegionImage(io.BytesIO(data), "image/jpeg", None)
    assert image.warning == decode(data).warning
    assert image.warning is not None
    same(list(image.views(RULE)), data)


def test_page_of_a_tiff() -> None:
    pages = [picture(), picture().transpose(Image.Transpose.ROTATE_180)]
    data = saved(pages[0], "TIFF", save_all=True, append_images=pages[1:])
    same(by_region(data, "TIFF", page=2), data, page=2)
    with pytest.raises(DecodeError, match="no page 3"):
        by_region(data, "TIFF", page=3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("lost", [0.5, 128])
def test_truncated_file_is_told_before_a_view_is_given(kind: str, lost: float) -> None:
    data = saved(picture(), kind)
    cut = data[: int(len(data) - (lost if lost > 1 else len(data) * lost))]
    with pytest.raises(DecodeError) as error:
        next(RegionImage(io.BytesIO(cut), KINDS[kind], None).views(RULE))
    assert error.value.kind is ErrorKind.TRUNCATED


def grey(kind: Any, scale: float = 1, shift: float = 0) -> NDArray[Any]:
    return (np.asarray(picture().convert("L")).astype(np.float64) * scale + shift).astype(kind)


def with_holes(values: NDArray[Any]) -> NDArray[Any]:
    """Floats with NaN and both infinities among them."""
    values[10:20, 10:20], values[30, 30], values[40:300, 40] = np.nan, np.inf, -np.inf
    return values


def with_more(samples: int, kind: Any = np.uint8, scale: int = 1) -> NDArray[Any]:
    """RGB with further samples behind it."""
    more = np.broadcast_to((np.arange(700) % 256)[None, :, None], (500, 700, samples))
    return (np.dstack([np.asarray(picture()), more]) * scale).astype(kind)


CMYK = np.asarray(picture().convert("CMYK"))
BLACK_IS_0, WHITE_IS_0, RGB, INKS, LAB, ICC_LAB = 1, 0, 2, 5, 8, 9
#: (samples, how the TIFF says that they are to be understood, what further samples are).
FOLLOWED: dict[str, tuple[NDArray[Any], int, list[int]]] = {
    "floats from 0 to 1": (grey("f4", 1 / 255), BLACK_IS_0, []),
    "floats of any range": (grey("f4", 9.5, -200), BLACK_IS_0, []),
    "floats with holes": (with_holes(grey("f4", 1 / 255)), BLACK_IS_0, []),
    "floats of any range with holes": (with_holes(grey("f4", 3, -9)), BLACK_IS_0, []),
    "floats of one value": (grey("f4", 0, 7), BLACK_IS_0, []),
    "nothing but NaN": (grey("f4", np.nan), BLACK_IS_0, []),
    "floats from white to black": (grey("f4", 1 / 255), WHITE_IS_0, []),
    "32 bits, signed": (grey("i4", 300, -9), BLACK_IS_0, []),
    "32 bits within 16": (grey("i4", 257), BLACK_IS_0, []),
    "32 bits within 12": (grey("i4", 16), BLACK_IS_0, []),
    "32 bits, unsigned": (grey("u4", 16_000_000), BLACK_IS_0, []),
    "16 bits, signed": (grey("i2", 100, -5), BLACK_IS_0, []),
    "16 bits from white to black": (grey("u2", 257), WHITE_IS_0, []),
    "12 bits from white to black": (grey("u2", 16), WHITE_IS_0, []),
    "8 bits from white to black": (grey("u1"), WHITE_IS_0, []),
    "16 bits of ink": (CMYK.astype("u2") * 257, INKS, []),
    "RGB and what is no alpha": (with_more(1), RGB, [0]),
    "RGB and alpha": (with_more(1), RGB, [2]),
    "RGB and alpha of 16 bits": (with_more(1, "u2", 257), RGB, [2]),
    "RGB and two more": (with_more(2), RGB, [0, 0]),
}
REFUSED: dict[str, tuple[NDArray[Any], int, list[int]]] = {
    "doubles": (grey("f8", 1 / 255), BLACK_IS_0, []),
    "floats in colour": (np.asarray(picture()).astype("f4"), RGB, []),
    "LAB of ICC": (np.asarray(picture()), ICC_LAB, []),
    "LAB of 16 bits": (np.asarray(picture()).astype("u2"), LAB, []),
    "ink and alpha": (np.dstack([CMYK, CMYK[..., :1]]), INKS, [2]),
}


def tiff(samples: NDArray[Any], meaning: int, more: list[int]) -> bytes:
    """A TIFF of one strip, little-endian, of kinds that no library here writes."""
    height, width, bands = samples.shape if samples.ndim == 3 else (*samples.shape, 1)
    form = {"u": 1, "i": 2, "f": 3}[samples.dtype.kind]
    tags = {256: [width], 257: [height], 258: [samples.itemsize * 8] * bands, 259: [1], 262: [meaning], 273: [0]}
    tags |= {277: [bands], 278: [height], 279: [samples.nbytes], 284: [1]} | ({338: more} if more else {})
    tags |= {339: [form] * bands}
    behind = 8 + 2 + 12 * len(tags) + 4
    tags[273] = [behind + sum(2 * len(v) for v in tags.values() if len(v) > 2)]
    entries, lists = b"", b""
    for tag, values in tags.items():
        long = tag in (273, 279)
        packed = struct.pack(f"<{len(values)}{'L' if long else 'H'}", *values)
        if len(packed) > 4:
            packed, lists = struct.pack("<L", behind + len(lists)), lists + packed
        entries += struct.pack("<2HL", tag, 4 if long else 3, len(values)) + packed.ljust(4, b"\0")
    return b"II*\0" + struct.pack("<LH", 8, len(tags)) + entries + bytes(4) + lists + samples.tobytes()


@pytest.mark.parametrize("name", FOLLOWED)
def test_samples_of_every_kind_follow_the_table(name: str) -> None:
    data = tiff(*FOLLOWED[name])
    same(by_region(data, "TIFF"), data)


@pytest.mark.parametrize(
    ("name", "sign"),
    [
        ("32 bits, unsigned", 1),
        ("8 bits from white to black", -1),
        ("16 bits from white to black", -1),
        ("12 bits from white to black", -1),
        ("floats from white to black", -1),
    ],
)
def test_light_is_light_however_it_is_stored(name: str, sign: int) -> None:
    seen = decode(tiff(*FOLLOWED[name])).pixels[..., 0]
    assert sign * np.corrcoef(seen.ravel(), grey("f8").ravel())[0, 1] > 0.999
    assert (int(seen.min()) < 20, int(seen.max()) > 235) == (True, True)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_decoded_whole_is_refused_in_the_same_words(name: str) -> None:
    data = tiff(*REFUSED[name])
    with pytest.raises(DecodeError) as whole:
        decode(data)
    with pytest.raises(DecodeError) as region:
        by_region(data, "TIFF")
    assert region.value.kind is whole.value.kind is ErrorKind.UNSUPPORTED_FORMAT
    assert region.value.message == whole.value.message


@pytest.mark.parametrize("mode", ["LAB", "YCbCr"])
def test_what_strips_cannot_follow_is_unsupported_and_says_so(mode: str) -> None:
    with pytest.raises(DecodeError, match=f"700 x 500 pixels are read by region.*{mode}") as error:
        by_region(saved(picture().convert(mode), "TIFF"), "TIFF")
    assert error.value.kind is ErrorKind.UNSUPPORTED_FORMAT


WORDS = "the night was dark and all the lights were put out by half past ten"
READ = ViewRule("read", "auto", VisionBudget(16, 2, 4 * 32 * 32, 448 * 448), lines_at_once=1)


def written_page() -> Image.Image:
    """Lines of letters with a frame around them and a rule between; taller than a band of its mask."""
    ink, font = Ink(1100, 1300), load_font(Face(BUILT_IN, "Aileron"), 36)
    words = WORDS.split()
    for i, y in enumerate(range(40, 1240, 60)):
        ink.text(60, y + font.ascent, " ".join((words[i % 15 :] + words)[:6]), font, 255)
    ink.frame(255)
    ink.rule(40, 631, 1060, 255, 2)
    return Image.fromarray(255 - ink.pixels)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_a_page_to_read_is_cut_as_one_that_is_decoded_whole(kind: str, turn: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = turn
    stored = written_page()
    if turn > 1:
        stored = stored.transpose(STORED[turn])
    options: dict[str, Any] = {"tiffinfo": {0x0112: turn}} if kind == "TIFF" else {"exif": exif}
    data = saved(stored, kind, **options)
    found = sorted(RegionImage(io.BytesIO(data), KINDS[kind], None).views(READ), key=lambda view: view.index)
    wanted = list(views_of(decode(data).pixels, READ))
    assert len(wanted) == 20
    assert [view.tile for view in found] == [view.tile for view in wanted]
    for ours, theirs in zip(found, wanted, strict=True):
        assert int(np.abs(ours.pixels.astype(int) - theirs.pixels).max()) <= 1


@pytest.mark.parametrize("lying", [0, 90, 180, 270])
@pytest.mark.parametrize("turn", [1, 6])
def test_a_page_is_cut_by_a_mask_that_is_too_small_for_its_pixels(
    turn: int, lying: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line whole, on its own, in order and the right way up, though a cell of the mask is 2 x 2 pixels."""
    monkeypatch.setattr(regions, "MASK_CELLS", 1300 * 1100 // 3)
    page = written_page()
    lines = [view.pixels for view in views_of(np.asarray(page.convert("RGB")), READ)]
    stored = Image.fromarray(turned(np.asarray(page), lying))
    exif = Image.Exif()
    exif[0x0112] = turn
    data = saved(stored.transpose(STORED[turn]) if turn > 1 else stored, "PNG", exif=exif)
    found = sorted(RegionImage(io.BytesIO(data), "image/png", None).views(READ), key=lambda view: view.index)
    assert {view.tile.turn for view in found} == {-lying % 360}
    assert len(found) == len(lines)
    for ours, theirs in zip(found, lines, strict=True):
        ink, wanted = (np.argwhere(pixels[..., 0] < 128) for pixels in (ours.pixels, theirs))
        assert len(ink) == len(wanted)
        assert np.ptp(ink, axis=0).tolist() == np.ptp(wanted, axis=0).tolist()


def test_a_blank_page_to_read_is_one_overview() -> None:
    (view,) = RegionImage(io.BytesIO(saved(Image.new("L", (900, 700), 230), "PNG")), "image/png", None).views(READ)
    assert (view.tile.overview, view.pixels.shape, view.index) == (True, (384, 480, 3), 0)


WORK = """
import asyncio, os, resource, sys, pyvips
from zellige.data.decode_pool import DecodePool
from zellige.data.turning import turned
from zellige.data.views import ViewRule
from zellige.engine.api import VisionBudget
side, kind = int(sys.argv[1]), sys.argv[2]
rule = ViewRule("caption", "auto", VisionBudget(16, 2, 1024, 448 * 448))
path = os.fsencode(sys.argv[3])
def peak(pid):
    lines = open(f"/proc/{pid}/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024
async def main():
    pool, views, most = DecodePool(1), 0, 0
    async for header, view, _ in pool.views(rule, path, is_path=True, page=None, size_bytes=0):
        assert (header.width, header.height) == (side, side)
        assert view.index == views
        assert (view.pixels == view.pixels[0, 0]).all()
        views += 1
        if views % 50 == 0:
            most = max(most, peak(next(iter(pool._all))._process.pid) + peak(os.getpid()))
    pool.close()
    print(views, most)
asyncio.run(main())
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["png", "jpg", "tif"])
def test_gigapixel_image_is_tiled_in_little_memory(kind: str, tmp_path: Path) -> None:
    import pyvips

    side = 30_000 if LONG else 8_100
    path = tmp_path / f"large.{kind}"
    flat = pyvips.Image.black(side, side, bands=3).linear(1, [90, 128, 160]).cast("uchar").copy(interpretation="srgb")
    flat.write_to_file(str(path), **({"compression": 1, "filter": "none"} if kind == "png" else {}))
    done = subprocess.run(
        [sys.executable, "-c", WORK, str(side), kind, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    views, most_mb = map(int, done.stdout.split())
    assert views > (side // 448) ** 2
    assert most_mb < (1_500 if LONG else 400)


READ_WORK = """
import asyncio, os, sys
from zellige.data.decode_pool import DecodePool
from zellige.data.views import ViewRule
from zellige.engine.api import VisionBudget
rule = ViewRule("read", "auto", VisionBudget(16, 2, 4096, 448 * 448), lines_at_once=1)
def peak(pid):
    lines = open(f"/proc/{pid}/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024
async def main():
    pool, views, most = DecodePool(1), 0, 0
    async for header, view, _ in pool.views(rule, os.fsencode(sys.argv[1]), is_path=True, page=None, size_bytes=0):
        assert not view.tile.overview and view.tile.turn == 0
        assert (view.pixels < 100).any()
        views += 1
        if views % 20 == 0:
            most = max(most, peak(next(iter(pool._all))._process.pid) + peak(os.getpid()))
    pool.close()
    print(views, most)
asyncio.run(main())
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["png", "jpg", "tif"])
def test_gigapixel_page_is_read_in_little_memory(kind: str, tmp_path: Path) -> None:
    import pyvips

    across, down = (25, 200) if LONG else (7, 60)
    font, ink = load_font(Face(BUILT_IN, "Aileron"), 80), Ink(1200, 150)
    ink.text(40, 20 + font.ascent, "the lights were out by half", font, 255)
    path = tmp_path / f"page.{kind}"
    page = pyvips.Image.new_from_array(255 - ink.pixels).replicate(across, down)
    page.write_to_file(str(path), **({"compression": 1, "filter": "none"} if kind == "png" else {}))
    assert page.width * page.height > 64_000_000
    done = subprocess.run([sys.executable, "-c", READ_WORK, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    views, most_mb = map(int, done.stdout.split())
    assert views >= across * down
    # Two processes take some 350 MB before a page is opened; the page's pixels alone are 225 MB in RGB.
    assert most_mb < (1_500 if LONG else 575)
