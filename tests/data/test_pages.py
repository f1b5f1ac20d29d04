"""How many pages a document has, and what becomes of the ones that are damaged."""

from __future__ import annotations

import io
import struct
from typing import Any

import pytest
from PIL import Image

from zellige.data.decode import DecodeError, decode, probe
from zellige.data.pages import page_items, pages_of
from zellige.data.schema import Item

TIFF = "image/tiff"
RED, LIME, BLUE = [255, 0, 0], [0, 255, 0], [0, 0, 255]


def tiff(*colours: str, **options: Any) -> bytearray:
    """A TIFF of 8 x 8 pages, each of one colour."""
    first, *rest = (Image.new("RGB", (8, 8), colour) for colour in colours)
    file = io.BytesIO()
    first.save(file, "TIFF", save_all=True, append_images=rest, **options)
    return bytearray(file.getvalue())


def links(data: bytes) -> list[int]:
    """Where the offsets of the directories stand: in the header, then behind each directory."""
    order, big = "<" if data[:2] == b"II" else ">", data[2:4] in (b"+\0", b"\0+")
    word, entry, head = ("Q", 20, "Q") if big else ("L", 12, "H")
    found = [8 if big else 4]
    while offset := struct.unpack_from(order + word, data, found[-1])[0]:
        count = struct.unpack_from(order + head, data, offset)[0]
        found.append(offset + struct.calcsize("<" + head) + entry * count)
    return found


def first_pixels(data: bytes, count: int) -> list[list[int]]:
    return [decode(data, page=page).pixels[0, 0].tolist() for page in range(1, count + 1)]


def set_tag(data: bytearray, page: int, tag: int, value: int) -> None:
    """Overwrite the first entry of a directory by a tag of one LONG (little-endian, classic)."""
    offset = struct.unpack_from("<L", data, links(data)[page])[0]
    struct.pack_into("<HHLL", data, offset + 2, tag, 4, 1, value)


class Counting(io.BytesIO):
    """Counts the bytes that are read of it."""

    count = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data


def test_a_later_page_of_a_file_larger_than_memory_is_looked_at_without_reading_the_file():
    one, two = Image.new("RGB", (3000, 2000)), Image.new("RGB", (2500, 1500))
    one.save(saved := io.BytesIO(), "TIFF", save_all=True, append_images=[two])
    file = Counting(saved.getvalue())
    probed = probe(file, page=2)
    assert (probed.width, probed.height) == (2500, 1500)
    assert file.count < 100_000 < len(saved.getvalue())


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_adobe_deflate", "jpeg"])
@pytest.mark.parametrize("big", [False, True])
def test_every_page_is_decoded_alone(compression, big):
    data = bytes(tiff("red", "lime", "blue", compression=compression, big_tiff=big))
    assert pages_of(data, TIFF).count == 3
    for pixel, colour in zip(first_pixels(data, 3), (RED, LIME, BLUE), strict=True):
        assert max(abs(a - b) for a, b in zip(pixel, colour, strict=True)) < 4
    assert decode(data, page=2).frames == 3
    assert (probe(data, page=3).width, probe(data, page=3).height) == (8, 8)
    with pytest.raises(DecodeError, match="no page 4"):
        decode(data, page=4)


def test_pages_of_different_modes_are_each_read_by_their_own():
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(
        file, "TIFF", save_all=True, append_images=[Image.new("1", (4, 2), 1), Image.new("RGB", (8, 8), "blue")]
    )
    assert first_pixels(file.getvalue(), 3) == [RED, [255, 255, 255], BLUE]
    assert probe(file.getvalue(), page=2).width == 4


def test_link_past_the_end_keeps_the_pages_before_and_names_the_missing_one():
    data = tiff("red", "lime", "blue")
    struct.pack_into("<L", data, links(data)[1], len(data) + 1000)
    pages = pages_of(bytes(data), TIFF)
    assert pages.count == 1
    assert pages.missing is not None
    items = page_items(Item("file:///a.tif", size_bytes=7), io.BytesIO(data))
    assert [(item.page, item.error_kind) for item in items] == [(1, None), (2, "truncated")]
    assert len({item.item_id for item in items}) == 2
    assert items[0].size_bytes == 7
    assert decode(bytes(data), page=1).pixels[0, 0].tolist() == RED
    with pytest.raises(DecodeError) as caught:
        decode(bytes(data), page=2)
    assert caught.value.kind == "truncated"


