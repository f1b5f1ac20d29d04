"""Pages of PDF files, and what is said about the ones that cannot be drawn."""

from __future__ import annotations

import io
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from zellige.data.decode import DecodeError, DecodeLimits, decode, probe
from zellige.data.pages import pages_of
from zellige.data.pdf import MAX_PIXELS

KIND = "application/pdf"
#: What a page shows: a red corner, the lower left one.
RED_CORNER = b"1 0 0 rg 0 0 36 36 re f"


def pdf(*pages: bytes, catalog: bytes = b"", trailer: bytes = b"", count: int | None = None) -> bytes:
    """A PDF from the dictionaries of its pages (b"/MediaBox [0 0 72 144]"), with a red corner on each."""
    kids = b" ".join(b"%d 0 R" % (n + 4) for n in range(len(pages)))
    objects = [
        b"<</Type/Catalog/Pages 2 0 R " + catalog + b">>",
        b"<</Type/Pages/Kids[" + kids + b"]/Count %d>>" % (len(pages) if count is None else count),
        b"<</Length %d>>stream\n%s\nendstream" % (len(RED_CORNER), RED_CORNER),
        *(b"<</Type/Page/Parent 2 0 R/Contents 3 0 R " + page + b">>" for page in pages),
    ]
    data, places = b"%PDF-1.7\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    end = b"trailer\n<</Size %d/Root 1 0 R %s>>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, trailer, len(data))
    return data + head + table + end


TALL = b"/MediaBox [0 0 72 144]"
#: RC4 with 40 bits under a password that is not empty: the two keys fit no password tried.
ENCRYPT = b"/Encrypt<</Filter/Standard/V 1/R 2/P -4/O<%s>/U<%s>>>/ID[<00><00>]" % (b"11" * 32, b"22" * 32)


def kind_of(data: bytes, page: int | None = 1) -> str:
    with pytest.raises(DecodeError) as caught:
        decode(data, page=page)
    with pytest.raises(DecodeError) as probed:
        probe(data, page=page)
    assert probed.value.kind == caught.value.kind
    return caught.value.kind


def test_page_is_drawn_at_150_dots_an_inch_over_white():
    decoded = decode(pdf(TALL), page=1)
    assert decoded.pixels.shape == (300, 150, 3)
    assert decoded.pixels[-10, 10].tolist() == [255, 0, 0]
    assert decoded.pixels[10, 10].tolist() == [255, 255, 255]
    assert decoded.pixels.flags.writeable
    assert (decoded.format, decoded.frames, decoded.warning) == (KIND, 1, None)


@pytest.mark.parametrize(("turn", "corner"), [(0, (-10, 10)), (90, (10, 10)), (180, (10, -10)), (270, (-10, -10))])
def test_rotation_of_a_page_is_honoured(turn, corner):
    data = pdf(TALL + b"/Rotate %d" % turn)
    decoded, seen = decode(data, page=1), probe(data, page=1)
    assert decoded.pixels[corner].tolist() == [255, 0, 0]
    assert (decoded.width, decoded.height) == ((150, 300) if turn % 180 == 0 else (300, 150))
    assert (seen.width, seen.height) == (decoded.width, decoded.height)


def test_each_page_is_itself_and_the_first_is_taken_where_none_is_named():
    data = pdf(TALL, b"/MediaBox [0 0 36 36]")
    assert decode(data, page=2).width == 75
    assert decode(data).width == 150
    assert decode(data, page=2).frames == 2
    assert pages_of(data, KIND).count == 2
    assert kind_of(data, page=3) == "unreadable"


def test_bytes_before_the_header_are_passed_over():
    assert decode(b"From: printer\n\n" + pdf(TALL), page=1).width == 150


