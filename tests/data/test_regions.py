"""Huge images read by region: the pixels of decoding whole, in little memory, and errors of the same kind."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms

from zellige.data.decode import DecodeError, decode
from zellige.data.regions import RegionImage
from zellige.data.schema import ErrorKind
from zellige.data.views import View, ViewRule, views_of
from zellige.engine.api import VisionBudget

RULE = ViewRule("caption", "auto", VisionBudget(16, 2, 32 * 32, 192 * 192))
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


@pytest.mark.parametrize("mode", ["F", "I"])
def test_samples_that_strips_cannot_scale_are_unsupported(mode: str) -> None:
    with pytest.raises(DecodeError, match="700 x 500 pixels") as error:
        by_region(saved(picture().convert(mode), "TIFF"), "TIFF")
    assert error.value.kind is ErrorKind.UNSUPPORTED_FORMAT


WORK = """
import asyncio, os, resource, sys, pyvips
from zellige.data.decode_pool import DecodePool
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

    side = 30_000 if LONG else 9_000
    path = tmp_path / f"large.{kind}"
    flat = (pyvips.Image.black(side, side) + 128).cast("uchar")
    flat.write_to_file(str(path), **({"compression": 1, "filter": "none"} if kind == "png" else {}))
    done = subprocess.run(
        [sys.executable, "-c", WORK, str(side), kind, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    views, most_mb = map(int, done.stdout.split())
    assert views > (side // 448) ** 2
    assert most_mb < (1_500 if LONG else 400)
