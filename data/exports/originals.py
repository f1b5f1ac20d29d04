"""The bytes of a row's image, read again from where the run found it."""

from __future__ import annotations

import hashlib
import io

from PIL import Image

from zellige.data.decode import decode
from zellige.data.decoded import DecodeError
from zellige.data.exports.base import Exported, Row
from zellige.data.run import Run
from zellige.data.schema import Item
from zellige.data.sniff import HEAD_BYTES, sniff
from zellige.data.sources import ReadError, open_source

_SUFFIXES = {"image/jpeg": "jpg", "image/tiff": "tif", "image/x-icon": "ico", "image/x-portable-anymap": "pnm"}


class Originals:
    """Reads items again, one after another; the bytes of the last file stay for its next question or page."""

    def __init__(self, run: Run) -> None:
        self._source = open_source(run.inputs, run.source_options)
        self._last: tuple[tuple[str, str | None, int | None], bytes, str] | None = None
        self._last_image: tuple[str, bytes, str] | None = None

    def image(self, row: Row, done: Exported) -> tuple[bytes, str] | None:
        """(encoded bytes, suffix without a dot); None, counted in ``done``, where they are not those that were seen.

        A page of a document is drawn as the model was shown it, as PNG: a document's bytes are all its pages.
        """
        if self._last_image is None or self._last_image[0] != row["item_id"]:
            try:
                data, digest = self._read(row)
            except Exception as error:  # whatever one image does must not cost the others
                done.leave_out(row, "the image cannot be read any more", _said(error))
                return None
            if digest != row["content_sha256"]:
                done.leave_out(row, "the image has changed since")
                return None
            try:
                self._last_image = (row["item_id"], *_of_page(data, row["page"]))
            except Exception as error:
                done.leave_out(row, "the page cannot be drawn any more", _said(error))
                return None
        return self._last_image[1:]

    def _read(self, row: Row) -> tuple[bytes, str]:
        place = (row["uri"], row["member"], row["ordinal"])
        if self._last is None or self._last[0] != place:
            self._last = None  # two files of the largest size are never held at once
            item = Item(row["uri"], row["member"], row["ordinal"], row["page"], metadata=tuple(row["metadata"].items()))
            data = self._source.read(item)
            self._last = (place, data, hashlib.sha256(data).hexdigest())
        return self._last[1:]


def _said(error: Exception) -> str:
    return error.message if isinstance(error, (ReadError, DecodeError)) else f"{type(error).__name__}: {error}"


def _of_page(data: bytes, page: int | None) -> tuple[bytes, str]:
    if page is None:
        kind = sniff(data[:HEAD_BYTES]) or ""
        return data, _SUFFIXES.get(kind) or kind.rpartition("/")[2] or "bin"
    file = io.BytesIO()
    Image.fromarray(decode(data, page=page).pixels).save(file, "PNG")
    return file.getvalue(), "png"
