"""What a row says of answers that were refused and asked for again."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from zellige.data.ledger import RecipeDiffers
from zellige.data.samples import draw_document, held_out_kit
from zellige.data.samples.fonts import package_faces
from zellige.data.turning import turned
from zellige.flows.pipeline import run_job
from zellige.tasks.job import Job, WrongUseError
from zellige.tasks.vote import same

Draw = Callable[..., Path]
Rows = Callable[[Path, str], list[dict[str, Any]]]


def caption(store: Path, inputs: Path, **more: Any) -> dict[str, Any]:
    return run_job(Job("caption", str(store), (str(inputs),), **more))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_row_says_how_its_answer_was_asked_for(fake: Any, draw: Draw, store: Path, rows: Rows) -> None:
    draw("warmer.png", first=fake.module.LOOP_IF_GREEDY)
    draw("smaller.png", first=fake.module.LOOP)
    folder = draw("good.png").parent
    done = caption(store, folder)
    found = {r["uri"].rpartition("/")[2]: r for r in rows(store, done["run_id"])}
    assert {name: (r["status"], r["attempts"], r["error"]) for name, r in found.items()} == {
        "good.png": ("ok", 1, None),
        "warmer.png": ("ok", 2, "asked again, sampled warmer"),
        "smaller.png": ("ok", 3, "asked again, shown at half the pixels"),
    }
    assert done["throughput"]["second_tries"] == 3


def test_number_of_second_tries_is_part_of_the_recipe(fake: Any, draw: Draw, store: Path, rows: Rows) -> None:
    folder = draw("loop.png", first=fake.module.LOOP_IF_GREEDY).parent
    done = caption(store, folder, second_tries=0)
    (row,) = rows(store, done["run_id"])
    assert (row["error_kind"], row["attempts"], row["answer"]) == ("repetition", 1, fake.module.LOOP_TEXT)
    with pytest.raises(RecipeDiffers, match="second_tries: 1 != 0"):
        caption(store, folder, resume=done["run_id"], second_tries=1)


def test_answers_in_another_language_are_refused_and_kept(
    fake: Any, draw: Draw, store: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = draw("a.png").parent
    said = "Ein roter Kreis über einem blauen Quadrat"
    monkeypatch.setattr(fake.module.FakeEngine, "_say", lambda *_: (said, "stop"))
    refused, german = caption(store, folder, language="en"), caption(store, folder, language="de-AT")
    (row,) = rows(store, refused["run_id"])
    assert (row["error_kind"], row["answer"], row["attempts"]) == ("invalid_output", said, 3)
    assert row["error"] == "the answer is in another language (de) than en"
    assert [r["status"] for r in rows(store, german["run_id"])] == ["ok"]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"raw": True, "language": "en"}, "--raw keeps every answer as it came, so --language"),
        ({"raw": True, "second_tries": 1}, "--raw keeps every answer as it came, so --second-tries"),
        ({"second_tries": 3}, "--second-tries 3: give a number from 0 to 2"),
        ({"second_tries": -1}, "from 0 to 2"),
    ],
)
def test_what_does_not_go_together_is_wrong_use(more: dict[str, Any], told: str) -> None:
    with pytest.raises(WrongUseError, match=told):
        Job("caption", "answers", **more)


def test_read_takes_no_language() -> None:
    with pytest.raises(WrongUseError, match="--language does not go with read"):
        Job("read", "answers", language="en")


@pytest.mark.long
def test_documents_on_their_side_are_answered_about_as_upright_ones(tmp_path: Path, store: Path, rows: Rows) -> None:
    """By the checkpoint that ships: invoices, receipts, forms and lists, each with its own questions."""
    count = 40 if os.environ.get("ZELLIGE_TEST_LONG") else 4
    sizes = ((448, 448), (400, 520), (360, 560), (520, 400), (480, 640), (600, 640))
    right, asked = {"as it lies": 0, "turned": 0}, 0
    (tmp_path / "pages").mkdir()
    lines, answers = [], {}
    for n in range(count):
        kit = replace(held_out_kit(f"lying/{n}"), faces=package_faces())
        kind = ("invoice", "receipt", "form", "list")[n % 4]
        page = draw_document(kit, *sizes[n % 6], kind=kind, text_px=(13, 20))
        Image.fromarray(turned(page.pixels, (90, 270)[n // 2 % 2])).save(tmp_path / "pages" / f"{n}.png")
        for place, question in enumerate(page.questions):
            lines.append(f'{{"question_id": "{n}-{place}", "question": "{question.text}", "uri": "{n}.png"}}')
            answers[f"{n}-{place}"] = question.answer
    (tmp_path / "asked.jsonl").write_text("\n".join(lines))
    for name, tries in (("as it lies", 0), ("turned", None)):
        job = Job("ask", str(store), (str(tmp_path / "pages"),), questions_file=str(tmp_path / "asked.jsonl"))
        found = rows(store, run_job(replace(job, second_tries=tries))["run_id"])
        told = {row["question_id"]: row for row in found if row["status"] != "skipped"}
        asked = len(told)
        right[name] = sum(same(row["answer"] or "") == same(answers[question]) for question, row in told.items())
        if tries is None:
            ways = [row for row in told.values() if "turned by" in (row["error"] or "")]
            assert len(ways) > 0.7 * asked
            assert all(row["attempts"] >= 2 for row in ways)
    print(f"right of {asked}: {right}")
    assert right["turned"] >= 0.9 * asked
    assert right["as it lies"] <= 0.4 * asked
