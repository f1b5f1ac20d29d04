"""``zellige report`` in a real browser, opened from the disk. ``ZELLIGE_SCREENSHOT=FILE`` keeps a picture of it."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from page_harness import Page, made_run
from PIL import Image
from typer.testing import CliRunner

from zellige.data.ledger import Run
from zellige.data.schema import ErrorKind, Item, TileAnswer
from zellige.flows.cli import app


def written(run: Run, out: Path) -> dict[str, Any]:
    store = run.path.parent.parent
    done = CliRunner().invoke(app, ["report", run.run_id, "--store", str(store), "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert isinstance(said, dict)
    return said


def test_rows_are_shown_with_pictures_tiles_and_errors_and_nothing_of_them_is_run(
    few: Run, page: Page, tmp_path: Path
) -> None:
    said = written(few, tmp_path / "r.html")
    assert (said["rows"], said["pictures"], said["not_drawn"]) == (6, 5, 1)
    page.open((tmp_path / "r.html").as_uri())
    assert page.browser.title.startswith(few.run_id)
    assert "</script><script>document.title='broken'</script>" in page.all(".card .said")
    assert "<img src=x onerror=alert(1)>.png" in page.all(".card .name")
    page.until(lambda: page.js("return [...document.images].every(i => i.complete && i.naturalWidth > 0)"))
    assert len(page.find(".card img")) == 5
    assert page.all(".card .nothing") == ["No such file or directory"]
    assert page.all(".card .why") == ["cut off"]
    # The boxes lie where the tiles were, over the picture.
    left, right = page.js(
        "const f = document.querySelector('.card .frame'), r = f.getBoundingClientRect();"
        "return [...f.querySelectorAll('.box:not(.hidden)')].map(b => { const s = b.getBoundingClientRect();"
        " return [(s.x - r.x) / r.width, s.width / r.width, s.height / r.height].map(v => Math.round(v * 100)); })"
    )
    assert (left, right) == ([0, 50, 100], [50, 50, 100])
    page.click(".card")
    assert [line.split("\n")[0] for line in page.all("dialog .tiles li")] == [
        *("the whole", "a left half", "a <b>right</b> half")
    ]
    page.js("document.querySelectorAll('dialog .tiles li')[2].onmouseenter()")
    assert "lit" in page.find("dialog .box")[2].get_attribute("class")
    assert page.complaints() == []


def test_filters_leave_what_they_say(few: Run, page: Page, tmp_path: Path) -> None:
    written(few, tmp_path / "r.html")
    page.open((tmp_path / "r.html").as_uri())
    page.click("#statuses button[value=failed]")
    assert page.all(".card .said") == ["too lo"]
    page.click("#statuses button[value=failed]")
    page.choose("kind", "length")
    assert len(page.find(".card")) == 1
    page.choose("kind", "")
    page.find("#text")[0].send_keys("ANSWER 4")
    assert page.all(".card .said") == ["answer 4"]
    page.js("document.getElementById('text').value = ''")
    page.choose("least", "0.65")
    assert len(page.find(".card")) == 5  # exp(-0.5) is 0.61
    page.choose("order", "unsure")
    assert page.all(".card .said")[0] == "answer 4"
    page.choose("order", "slow")
    assert page.all(".card .said")[0] == "answer 4"
    assert page.all("#found") == ["5 of 6 rows"]


def test_charts_kernels_and_recipe_are_drawn(few: Run, page: Page, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    few.write_timeline(
        [{"at": now + timedelta(seconds=i), "in_flight": i, "temperature_c": 60.0 + i} for i in range(9)]
    )
    plain = {"device": "cuda:0", "checked": 5, "nonfinite": 0, "guard_hits": 0, "repeat_mismatches": 0}
    plain |= {"launch_errors": 0, "device_ms": 3.0, "bytes": 9, "launches": 50, "tolerance": 1e-5}
    few.write_kernels(
        [
            {**plain, "operator": "rms_norm", "max_rel_l2": 1e-7, "verdict": "healthy"},
            {**plain, "operator": "rope", "max_rel_l2": 1e-3, "verdict": "suspect"},
        ]
    )
    few.event("environment", zellige="0.1.0", gpus=["a card"])
    written(few, tmp_path / "r.html")
    page.open((tmp_path / "r.html").as_uri())
    assert [text.split("\n")[0] for text in page.all("#charts figcaption b")] == [
        *(
            "Throughput, rows/s",
            "Answers, tokens/s",
            "Prompts, tokens/s",
            "Latency of a request, s",
            "Queue, requests",
            "Hottest GPU, °C",
        )
    ]
    assert [text.split()[0] for text in page.all("#kernels tr")[1:]] == ["rms_norm", "rope"]
    # What is beyond its tolerance lies right of the line, what is within left of it.
    line, *dots = page.js(
        "const x = (e, name) => Number(e.getAttribute(name));"
        "return [x(document.querySelector('.tolerance'), 'x1'),"
        " ...[...document.querySelectorAll('#kernels circle')].map(c => x(c, 'cx'))]"
    )
    assert dots[0] < line < dots[1]
    assert "a card" in page.all("#recipe")[0]
    assert "Describe the image." in page.all("#recipe")[0]
    assert page.complaints() == []


def test_ten_thousand_rows_are_one_page_after_the_other_within_25_mb(page: Page, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    rng = np.random.default_rng(0)
    noise = Image.fromarray(rng.integers(0, 255, (300, 400, 3), np.uint8))  # the pictures that take most bytes
    noise.save(folder / "noise.jpg", quality=60)
    paths = [folder / f"{n:05d}.jpg" for n in range(12_000)]
    for path in paths:
        path.hardlink_to(folder / "noise.jpg")
    (folder / "noise.jpg").unlink()
    letters = "".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz     "), 1_000_000))

    def columns(place: int, item: Item) -> dict[str, Any]:
        if place % 60 == 7:
            return {"status": "failed", "error_kind": ErrorKind.EMPTY, "error": "the file is empty"}
        begin = place * 7919 % 990_000
        said = f"{letters[begin : begin + 800]} end {place}"
        tiles = (TileAnswer(0, 0, 200, 300, 1.0, "x", 0.5),)
        return {"answer": said, "width": 400, "height": 300, "mean_logprob": -0.2, "tiles": tiles}

    run = made_run(tmp_path / "store", paths, columns, shard_items=1000)
    said = written(run, tmp_path / "r.html")
    assert (said["rows"], said["rows_in_all"]) == (10_000, 12_000)
    assert said["bytes"] == (tmp_path / "r.html").stat().st_size <= 25_000_000
    assert said["pictures"] > 100
    page.open((tmp_path / "r.html").as_uri())
    assert page.all("#statuses button") == ["ok 9,800", "failed 200"]  # every failed row of 12,000 is there
    assert len(page.find(".card")) == 48
    assert page.all(".where")[0] == "page 1 of 209"
    page.click("button.next")
    assert page.all(".where")[0] == "page 2 of 209"
    took = page.js(
        "const t = performance.now(); document.getElementById('text').value = 'zqx'; filter();"
        "return performance.now() - t"
    )
    assert took < 3000, f"{took} ms for a search through 10,000 rows"
    assert "sample" in page.all("#note")[0]


def test_file_that_is_no_report_is_not_replaced_and_a_report_is(few: Run, tmp_path: Path) -> None:
    store = few.path.parent.parent
    (tmp_path / "mine.html").write_text("mine")
    call = ["report", few.run_id, "--store", str(store), "--out"]
    assert CliRunner().invoke(app, [*call, str(tmp_path / "mine.html")]).exit_code == 2
    assert (tmp_path / "mine.html").read_text() == "mine"
    assert CliRunner().invoke(app, [*call, str(store / "x.html")]).exit_code == 2
    for _ in range(2):
        written(few, tmp_path / "r.html")
    unknown = CliRunner().invoke(app, ["report", "nothing", "--store", str(store), "--json"])
    assert (unknown.exit_code, json.loads(unknown.stdout)["exit_code"]) == (2, 2)


def test_page_names_no_other_place(few: Run, tmp_path: Path) -> None:
    written(few, tmp_path / "r.html")
    html = (tmp_path / "r.html").read_text()
    assert "https:" not in html
    assert "http:" not in html.replace("http://www.w3.org/2000/svg", "")  # a name, which nothing is loaded from
    assert html.count("</script") == 5
    if name := os.environ.get("ZELLIGE_REPORT"):
        Path(name).write_text(html)
