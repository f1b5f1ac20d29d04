from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))

from page_harness import CHROMIUM, DRIVER, FLAGS, Page, made_run

from zellige.data.ledger import Run
from zellige.data.schema import ErrorKind, Item, TileAnswer


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    if not (CHROMIUM and DRIVER):
        pytest.skip("no chromium and chromedriver on the path")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def page(browser: Any) -> Page:
    return Page(browser)


@pytest.fixture
def few(tmp_path: Path) -> Run:
    """Six images, the first in tiles, one that failed and one whose file is no more."""
    folder = tmp_path / "images"
    folder.mkdir()
    paths = [
        folder / name for name in ("big.png", "b.png", "<img src=x onerror=alert(1)>.png", "d.png", "e.png", "f.png")
    ]
    for n, path in enumerate(paths):
        Image.fromarray(np.full((300, 400, 3), (40 * n, 90, 120), np.uint8)).save(path)

    def columns(place: int, item: Item) -> dict[str, Any]:
        about: dict[str, Any] = {"width": 400, "height": 300, "mean_logprob": -0.1 * place, "attempts": 1}
        about |= {"engine_s": 0.5 + place, "prompt_tokens": 200, "completion_tokens": 10 + place, "image_tokens": 190}
        if place == 3:
            return about | {"status": "failed", "error_kind": ErrorKind.LENGTH, "error": "cut off", "answer": "too lo"}
        tiles = [
            *(TileAnswer(0, 0, 400, 300, 0.5, "the whole", 0.9), TileAnswer(0, 0, 200, 300, 1.0, "a left half", 0.8)),
            TileAnswer(200, 0, 200, 300, 1.0, "a <b>right</b> half", 0.7),
        ]
        said = "</script><script>document.title='broken'</script>" if place == 2 else f"answer {place}"
        return about | {"answer": said, "tiles": tuple(tiles) if place == 0 else ()}

    run = made_run(tmp_path / "store", paths, columns)
    paths[5].unlink()
    return run