def test_damaged_page_fails_alone_and_later_ones_are_reached():
    data = tiff("red", "lime", "blue")
    offset = struct.unpack_from("<L", data, links(data)[1])[0]
    count = struct.unpack_from("<H", data, offset)[0]
    data[offset + 2 : offset + 2 + 12 * count] = b"\xff" * 12 * count
    assert pages_of(bytes(data), TIFF).count == 3
    with pytest.raises(DecodeError):
        decode(bytes(data), page=2)
    assert decode(bytes(data), page=3).pixels[0, 0].tolist() == BLUE


def test_chain_that_runs_in_a_circle_ends():
    data = tiff("red", "lime")
    struct.pack_into("<L", data, links(data)[2], struct.unpack_from("<L", data, 4)[0])
    pages = pages_of(bytes(data), TIFF)
    assert pages.count == 2
    assert pages.missing is not None
    assert "circle" in pages.missing.message
    assert first_pixels(bytes(data), 2) == [RED, LIME]


@pytest.mark.parametrize(("tag", "value"), [(254, 1), (254, 4), (254, 5), (255, 2)])
def test_thumbnails_and_masks_are_no_pages(tag, value):
    data = tiff("red", "lime", "blue", tiffinfo={254: 0})
    set_tag(data, 1, tag, value)
    assert pages_of(bytes(data), TIFF).count == 2
    assert first_pixels(bytes(data), 2) == [RED, BLUE]


def test_one_page_with_its_thumbnail_is_a_single_item_and_the_page_is_shown():
    data = tiff("red", "lime", tiffinfo={254: 0})
    set_tag(data, 0, 254, 1)
    item = Item("file:///a.tif")
    assert page_items(item, io.BytesIO(data)) == [item]
    assert decode(bytes(data)).pixels[0, 0].tolist() == LIME
    assert decode(bytes(data)).frames == 1


def test_one_page_tiff_has_no_page_number_and_several_have():
    item = Item("file:///a.tif", metadata=(("k", "v"),))
    assert page_items(item, io.BytesIO(tiff("red"))) == [item]
    several = page_items(item, io.BytesIO(tiff("red", "lime")))
    assert [i.page for i in several] == [1, 2]
    assert several[0].item_id == Item("file:///a.tif", page=1).item_id
    assert several[1].metadata == item.metadata


def test_image_of_another_kind_is_left_alone():
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    item = Item("file:///a.tif")
    assert page_items(item, file) == [item]
    assert page_items(item, io.BytesIO()) == [item]
    assert decode(file.getvalue(), page=1).width == 8
    for attempt in (decode, probe):
        with pytest.raises(DecodeError, match="no page 2"):
            attempt(file.getvalue(), page=2)


def test_document_where_one_image_was_expected_says_that_it_has_more_pages():
    assert decode(bytes(tiff("red", "lime"))).warning == "page 1 of 2; the others were not looked at"
    assert decode(bytes(tiff("red", "lime")), page=1).warning is None


@pytest.mark.parametrize("cut", range(0, 200, 3))
def test_cut_documents_are_one_failed_item_or_their_pages(cut):
    for data in (tiff("red", "lime"), tiff("red", "lime", big_tiff=True)):
        items = page_items(Item("file:///a.tif"), io.BytesIO(bytes(data[: 8 + cut])))
        assert items
        assert items[-1].error_kind in {"truncated", "unreadable", "empty"}


def test_encrypted_pdf_is_one_failed_item():
    data = b"%PDF-1.7\n1 0 obj<</Type/Catalog>>endobj\n%%EOF\n"
    (item,) = page_items(Item("file:///a.pdf"), io.BytesIO(data))
    assert (item.page, item.error_kind) == (None, "unreadable")
