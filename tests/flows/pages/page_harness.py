"""A headless browser that reaches nothing but this machine, and finished runs to show in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zellige.data.ledger import Run, Store
from zellige.data.schema import AnswerRow, Item, Question, Recipe
from zellige.data.uri import to_uri

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--window-size=1280,1000"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    # No name but this machine's leads anywhere: a page that needed the network would show it.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


@dataclass
class Page:
    """A page as its user sees it."""

    browser: Any

    def open(self, url: str) -> None:
        self.browser.get_log("browser")  # what an earlier page said
        self.browser.get(url)
        self.until(lambda: self.js("return document.body.dataset.ready"))

    def js(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def until(self, true: Callable[[], object]) -> None:
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.ui import WebDriverWait

        # What was found may be drawn anew before it is read; then it is looked for again.
        passing = [StaleElementReferenceException]
        WebDriverWait(self.browser, 60, poll_frequency=0.05, ignored_exceptions=passing).until(lambda _: true())

    def all(self, selector: str) -> list[str]:
        return [str(e.text) for e in self.find(selector)]

    def find(self, selector: str) -> list[Any]:
        return list(self.browser.find_elements("css selector", selector))

    def click(self, selector: str, place: int = 0) -> None:
        self.find(selector)[place].click()

    def choose(self, field: str, value: str) -> None:
        self.js("const f = document.getElementById(arguments[0]); f.value = arguments[1]; f.onchange();", field, value)

    def complaints(self) -> list[str]:
        """What the browser's console holds: errors of the script, refused loads."""
        return [entry["message"] for entry in self.browser.get_log("browser")]


def question(text: str = "") -> Question:
    return Question("q1", text) if text else Question("caption")


def made_run(
    store: Path,
    images: Sequence[Path],
    rows: Callable[[int, Item], dict[str, Any]],
    questions: Sequence[Question] = (),
    shard_items: int = 256,
) -> Run:
    """A finished run whose rows are what ``rows`` says of each item: columns of an answer row."""
    asked = tuple(questions) or (question(),)
    task = "ask" if questions else "caption"
    recipe = Recipe(task, asked, "Describe the image.", "auto", {"max_tokens": 9}, {}, "fake", "f" * 32, "float32")
    items = [Item(to_uri(path)) for path in images]
    run = Store(store).create_run(recipe, items, shard_items=shard_items, inputs=[to_uri(p.parent) for p in images[:1]])
    place = 0
    while (lease := run.lease()) is not None:
        made = []
        for item in lease.shard.items:
            for q in asked:
                columns = {"status": "ok", **rows(place, item)}
                made.append(AnswerRow.of(run.run_id, recipe, item, q, columns.pop("status"), **columns))
            place += 1
        lease.commit(made)
    run.finish("finished")
    return run
