"""Pages of PDF files to pixels, by PDFium.

A page is drawn as a reader shows it (rotation, crop box, annotations, filled forms) over white at 150 dots an inch, or
at fewer where that would be more than ``MAX_PIXELS`` or the run's own limit: a page may claim any size.

PDFium is not thread-safe: one lock for the whole process is held from opening a document to closing it, so that several
threads draw one after another. Run several processes to draw faster.
"""

from __future__ import annotations

import io
import math
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
import pypdfium2
from numpy.typing import NDArray
from pypdfium2 import raw as pdfium

from zellige.data.decoded import Decoded, DecodeError, DecodeLimits, Probed, first_of, no_page
from zellige.data.schema import ErrorKind

KIND = "application/pdf"
DOTS_PER_INCH = 150
#: The most pixels a page is drawn at: an A0 sheet at 150 dots an inch, 120 MB as RGB.
MAX_PIXELS = 40_000_000
_LOCK = threading.Lock()
_TAIL_BYTES = 2048
#: A document that counts more pages than can be found gets one failed item for them, not one each, beyond this many.
_MOST_LOST_PAGES = 1000
_NO_PAGES = re.compile(rb"/Count\s+0\b")


def count_pages(file: BinaryIO) -> tuple[int, DecodeError | None]:
    """(pages, what is wrong with the one after the last); raises DecodeError where no page can be had."""
    with _opened(file) as document:
        named = len(document)
        last = next((n for n in range(named, max(named - _MOST_LOST_PAGES, 0), -1) if _is_there(document, n)), 0)
        if last:
            return named, None  # a page that is lost among them fails by itself
        lost, found = 0, 0
        for number in range(1, named + 1):
            found, lost = (number, 0) if _is_there(document, number) else (found, lost + 1)
            if lost > _MOST_LOST_PAGES:
                break
    if not found:
        raise DecodeError(ErrorKind.UNREADABLE, f"damaged PDF: none of its {named:,} pages can be found")
    return found, DecodeError(ErrorKind.UNREADABLE, f"pages {found + 1:,} to {named:,} cannot be found in this PDF")


def probe_page(file: BinaryIO, page: int, limits: DecodeLimits) -> Probed:
    """The size that ``render_page`` would draw ``page`` (from 1) at; raises DecodeError."""
    with _page(file, page) as (_, opened):
        width, height, _ = _size(opened, limits)
    return Probed(width, height, KIND)


def render_page(data: bytes, page: int | None, limits: DecodeLimits) -> Decoded:
    """Draw ``page`` (from 1; None: the first); ``frames`` is the number of pages. Raises DecodeError."""
    file = io.BytesIO(data)
    with _page(file, page or 1) as (document, opened):
        pages, (width, height, dots) = len(document), _size(opened, limits)
        pixels = _draw(document, opened, width, height)
    notes = [] if dots >= DOTS_PER_INCH else [f"a very large page, drawn at {dots:.3g} dots an inch"]
    if page is None and pages > 1:
        notes.append(first_of(pages))
    if not _has_end(file):
        notes.append("the file lacks its end, the page is what was left of it")
    return Decoded(pixels, width, height, pages, KIND, "; ".join(notes) or None)


@contextmanager
def _opened(file: BinaryIO) -> Iterator[pypdfium2.PdfDocument]:
    file.seek(0)
    with _LOCK:
        # A document without pages is refused with whatever error came last in this process; so that is a known one.
        pdfium.FPDF_LoadMemDocument64(b"-", 1, None)
        try:
            document = pypdfium2.PdfDocument(file)
        except pypdfium2.PdfiumError as error:
            raise _not_opened(error, file) from error
        # Closed here and not by the garbage collector, which would do it in any thread and without the lock.
        try:
            if len(document) == 0:
                raise DecodeError(ErrorKind.EMPTY, "this PDF has no page")
            yield document
        finally:
            document.close()


@contextmanager
def _page(file: BinaryIO, page: int) -> Iterator[tuple[pypdfium2.PdfDocument, pypdfium2.PdfPage]]:
    with _opened(file) as document:
        if not 1 <= page <= len(document):
            raise no_page(page, len(document))
        if document.get_formtype() != pdfium.FORMTYPE_NONE:
            document.init_forms()  # before the page: else what was filled in is not drawn
        try:
            opened = document.get_page(page - 1)
        except pypdfium2.PdfiumError as error:
            kind = ErrorKind.UNREADABLE if _has_end(file) else ErrorKind.TRUNCATED
            raise DecodeError(kind, f"damaged PDF: page {page} cannot be found in it") from error
        try:
            yield document, opened
        finally:
            opened.close()


def _is_there(document: pypdfium2.PdfDocument, page: int) -> bool:
    try:
        document.get_page(page - 1).close()
    except pypdfium2.PdfiumError:
        return False
    return True


def _size(page: pypdfium2.PdfPage, limits: DecodeLimits) -> tuple[int, int, float]:
    """(width, height, dots an inch) of the upright page; pixels."""
    points_wide, points_high = page.get_size()
    if not (0 < points_wide < math.inf and 0 < points_high < math.inf):
        raise DecodeError(ErrorKind.UNREADABLE, f"a page of {points_wide:g} x {points_high:g} points has no area")
    most = min(MAX_PIXELS, limits.max_pixels)
    scale = min(DOTS_PER_INCH / 72, math.sqrt(most / points_wide / points_high))
    width, height = max(1, round(points_wide * scale)), max(1, round(points_high * scale))
    if width * height > most:  # rounded up, or as thin as a line
        width, height = (width, max(1, most // width)) if height > width else (max(1, most // height), height)
    limits.check(width, height)
    return width, height, min(DOTS_PER_INCH, 72 * scale + 1e-6 * DOTS_PER_INCH)


def _draw(document: pypdfium2.PdfDocument, page: pypdfium2.PdfPage, width: int, height: int) -> NDArray[np.uint8]:
    """The page over white, exactly ``width`` x ``height``, as RGB."""
    bitmap = pypdfium2.PdfBitmap.new_native(width, height, pdfium.FPDFBitmap_BGR)
    try:
        bitmap.fill_rect((255, 255, 255, 255), 0, 0, width, height)
        place: tuple[Any, ...] = (
            bitmap,
            page,
            0,
            0,
            width,
            height,
            0,
            pdfium.FPDF_ANNOT | pdfium.FPDF_REVERSE_BYTE_ORDER,
        )
        pdfium.FPDF_RenderPageBitmap(*place)
        if document.formenv is not None:
            pdfium.FPDF_FFLDraw(document.formenv, *place)
        return np.array(bitmap.to_numpy())
    finally:
        bitmap.close()


def _not_opened(error: pypdfium2.PdfiumError, file: BinaryIO) -> DecodeError:
    if error.err_code in (pdfium.FPDF_ERR_PASSWORD, pdfium.FPDF_ERR_SECURITY):
        return DecodeError(ErrorKind.ENCRYPTED, "this PDF is encrypted; save a copy without its password and use that")
    if not _has_end(file):
        return DecodeError(ErrorKind.TRUNCATED, f"this PDF is cut short: {error}")
    file.seek(0)
    if _NO_PAGES.search(file.read(1 << 20)):
        return DecodeError(ErrorKind.EMPTY, "this PDF has no page")
    return DecodeError(ErrorKind.UNREADABLE, f"damaged PDF: {error}")


def _has_end(file: BinaryIO) -> bool:
    """Whether the end mark stands near the end, where every writer puts it."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - _TAIL_BYTES))
    return b"%%EOF" in file.read()
