"""Held-out suites: cases by number, scores by character, and what evaluation prints and writes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zellige.data.samples import parse_caption
from zellige.data.samples.fonts import find_faces
from zellige.engine.api import Answer, ModelIdentity, Request, TextPart, Usage
from zellige.engine.demo import evaluate
from zellige.engine.demo.architecture import BUDGET
from zellige.engine.demo.suites import SUITES, Case, Suite, edits, in_doubt, score

BY_NAME = {suite.name: suite for suite in SUITES}


class Parrot:
    """An engine that answers every question with itself, and counts how many it holds at once."""

    def __init__(self) -> None:
        self.holds = self.most = 0
        self.closed = False

    async def answer(self, request: Request) -> Answer:
        self.holds += 1
        self.most = max(self.most, self.holds)
        await asyncio.sleep(0.001)
        self.holds -= 1
        (message,) = request.messages
        (text,) = [part.text for part in message.parts if isinstance(part, TextPart)]
        return Answer(text, "stop", Usage())

    async def identity(self) -> ModelIdentity:
        return ModelIdentity("parrot", "f" * 16, "float32", BUDGET, 4096)

    async def close(self) -> None:
        self.closed = True


def cases(*pairs: tuple[str, str]) -> list[Case]:
    return [Case(np.zeros((96, 96, 3), np.uint8), question, answer) for question, answer in pairs]


@pytest.mark.parametrize(
    ("given", "wanted", "count"),
    [("", "", 0), ("abc", "abc", 0), ("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("ab", "ba", 2)],
)
def test_edits_are_counted(given: str, wanted: str, count: int) -> None:
    assert edits(given, wanted) == edits(wanted, given) == count


def test_a_score_counts_exact_answers_and_wrong_characters() -> None:
    suite = Suite("some", 0.5, lambda kit: cases(("?", "!"))[0])
    found = score(suite, cases(("a", "four"), ("b", "five"), ("c", "six")), ["four", "fine", "six"])
    assert found.right == pytest.approx(2 / 3)
    assert found.character_errors == pytest.approx(1 / 11)
    assert found.reached
    assert [(w.number, w.question, w.right, w.given) for w in found.wrong] == [(1, "b", "five", "fine")]
    strict = Suite("strict", 0.05, suite.draw, by_character=True)
    assert not score(strict, cases(("a", "four")), ["fore"]).reached


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_a_case_is_drawn_from_its_name_and_number_alone(suite: Suite) -> None:
    if suite.held_out_faces and not find_faces(held_out=True):
        pytest.skip("no held-out face is installed: `pip install font-lato`")
    first, again = suite.case(1), suite.cases(2)[1]
    assert (first.question, first.answer) == (again.question, again.answer)
    assert np.array_equal(first.pixels, again.pixels)
    assert first.answer
    assert max(first.pixels.shape[:2]) <= 640


def test_sizes_reach_from_96_to_640_pixels_in_both_directions() -> None:
    sizes = np.array([case.pixels.shape[:2] for case in BY_NAME["scene sizes"].cases(60)])
    assert sizes.min() >= 96
    assert sizes.max() <= 640
    assert (sizes.min(0) < 130).all()
    assert (sizes.max(0) > 600).all()


@pytest.mark.parametrize("text", ["O", "l", "x", "iPevQIlS lSR6", "we GetUJinLl", "3Ib x"])
def test_lines_that_nobody_could_read_for_sure_are_told(text: str) -> None:
    assert in_doubt(text)


@pytest.mark.parametrize(
    "text", ["Ink", "INK", "lesson Ill", "g", "Qu4 kX", "INV-0140", "oudail@polar12.io", "RE4I", ""]
)
def test_other_lines_are_asked_however_hard(text: str) -> None:
    assert not in_doubt(text)


def test_suites_ask_what_their_names_say() -> None:
    assert all(parse_caption(case.answer) is not None for case in BY_NAME["scenes"].cases(5))
    assert all(case.answer == "not shown" for case in BY_NAME["absent"].cases(8))
    assert all(case.answer != "not shown" for case in BY_NAME["documents"].cases(8))
    assert all(case.question == "Read the text." for case in BY_NAME["lines"].cases(5))


def test_an_engine_is_asked_many_at_a_time_and_the_answers_keep_their_order() -> None:
    parrot = Parrot()
    said = asyncio.run(evaluate.answers(parrot, cases(*((f"question {n}", "") for n in range(100)))))
    assert said == [f"question {n}" for n in range(100)]
    assert 16 <= parrot.most <= 32


def test_evaluation_prints_a_table_and_writes_all_that_the_scores_depend_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parrot, out = Parrot(), tmp_path / "metrics.json"
    monkeypatch.setattr(evaluate, "open_engine", lambda spec: parrot)
    command = ["evaluate", "--samples", "3", "--suite", "scenes", "--suite", "lines", "--out", str(out)]
    monkeypatch.setattr("sys.argv", command)
    evaluate.main()
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table] == ["suite", "scenes", "lines"]
    assert all("MISSED" in line for line in table[1:])
    written: dict[str, Any] = json.loads(out.read_text())
    assert written["command"].endswith("evaluate --samples 3 --suite scenes --suite lines")
    assert written["model"]["fingerprint"] == "f" * 16
    assert [(s["name"], s["samples"], s["right"], s["reached"]) for s in written["suites"]] == [
        ("scenes", 3, 0.0, False),
        ("lines", 3, 0.0, False),
    ]
    assert written["suites"][0]["wrong"][0]["given"] == "Describe the image."
    assert {"python", "torch", "pillow"} <= set(written["versions"])
    assert parrot.closed
