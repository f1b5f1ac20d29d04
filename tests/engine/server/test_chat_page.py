"""The chat page in a real browser: an image goes in, the answer streams, and nothing is loaded from anywhere else.

``ZELLIGE_SCREENSHOT=FILE`` keeps the picture of the README. Skipped where Chromium or selenium is missing.
"""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from server_harness import FakeEngine, LiveServer, chat, uri

from zellige.data.samples import draw_document, draw_scene, held_out_kit
from zellige.data.samples.fonts import package_faces
from zellige.engine.server.chat_page import PAGE

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.common.exceptions import StaleElementReferenceException  # noqa: E402
from selenium.webdriver.chrome.service import Service as Driver  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium and chromedriver on the path")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--window-size=960,1150"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    # No name but this machine's leads anywhere: a page that needed the network would show it.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
DROP = """
const bytes = Uint8Array.from(atob(arguments[0]), (c) => c.charCodeAt(0)), dataTransfer = new DataTransfer();
dataTransfer.items.add(new File([bytes], "dropped.png", { type: "image/png" }));
document.body.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Driver(DRIVER))
    yield browser
    browser.quit()


class Page:
    """The page as its user sees it."""

    def __init__(self, browser: webdriver.Chrome, url: str) -> None:
        self.browser = browser
        browser.get_log("browser")  # what an earlier page said
        browser.get(url)

    def until(self, true: Callable[[], object]) -> None:
        # What was found may be drawn anew before it is read; then it is looked for again.
        passing = [StaleElementReferenceException]
        WebDriverWait(self.browser, 60, poll_frequency=0.05, ignored_exceptions=passing).until(lambda _: true())

    def all(self, selector: str) -> list[str]:
        return [e.text for e in self.browser.find_elements(By.CSS_SELECTOR, selector)]

    def attach(self, *files: Path) -> None:
        self.browser.find_element(By.ID, "files").send_keys("\n".join(map(str, files)))
        self.until(lambda: len(self.all("#attached img")) == len(files))

    def drop(self, file: Path) -> None:
        """As when it is dragged here from the desktop."""
        self.browser.execute_script(DROP, base64.b64encode(file.read_bytes()).decode())
        self.until(lambda: len(self.all("#attached img")) == 1)

    def ask(self, text: str) -> None:
        self.browser.find_element(By.ID, "question").send_keys(text + "\n")

    def facts(self) -> dict[str, str]:
        """Of the last answer, once it has ended."""
        self.until(lambda: self.all(".answer") and not self.all(".answer.streaming"))
        last = self.browser.find_elements(By.CSS_SELECTOR, ".answer")[-1]
        pairs = last.find_elements(By.CSS_SELECTOR, ".facts div")
        return {p.find_element(By.TAG_NAME, "dt").text: p.find_element(By.TAG_NAME, "dd").text for p in pairs}

    def complaints(self) -> list[str]:
        """What the browser's console holds: errors of the script, refused loads."""
        return [entry["message"] for entry in self.browser.get_log("browser")]


def test_images_are_dropped_in_and_asked_about(demo: LiveServer, browser: webdriver.Chrome, tmp_path: Path) -> None:
    scene = draw_scene(held_out_kit("demo/scene-7"), 300, 200)
    invoice = draw_document(
        replace(held_out_kit("demo/document-5"), faces=package_faces()), 416, 448, kind="invoice", text_px=(13, 20)
    )
    page = Page(browser, demo.url)
    page.until(lambda: page.all("#model") == ["zellige-demo"])
    for picture, question, give in (
        (scene, "Describe the image.", page.drop),
        (invoice, "What is the total?", page.attach),
    ):
        file = tmp_path / "picture.png"
        Image.fromarray(picture.pixels).save(file)
        reply = demo.post(chat(uri(file.read_bytes()), question)).json()
        give(file)
        page.ask(question)
        facts = page.facts()
        assert page.all(".answer p")[-1] == reply["choices"][0]["message"]["content"]
        assert facts["image tokens"] == str(reply["usage"]["prompt_tokens_details"]["image_tokens"])
        assert float(facts["tokens/s"]) > 0
        assert facts["finish reason"] == "stop"
    assert page.all(".question p") == ["Describe the image.", "What is the total?"]
    assert len(browser.find_elements(By.CSS_SELECTOR, ".question img")) == 2
    assert page.complaints() == []
    if name := os.environ.get("ZELLIGE_SCREENSHOT"):
        browser.save_screenshot(name)


def test_an_answer_is_seen_while_it_comes_and_can_be_stopped(browser: webdriver.Chrome) -> None:
    engine = FakeEngine(words=("word ",) * 500, gap_s=0.02)
    with LiveServer(lambda: engine) as server:
        page = Page(browser, server.url)
        page.ask("Go on.")
        page.until(lambda: page.all(".answer.streaming p") and page.all(".answer.streaming p")[0].count("word") > 3)
        early = page.all(".answer p")[0]
        page.until(lambda: len(page.all(".answer p")[0]) > len(early))
        browser.find_element(By.ID, "send").click()
        assert page.facts()["finish reason"] == "stopped by you"
        page.until(lambda: not engine.answering)


def test_an_error_is_shown_as_it_was_said(fake: LiveServer, browser: webdriver.Chrome, tmp_path: Path) -> None:
    (tmp_path / "cut.png").write_bytes(b"\x89PNG\r\n\x1a\n cut short")
    page = Page(browser, fake.url)
    page.attach(tmp_path / "cut.png")
    page.ask("What is it?")
    page.until(lambda: page.all(".answer.failed"))
    assert "image 1" in page.all(".answer.failed p")[0]
    # The next question is not burdened with it.
    page.ask("And now?")
    page.facts()
    assert page.all(".answer p")[-1] == "one two three"
    assert fake.engine.texts == ["And now?"]


def test_a_chat_goes_on_from_what_was_said_until_a_new_one(fake: LiveServer, browser: webdriver.Chrome) -> None:
    page = Page(browser, fake.url)
    page.until(lambda: page.all("#model") == ["fake"])
    for text in ("First?", "Second?"):
        page.ask(text)
        page.facts()
    assert fake.engine.texts == ["First?", "one two three", "Second?"]
    browser.find_element(By.ID, "new").click()
    assert page.all(".answer") == []
    page.ask("Third?")
    page.facts()
    assert fake.engine.texts == ["Third?"]


def test_a_key_is_asked_for_and_used(browser: webdriver.Chrome) -> None:
    with LiveServer(lambda: FakeEngine(), keys={"alice": "k-1"}) as server:
        page = Page(browser, server.url)
        page.until(lambda: browser.find_element(By.ID, "key").is_displayed())
        browser.find_element(By.ID, "key").send_keys("k-1\t")
        page.until(lambda: page.all("#model") == ["fake"])
        page.ask("Hello?")
        page.facts()
        assert page.all(".answer p") == ["one two three"]


def test_the_page_names_no_other_place() -> None:
    """One file: no address but its own server's."""
    assert "http:" not in PAGE
    assert "https:" not in PAGE
    assert "src=" not in PAGE
