"""One rule for every way an image can be stored, and a kind for every way it can be broken."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms, ImageFile, ImageOps, TiffImagePlugin

from zellige.data.decode import DecodeError, DecodeLimits, decode, probe
from zellige.data.pixels import to_rgb
from zellige.data.schema import ErrorKind

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM", "ICO")


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def noise(side: int = 64) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8))


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, depth: int, colour: int, rows: bytes, *extra: bytes) -> bytes:
    """A PNG from its raw rows (each with its filter byte), to say what Pillow does not write."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = b"".join(extra) + chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body + chunk(b"IEND", b"")


def kind_of(data: bytes, limits: DecodeLimits | None = None) -> ErrorKind:
    with pytest.raises(DecodeError) as caught:
        decode(data, limits or DecodeLimits())
    assert caught.value.message
    return caught.value.kind


# --- what becomes of each mode


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_gives_upright_rgb(form):
    decoded = decode(encoded(noise(), form))
    assert decoded.pixels.shape == (64, 64, 3)
    assert decoded.pixels.dtype == np.uint8
    assert decoded.pixels.flags.c_contiguous
    assert decoded.pixels.flags.writeable
    assert (decoded.width, decoded.height, decoded.frames, decoded.warning) == (64, 64, 1, None)
    if form in ("PNG", "BMP", "TIFF", "PPM"):
        assert np.array_equal(decoded.pixels, np.asarray(noise()))


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr", "LAB"])
def test_opaque_modes_are_converted_as_pillow_does(mode):
    data = encoded(noise().convert(mode), "TIFF")
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert np.array_equal(decode(data).pixels, expected)


@pytest.mark.parametrize("mode", ["HSV", "RGBX"])
def test_opaque_modes_that_only_plugins_make(mode):
    image = noise().convert(mode)
    rgb, warning = to_rgb(image, "")
    assert np.array_equal(np.asarray(rgb), np.asarray(image.convert("RGB")))
    assert warning is None


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_a_16_bit_ramp_keeps_256_levels(form):
    ramp = np.linspace(0, 65535, 256).astype(np.uint16)[None].repeat(16, axis=0)
    pixels = decode(encoded(Image.fromarray(ramp), form)).pixels
    assert np.array_equal(pixels[..., 0], (ramp >> 8).astype(np.uint8))
    assert np.array_equal(pixels[..., 0], pixels[..., 2])


def test_big_endian_16_bit_and_16_bit_rgb_are_shifted_down():
    image = Image.frombytes("I;16B", (2, 1), struct.pack(">HH", 0x1234, 0xFF00))
    assert decode(encoded(image, "TIFF")).pixels[0, :, 0].tolist() == [0x12, 0xFF]
    rgb = png(1, 1, 16, 2, b"\0" + struct.pack(">HHH", 40000, 255, 65535))
    assert decode(rgb).pixels.tolist() == [[[156, 0, 255]]]


def test_12_bit_data_in_16_bits_uses_its_own_range():
    ramp = np.linspace(0, 4095, 256).astype(np.uint16)[None]
    assert np.array_equal(decode(encoded(Image.fromarray(ramp))).pixels[0, :, 0], (ramp[0] >> 4).astype(np.uint8))


@pytest.mark.parametrize(
    ("values", "greys"),
    [
        ([0, 32768, 65535], [0, 128, 255]),
        ([0, 2048, 4095], [0, 128, 255]),
        ([-100, 0, 100], [0, 128, 255]),
        ([0, 1_000_000, 2_000_000], [0, 128, 255]),
        ([70_000, 70_000], [128, 128]),
    ],
)
def test_32_bit_integers(values, greys):
    data = encoded(Image.fromarray(np.array([values], np.int32)), "TIFF")
    assert decode(data).pixels[0, :, 0].tolist() == greys


