"""The page as one HTML file: style, script and data inside, and a policy that lets it load nothing else.

Whatever a run holds is data to the page: it stands in blocks of JSON in which no tag can end, and the script writes it
as text only.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zellige.data.exports.base import to_json
from zellige.data.report.rows import Chosen, Row, shortened

#: The largest page; of it, what texts may take. Pictures have the rest.
MOST_BYTES, MOST_TEXT_BYTES = 25_000_000, 9_000_000
#: How every report begins: what begins otherwise is no report and is not replaced.
MARK = b"<!doctype html>\n<!-- zellige report -->\n"

_FOLDER = Path(__file__).parent
_SCRIPTS = ("gallery.js", "charts.js", "review.js", "start.js")
#: Texts are cut to ever fewer characters until all rows together are short enough.
_LENGTHS = (50_000, 8000, 2000, 800, 300, 120)
_PLACE = re.compile(r"\{\{(\w+)\}\}")


class Page:
    """The page of one run, without its pictures; ``served``: by ``zellige review``, which draws and takes verdicts."""

    def __init__(
        self, about: Mapping[str, Any], chosen: Chosen, reviews: Mapping[str, Any], *, served: bool = False
    ) -> None:
        # Nobody may edit the half of an answer, so a page that is served holds all of each.
        packed, cut_to = _packed(chosen, _LENGTHS if not served else ())
        shown = {**about, "rows_in_all": chosen.total, "cut_to": cut_to, "served": served}
        style = (_FOLDER / "page.css").read_text(encoding="utf-8")
        script = "".join((_FOLDER / name).read_text(encoding="utf-8") for name in _SCRIPTS)
        self.policy = _policy(script, style, served)
        self._parts = {
            "policy": self.policy,
            "style": style,
            "script": script,
            "about": _block(shown),
            "rows": packed,
            "reviews": _block(reviews),
        }

    @property
    def picture_room(self) -> int:
        """Bytes that pictures may take, with why some are missing."""
        return MOST_BYTES - sum(len(part.encode()) for part in self._parts.values()) - 10_000

    def html(
        self, pictures: Mapping[int, str], missing: Mapping[int, str], reviews: Mapping[str, Any] | None = None
    ) -> bytes:
        """The file: ``pictures`` are addresses that hold them, ``missing`` why there is none, by the item's place.

        ``reviews`` are those of now, where they are others than those that the page was made with.
        """
        parts = self._parts | {"pictures": _block({"drawn": pictures, "missing": missing})}
        if reviews is not None:
            parts["reviews"] = _block(reviews)
        template = (_FOLDER / "page.html").read_text(encoding="utf-8")
        # One pass: what looks like a place inside of the data is left as it is.
        return MARK + _PLACE.sub(lambda match: parts[match[1]], template).encode()


def _packed(chosen: Chosen, lengths: Sequence[int]) -> tuple[str, int | None]:
    """Rows and items, compressed, as text; and the characters that texts were cut to, where they had to be."""
    for most in lengths or (sys.maxsize,):
        rows: Sequence[Row] = shortened(chosen.rows, most)
        data = gzip.compress(to_json({"items": chosen.places, "rows": rows}).encode(), 6, mtime=0)
        if len(data) * 4 / 3 <= MOST_TEXT_BYTES:
            break
    return base64.b64encode(data).decode("ascii"), None if rows == chosen.rows else most


def _block(value: Any) -> str:
    """JSON that may stand between tags: nothing in it can be taken for one."""
    return to_json(json.loads(json.dumps(value, default=str))).replace("<", "\\u003c")


def _policy(script: str, style: str, served: bool) -> str:
    pictures, server = ("data: 'self'", "'self'") if served else ("data:", "'none'")
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            f"img-src {pictures}",
            f"connect-src {server}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