@pytest.mark.parametrize("box", [b"0 0 14400 14400", b"0 0 1000000 1000000", b"0 0 1 2000000", b"0 0 3e38 3e38"])
def test_page_of_absurd_size_stays_within_the_budget(box):
    data = pdf(b"/MediaBox [" + box + b"]")
    limits = DecodeLimits(max_pixels=1_000_000)
    try:
        decoded = decode(data, limits, page=1)
    except DecodeError as error:
        assert error.kind == "unreadable"  # noqa: PT017 - either is right, a crash or much memory is not
    else:
        assert 0 < decoded.width * decoded.height <= 1_000_000
        assert "dots an inch" in (decoded.warning or "")
    assert probe(pdf(b"/MediaBox [0 0 14400 14400]"), page=1).width ** 2 <= MAX_PIXELS


def test_page_without_area_or_box_does_not_crash():
    for box in (b"/MediaBox [0 0 0 0]", b"/MediaBox [0 0 0.001 0.001]", b"/MediaBox [9 9 1 1]", b""):
        try:
            assert decode(pdf(box), page=1).width > 0
        except DecodeError as error:
            assert error.kind == "unreadable"  # noqa: PT017


def test_encrypted_empty_damaged_and_cut_are_told_apart():
    assert kind_of(pdf(TALL, trailer=ENCRYPT)) == "encrypted"
    assert kind_of(pdf()) == "empty"
    assert kind_of(b"") == "empty"
    whole = pdf(TALL)
    assert kind_of(whole[: len(whole) // 4]) == "truncated"
    assert kind_of(b"%PDF-1.7\n" + bytes(500) + b"\n%%EOF\n") == "unreadable"
    for data, kind in ((pdf(TALL, trailer=ENCRYPT), "encrypted"), (pdf(), "empty")):
        with pytest.raises(DecodeError) as caught:
            pages_of(data, KIND)
        assert caught.value.kind == kind


def test_pdf_that_lacks_only_its_end_is_drawn_with_a_warning():
    decoded = decode(pdf(TALL)[:-20], page=1)
    assert decoded.pixels[-10, 10].tolist() == [255, 0, 0]
    assert "lacks its end" in (decoded.warning or "")


def test_lost_page_fails_alone():
    data = pdf(TALL, TALL, TALL).replace(b"4 0 R 5 0 R 6 0 R", b"4 0 R 9 0 R 6 0 R")
    assert pages_of(data, KIND).count == 3
    assert decode(data, page=1).width == decode(data, page=3).width == 150
    assert kind_of(data, page=2) == "unreadable"


def test_count_that_lies_gives_one_error_and_not_a_million():
    pages = pages_of(pdf(TALL, TALL, count=1_000_000), KIND)
    assert pages.count == 2
    assert pages.missing is not None
    assert "pages 3 to 1,000,000" in pages.missing.message


def test_many_threads_draw_one_after_another():
    """In a process of its own: PDFium that is entered twice takes the process with it."""
    program = (
        "import sys\nfrom concurrent.futures import ThreadPoolExecutor\nfrom zellige.data.decode import decode\n"
        "data = sys.stdin.buffer.read()\nwith ThreadPoolExecutor(10) as pool:\n"
        "    print({d.width for d in pool.map(lambda n: decode(data, page=1 + n % 2), range(100))})"
    )
    done = subprocess.run([sys.executable, "-c", program], input=pdf(TALL, TALL), capture_output=True, check=True)
    assert done.stdout.strip() == b"{150}"


def test_damaged_bytes_give_a_page_or_a_kind():
    file = io.BytesIO()
    Image.new("RGB", (40, 20), "red").save(file, "PDF")
    whole = file.getvalue()

    def outcome(cut: int) -> str:
        try:
            return "ok" if decode(whole[:cut], page=1).width else "no width"
        except DecodeError as error:
            return error.kind

    with ThreadPoolExecutor(2) as pool:
        outcomes = set(pool.map(outcome, range(0, len(whole), 7)))
    assert outcomes <= {"ok", "empty", "truncated", "unreadable", "unsupported_format"}