@pytest.mark.parametrize(
    ("values", "greys"),
    [
        ([0.0, 0.5, 1.0], [0, 128, 255]),
        ([0.25, 0.5], [64, 128]),
        ([-1.0, 0.0, 1.0], [0, 128, 255]),
        ([0.0, 100.0, 200.0], [0, 128, 255]),
        ([5.0, 5.0], [128, 128]),
        ([float("nan"), 0.0, 1.0, float("inf"), float("-inf")], [0, 0, 255, 255, 0]),
        ([float("nan"), float("nan")], [0, 0]),
        ([-3e38, 0.0, 3e38], [0, 128, 255]),
    ],
)
def test_floats(values, greys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pixels = decode(encoded(Image.fromarray(np.array([values], np.float32)), "TIFF")).pixels
    assert pixels[0, :, 0].tolist() == greys


# --- transparency, always over white

BLACK, WHITE = [0, 0, 0], [255, 255, 255]


def half_transparent(mode: str) -> Image.Image:
    """Black on the left, transparent black on the right."""
    image = Image.new(mode, (8, 8), 0)
    image.putalpha(Image.fromarray(np.repeat([[255] * 4 + [0] * 4], 8, axis=0).astype(np.uint8)))
    return image


@pytest.mark.parametrize(
    ("mode", "form"), [("RGB", "PNG"), ("L", "PNG"), ("RGB", "WEBP"), ("RGB", "TIFF"), ("RGB", "AVIF")]
)
def test_alpha_is_laid_over_white(mode, form):
    options = {"lossless": True} if form == "WEBP" else {}
    pixels = decode(encoded(half_transparent(mode), form, **options)).pixels
    assert pixels[4, 1].tolist() == BLACK
    assert pixels[4, 6].tolist() == WHITE


@pytest.mark.parametrize("mode", ["La", "RGBa", "PA"])
def test_alpha_modes_that_only_plugins_make(mode):
    image = half_transparent("L" if mode == "La" else "RGB")
    rgb, _ = to_rgb(Image.new("PA", (8, 8), (0, 0)) if mode == "PA" else image.convert(mode), "")
    assert rgb.getpixel((6, 4)) == (255, 255, 255)
    assert rgb.getpixel((1, 4)) == ((255, 255, 255) if mode == "PA" else (0, 0, 0))


def test_half_alpha_is_half_white():
    assert decode(encoded(Image.new("RGBA", (1, 1), (255, 0, 0, 128)))).pixels[0, 0].tolist() == [255, 127, 127]


def test_palette_with_transparency():
    image = Image.new("P", (2, 1))
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.putdata([0, 1])
    assert decode(encoded(image, transparency=bytes([0, 255]))).pixels[0].tolist() == [WHITE, [10, 20, 30]]
    assert decode(encoded(image, transparency=bytes([128, 0]))).pixels[0].tolist() == [[127, 127, 127], WHITE]
    assert decode(encoded(image, "GIF", transparency=1)).pixels[0].tolist() == [BLACK, WHITE]
    assert decode(encoded(image)).pixels[0].tolist() == [BLACK, [10, 20, 30]]


def test_a_transparent_colour_in_rgb_and_grey():
    rgb = Image.new("RGB", (2, 1), (255, 0, 0))
    rgb.putpixel((1, 0), (254, 0, 0))
    assert decode(encoded(rgb, transparency=(255, 0, 0))).pixels[0].tolist() == [WHITE, [254, 0, 0]]
    grey = Image.new("L", (2, 1), 7)
    grey.putpixel((1, 0), 8)
    assert decode(encoded(grey, transparency=7)).pixels[0].tolist() == [WHITE, [8, 8, 8]]


@pytest.mark.parametrize(
    ("depth", "row", "key", "greys"),
    [
        (1, bytes([0b01000000]), 0, [255, 255]),
        (1, bytes([0b01000000]), 1, [0, 255]),
        (2, bytes([0b01100000]), 1, [255, 170]),
        (4, bytes([0x3C]), 3, [255, 204]),
        (16, struct.pack(">HH", 0x1200, 0x1300), 0x1200, [255, 0x13]),
    ],
)
def test_a_transparent_grey_at_every_depth(depth, row, key, greys):
    data = png(2, 1, depth, 0, b"\0" + row, chunk(b"tRNS", struct.pack(">H", key)))
    assert decode(data).pixels[0, :, 0].tolist() == greys


def test_a_transparent_16_bit_colour():
    row = b"\0" + struct.pack(">HHHHHH", 0x1234, 0x5678, 0x9ABC, 1, 2, 0xFFFF)
    data = png(2, 1, 16, 2, row, chunk(b"tRNS", struct.pack(">HHH", 0x1234, 0x5678, 0x9ABC)))
    assert decode(data).pixels[0].tolist() == [WHITE, [0, 0, 255]]


# --- the right way up


def banded() -> Image.Image:
    image = Image.new("RGB", (32, 16), "white")
    image.paste("red", (0, 0, 32, 4))
    image.paste("blue", (0, 0, 8, 4))
    return image


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("value", range(10))
def test_orientation_is_applied_once(form, value):
    exif = Image.Exif()
    exif[0x0112] = value
    data = encoded(banded(), form, exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    decoded = decode(data)
    assert np.array_equal(decoded.pixels, expected)
    assert (decoded.height, decoded.width) == expected.shape[:2]
    if 5 <= value <= 8:
        assert (decoded.width, decoded.height) == (16, 32)
    seen = probe(data)
    assert (seen.width, seen.height) == (decoded.width, decoded.height)


def test_orientation_in_xmp_and_in_an_old_png_text_chunk():
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    assert decode(encoded(banded(), "JPEG", xmp=xmp)).pixels.shape == (32, 16, 3)
    exif = Image.Exif()
    exif[0x0112] = 8
    text = "\nexif\n" + str(len(exif.tobytes())) + "\n" + exif.tobytes().hex()
    data = encoded(banded())
    at = data.index(b"IDAT") - 4
    data = data[:at] + chunk(b"tEXt", b"Raw profile type exif\0" + text.encode()) + data[at:]
    assert decode(data).pixels.shape == (32, 16, 3)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")  # Pillow's words; ours are in the row
@pytest.mark.parametrize(
    "exif", [b"Exif\0\0garbage", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\0\x09", b"Exif\0\0II"]
)
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_damaged_exif_keeps_the_pixels_and_warns(exif, form):
    decoded = decode(encoded(banded(), form, exif=exif))
    assert decoded.pixels.shape == (16, 32, 3)
    assert "damaged EXIF" in (decoded.warning or "")


# --- colour profiles


def profile(name: Any) -> bytes:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile(name)).tobytes()


def test_a_usable_profile_is_applied_and_srgb_changes_nothing():
    image = noise()
    assert np.array_equal(decode(encoded(image, icc_profile=profile("sRGB"))).pixels, np.asarray(image))
    swapped = bytearray(profile("sRGB"))
    # The red and the blue primary change places in the tag table, and the description no longer says sRGB.
    red, blue = swapped.index(b"rXYZ"), swapped.index(b"bXYZ")
    swapped[red : red + 4], swapped[blue : blue + 4] = b"bXYZ", b"rXYZ"
    swapped = swapped.replace("sRGB".encode("utf-16-be"), "none".encode("utf-16-be"))
    decoded = decode(encoded(Image.new("RGB", (4, 4), (250, 10, 10)), icc_profile=bytes(swapped)))
    assert decoded.warning is None
    assert decoded.pixels[0, 0, 2] > 200
    assert decoded.pixels[0, 0, 0] < 50


@pytest.mark.parametrize("icc", [b"garbage", b"\0" * 200])
def test_an_unusable_profile_is_a_warning(icc):
    image = noise()
    decoded = decode(encoded(image, icc_profile=icc))
    assert np.array_equal(decoded.pixels, np.asarray(image))
    assert "colour profile ignored" in (decoded.warning or "")


def test_a_profile_for_another_colour_model_is_a_warning():
    decoded = decode(encoded(noise().convert("L"), "JPEG", icc_profile=profile("sRGB")))
    assert "colour profile ignored: it is for RGB" in (decoded.warning or "")


# --- several frames


@pytest.mark.parametrize(("form", "options"), [("GIF", {}), ("WEBP", {"lossless": True}), ("PNG", {}), ("TIFF", {})])
def test_frame_0_is_taken_and_frames_are_counted(form, options):
    red, *rest = (Image.new("RGB", (8, 8), c) for c in ("red", "lime", "blue"))
    decoded = decode(encoded(red, form, save_all=True, append_images=rest, **options))
    assert decoded.frames == 3
    assert decoded.pixels[0, 0].tolist() == [255, 0, 0]


def test_mpo_is_its_first_image():
    data = encoded(
        Image.new("RGB", (8, 8), "red"), "MPO", save_all=True, append_images=[Image.new("RGB", (8, 8), "blue")]
    )
    decoded = decode(data)
    assert decoded.frames == 2
    assert decoded.pixels[0, 0, 0] > 240


def test_a_damaged_later_page_leaves_the_first():
    pages = [Image.new("RGB", (8, 8), c) for c in ("red", "lime")]
    data = bytearray(encoded(pages[0], "TIFF", save_all=True, append_images=pages[1:]))
    first = struct.unpack_from("<L", data, 4)[0]
    entries = struct.unpack_from("<H", data, first)[0]
    struct.pack_into("<L", data, first + 2 + 12 * entries, len(data) + 1000)  # where the second page is said to be
    decoded = decode(bytes(data))
    assert decoded.pixels[0, 0].tolist() == [255, 0, 0]
    assert "later pages cannot be reached" in (decoded.warning or "")
    assert decoded.frames == 1


@pytest.mark.parametrize("cut", [1, 2])
def test_a_gif_that_lacks_only_its_end_mark_is_kept_with_a_warning(cut):
    assert decode(encoded(noise(), "GIF") + b"more").warning is None
    decoded = decode(encoded(noise(), "GIF")[:-cut])
    assert decoded.warning == "the file lacks its end, all pixels are there"


def jpeg_tiff() -> tuple[bytearray, int, int]:
    """(a TIFF of JPEG strips, offset of its second strip, bytes of that strip)."""
    data = bytearray(encoded(noise(128), "TIFF", compression="jpeg", tiffinfo={278: 32}))
    tags = Image.open(io.BytesIO(data)).tag_v2
    return data, tags[273][1], tags[279][1]


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda size: (size // 2, bytes(size - size // 2)), "truncated"),
        (lambda size: (size // 2, b"\xff\xd9" * 100), "unreadable"),
        (lambda size: (size // 2, b"\xff\x01" * 100), "unreadable"),
        (lambda size: (0, bytes(10)), "unreadable"),
    ],
)
def test_a_damaged_jpeg_in_a_tiff_is_not_shown_as_grey(damage, kind):
    data, offset, size = jpeg_tiff()
    assert decode(bytes(data)).warning is None
    at, noise_bytes = damage(size)
    data[offset + at : offset + at + len(noise_bytes)] = noise_bytes
    assert kind_of(bytes(data)) == kind


# --- broken and foreign


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("keep", [0.5, 0.9])
def test_a_file_cut_short_is_truncated(form, keep):
    data = encoded(noise(), form)
    assert kind_of(data[: int(len(data) * keep)]) == "truncated"


@pytest.mark.parametrize("cut", [2, 128])
def test_a_jpeg_without_its_end_is_truncated(cut):
    exif = Image.Exif()
    exif[0x0112] = 1
    thumbnail = encoded(noise(8), "JPEG")  # has an end mark of its own
    data = encoded(noise(), "JPEG", exif=exif.tobytes() + thumbnail, quality=90)
    assert decode(data).warning is None
    assert kind_of(data[:-cut]) == "truncated"


def test_a_png_that_lacks_only_its_end_mark_is_kept_with_a_warning():
    decoded = decode(encoded(noise())[:-12])
    assert np.array_equal(decoded.pixels, np.asarray(noise()))
    assert decoded.warning == "the file lacks its end, all pixels are there"


@pytest.mark.parametrize(
    ("data", "kind", "says"),
    [
        (b"", "empty", "0 bytes"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "unsupported_format", "text/html"),
        (b"\xef\xbb\xbf  <HTML>", "unsupported_format", "text/html"),
        (b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>', "unsupported_format", "image/svg+xml"),
        (b'{"error": "not found"}', "unsupported_format", "application/json"),
        ("schöne Grüße".encode(), "unsupported_format", "text/plain"),
        (b"%PDF-1.7\n", "truncated", "PDF is cut short"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "unreadable", "image/heic"),
        (b"\xff\x0a", "unsupported_format", "JPEG XL"),
        (b"8BPS\0\1", "unsupported_format", "Photoshop"),
        (b"\0\0\0\x18ftypisom\0\0\0\0isomavc1", "unsupported_format", "video/mp4"),
        (bytes(range(64)), "unreadable", "00 01 02"),
        (b"\xff\xd8\xff\xe0", "truncated", "image/jpeg"),
    ],
)
def test_what_is_no_image_says_what_it_is(data, kind, says):
    with pytest.raises(DecodeError, match=says.replace("+", r"\+")) as caught:
        decode(data)
    assert caught.value.kind == kind
    with pytest.raises(DecodeError) as probed:
        probe(data)
    assert probed.value.kind == kind


def test_a_checksum_that_is_wrong_is_unreadable():
    data = bytearray(encoded(noise()))
    data[data.index(b"IDAT") + 50] ^= 0xFF
    assert kind_of(bytes(data)) == "unreadable"


def test_a_tracking_pixel_is_an_image():
    assert decode(encoded(Image.new("P", (1, 1)), "GIF")).pixels.shape == (1, 1, 3)


# --- how large


def huge_png(side: int) -> bytes:
    """side x side pixels of 1-bit grey in a few hundred bytes: the rows are not even there."""
    return png(side, side, 1, 0, b"\0")


@pytest.mark.parametrize("side", [20_000, 30_000])
def test_too_large_names_the_size_before_a_pixel_is_decoded(side):
    with pytest.raises(DecodeError, match=f"{side} x {side}") as caught:
        decode(huge_png(side))
    assert caught.value.kind == "too_large"
    with pytest.raises(DecodeError, match=f"{side} x {side}"):
        probe(io.BytesIO(huge_png(side)))


def test_the_limit_is_ours_and_pillows_own_never_speaks():
    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
    assert kind_of(encoded(noise()), DecodeLimits(max_pixels=64 * 64 - 1)) == "too_large"
    assert decode(encoded(noise()), DecodeLimits(max_pixels=64 * 64)).width == 64
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Pillow warns from 90 million pixels on, and refuses from 179 million on.
        assert probe(huge_png(12_000)).width == 12_000
        assert probe(huge_png(20_000), DecodeLimits(max_pixels=500_000_000)).width == 20_000
        assert kind_of(huge_png(12_000)) == "truncated"  # so its pixels were asked for
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)


def test_memory_stays_small_while_a_bomb_is_refused():
    program = (
        "import resource, sys; from zellige.data.decode import decode, DecodeError\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "try: decode(sys.stdin.buffer.read())\n"
        "except DecodeError as e: print(e.kind)"
    )
    bomb = png(30_000, 30_000, 1, 0, bytes(3751 * 30_000))
    assert len(bomb) < 200_000
    done = subprocess.run([sys.executable, "-c", program], input=bomb, capture_output=True, check=True)
    assert done.stdout.strip() == b"too_large"


# --- everything else that bytes can do


def test_threads_do_not_disturb_each_other():
    images = {form: encoded(noise(), form) for form in FORMATS}
    expected = {form: decode(data).pixels for form, data in images.items()}
    broken = images["JPEG"][:-100]

    def work(n: int) -> bool:
        form = FORMATS[n % len(FORMATS)]
        assert kind_of(broken) == "truncated"
        return np.array_equal(decode(images[form]).pixels, expected[form])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(60)))


SMALL = {form: encoded(noise(12), form) for form in FORMATS}


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(FORMATS),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4),
    st.integers(0, 2000),
)
def test_damaged_bytes_give_an_image_or_a_kind_and_nothing_else(form, changes, length):
    data = bytearray(SMALL[form])
    for at, value in changes:
        data[at % len(data)] = value
    damaged = bytes(data[: length % (2 * len(data))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            decoded = decode(damaged, DecodeLimits(max_pixels=1_000_000))
        except DecodeError as error:
            kind = error.kind
        else:
            kind = None
            assert decoded.pixels.shape == (decoded.height, decoded.width, 3)
    assert kind in {None, "empty", "unreadable", "truncated", "unsupported_format", "too_large"}


def test_tiff_is_still_turned_by_its_plugin():
    """The once-only rule leans on this; if Pillow changes it, the table in decode.py must."""
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.open(io.BytesIO(encoded(banded(), "TIFF", exif=exif)))
    assert isinstance(image, TiffImagePlugin.TiffImageFile)
    image.load()
    assert image.size == (16, 32)
