"""Review: a run's page that is served, its pictures drawn as they are looked at, and the words of who looks."""

from __future__ import annotations

import threading
from collections import OrderedDict
from datetime import datetime
from types import TracebackType
from typing import Any

from zellige.data.report.page import Page
from zellige.data.report.rows import choose
from zellige.data.reviews import Review, ReviewLog
from zellige.data.run import Run
from zellige.tasks.pictures import Pictures, Wanted
from zellige.tasks.report import about_run, verdicts

#: Rows of the page.
MOST_ROWS = 20_000
#: The longer side of a picture in pixels, by its name in an address; pictures that are kept.
SIDES = {"small": 400, "large": 1600}
MOST_KEPT = 200


class RefusedError(ValueError):
    """A word that makes no sense, or an item that there is not; the message says which."""


class ReviewDesk:
    """The page of one run, its pictures and its reviews, for any number of threads while the context lasts."""

    def __init__(self, run: Run, reviewer: str) -> None:
        self._run, self._reviewer = run, reviewer
        self._chosen = choose(run, MOST_ROWS)
        self._made_at = {row["id"]: datetime.fromisoformat(row["at"]) for row in self._chosen.rows}
        self._wanted = {
            row["item"]: Wanted(row["item"], self._chosen.items[row["item"]], row.get("content_sha256"))
            for row in self._chosen.rows
        }
        self._page = Page(about_run(run), self._chosen, {}, served=True)
        self._pictures = Pictures(run)
        self._kept: OrderedDict[tuple[int, str], bytes] = OrderedDict()
        self._log = ReviewLog(run)
        self._lock = threading.Lock()

    @property
    def policy(self) -> str:
        """What the page may load, for a header."""
        return self._page.policy

    def page(self) -> bytes:
        """The page, with the reviews of now."""
        return self._page.html({}, {}, verdicts(self._run, self._chosen))

    def picture(self, place: int, size: str) -> bytes:
        """An item as a JPEG; raises RefusedError where there is no such item or size, NoPicture."""
        if place not in self._wanted or size not in SIDES:
            raise RefusedError("there is no such picture")
        with self._lock:
            if (place, size) in self._kept:
                self._kept.move_to_end((place, size))
                return self._kept[place, size]
        picture = self._pictures.draw(self._wanted[place], SIDES[size])
        with self._lock:
            self._kept[place, size] = picture
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return picture

    def decide(self, word: Any) -> None:
        """Store one word, a dict of ``row_id``, ``verdict`` and ``answer``; raises RefusedError, StoreUnusable."""
        if not isinstance(word, dict) or word.keys() != {"row_id", "verdict", "answer"}:
            raise RefusedError("a review has row_id, verdict and answer")
        row, verdict, answer = word["row_id"], word["verdict"], word["answer"]
        if not isinstance(row, str) or row not in self._made_at:
            raise RefusedError("there is no such row on this page")
        if not isinstance(verdict, str) or not isinstance(answer, str | None):
            raise RefusedError("verdict and answer are texts")
        try:
            review = Review(row, verdict, self._made_at[row], self._reviewer, answer)  # type: ignore[arg-type]
        except ValueError as error:
            raise RefusedError(str(error)) from error
        with self._lock:
            self._log.add(review)

    def __enter__(self) -> ReviewDesk:
        self._pictures.__enter__()
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._pictures.__exit__(*error)
