"""``zellige review`` in a real browser: verdicts go to the store, and nobody else reaches the page."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from page_harness import Page

from zellige.data.catalog import Catalog
from zellige.data.ledger import Run
from zellige.data.reviews import reviews_of
from zellige.flows.review_command import _opened
from zellige.flows.review_server import ReviewServer
from zellige.tasks.review import ReviewDesk

COMMAND = "from zellige.flows.cli import main; main()"


@pytest.fixture
def server(few: Run) -> Iterator[ReviewServer]:
    with ReviewDesk(few, "ada") as desk, _opened(desk, 0) as server:
        yield server


def said(run: Run) -> list[tuple[str, str | None]]:
    return sorted((r.verdict, r.answer) for r in reviews_of(run).values())


def test_answers_are_accepted_edited_and_rejected_and_the_words_are_there_again(
    few: Run, server: ReviewServer, page: Page
) -> None:
    page.open(server.address)
    page.until(lambda: page.js("return [...document.images].filter(i => i.complete && i.naturalWidth > 0).length") == 5)
    page.until(lambda: page.all(".card .nothing") == ["No such file or directory"])
    page.click(".card")
    page.until(lambda: page.js("return document.querySelector('dialog img').naturalWidth > 0"))
    page.click("dialog button.accepted")
    page.until(lambda: said(few) == [("accepted", None)])
    # The next one is shown; by the keyboard now.
    page.until(lambda: page.all("dialog .said") == ["answer 1"])
    page.find("dialog .top button")[2].send_keys("r")
    page.until(lambda: ("rejected", None) in said(few))
    page.until(lambda: page.all("dialog .said")[0].startswith("</script>"))
    page.click("dialog button.edited")
    field = page.find("dialog textarea")[0]
    field.clear()
    field.send_keys('a <b>"red"</b> \\ tile')
    page.click("dialog .save")
    page.until(lambda: ("edited", 'a <b>"red"</b> \\ tile') in said(few))
    page.until(lambda: page.all("#reviewed") == ["3"])
    # Taken back: a second click on what is pressed.
    page.click("dialog button", 0)  # back to the edited one
    page.click("dialog button", 0)
    page.click("dialog button.rejected")
    page.until(lambda: len(said(few)) == 2)
    page.click("dialog .top button", 2)
    page.choose("verdict", "open")
    assert len(page.find(".card")) == 4
    page.open(server.address)
    assert page.all("#reviewed") == ["2"]
    page.choose("verdict", "edited")
    assert page.all(".card .said") == ['a <b>"red"</b> \\ tile']
    # The browser notes the picture that there is not; nothing else.
    assert [c for c in page.complaints() if "404" not in c] == []


def test_word_that_was_not_stored_is_told(few: Run, server: ReviewServer, page: Page) -> None:
    (few.path / "reviews").write_text("in the way")
    page.open(server.address)
    page.click(".card")
    page.click("dialog button.accepted")
    page.until(lambda: page.all("dialog .told")[0].startswith("not saved"))
    assert page.all("#reviewed") == ["0"]


def ask(server: ReviewServer, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    given = {"Content-Type": "application/json"} | {name.replace("_", "-"): v for name, v in headers.items()}
    connection.request(method, path, body if isinstance(body, bytes | None) else json.dumps(body), given)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_nobody_without_the_key_or_by_another_name_gets_anything(few: Run, server: ReviewServer) -> None:
    key = f"/{server.key}"
    word = {"row_id": few.run_id, "verdict": "accepted", "answer": None}
    for path in ("/", "/small/0", "/wrong/", "/wrong/small/0", key, f"{key}x/"):
        assert ask(server, "GET", path)[0] == 403, path
    assert ask(server, "POST", "/reviews", word)[0] == 403
    assert ask(server, "GET", f"{key}/", Host="evil.example")[0] == 403
    assert ask(server, "GET", f"{key}/")[0] == 200
    assert not (few.path / "reviews").exists()


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"verdict": "liked"}, 422),
        ({"row_id": "0" * 32}, 422),
        ({"verdict": "edited"}, 422),
        ({"answer": 5}, 422),
        ({"verdict": ["accepted"]}, 422),
        ({"more": 1}, 422),
    ],
)
def test_words_that_make_no_sense_are_refused(
    few: Run, server: ReviewServer, change: dict[str, Any], status: int
) -> None:
    row = next(iter(server.desk._made_at))
    word = {"row_id": row, "verdict": "accepted", "answer": None} | change
    got, body = ask(server, "POST", f"/{server.key}/reviews", word)
    assert got == status
    assert json.loads(body)["error"]
    assert reviews_of(few) == {}


def test_what_is_no_word_is_refused_before_it_is_read(server: ReviewServer) -> None:
    path = f"/{server.key}/reviews"
    assert ask(server, "POST", path, b"{")[0] == 400
    assert ask(server, "POST", path, b"{}", Content_Type="text/plain")[0] == 415
    assert ask(server, "POST", path, b"", Content_Length="99999999999")[0] == 413
    assert ask(server, "GET", f"/{server.key}/large/999")[0] == 404
    assert ask(server, "GET", f"/{server.key}/../../etc/passwd")[0] == 404


def test_command_serves_until_it_is_told_to_end_and_then_the_index_knows(few: Run, tmp_path: Path) -> None:
    store = few.path.parent.parent
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "review", few.run_id, "--store", str(store), "--reviewer", "ada"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stderr is not None
    address = urlsplit(process.stderr.readline().partition(" at ")[2].split(" ")[0])
    connection = http.client.HTTPConnection("127.0.0.1", address.port or 0, timeout=30)
    row = Catalog(store).query("SELECT row_id FROM answers ORDER BY uri LIMIT 1")[0]["row_id"]
    word = json.dumps({"row_id": row, "verdict": "rejected", "answer": None})
    connection.request("POST", f"{address.path}reviews", word, {"Content-Type": "application/json"})
    assert connection.getresponse().status == 200
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=60)
    assert (process.returncode, "reviews" in rest) == (0, True)
    import duckdb

    with duckdb.connect(str(store / "zellige.duckdb"), read_only=True) as index:
        assert index.sql("SELECT reviewer, verdict FROM reviews").fetchall() == [("ada", "rejected")]
