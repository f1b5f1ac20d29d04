"""Which items of a listing are new to runs of the same recipe."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from zellige.data.answered import MOST_FAILURES, Answered
from zellige.data.ledger import Run, Store
from zellige.data.schema import AnswerRow, ErrorKind, Item
from zellige.data.sources.base import ReadError

A = Item("file:///a.png", file_version="10-1")
B = Item("file:///b.pdf", page=1, file_version="20-1")
NONE = Item("http://h/c.png")
NewRun = Callable[..., Run]


@pytest.fixture
def answer(store: Store, new_run: NewRun) -> Callable[..., Run]:
    """A finished run over ``items`` whose bytes are their addresses; those in ``failed`` failed."""

    def make(*items: Item, failed: tuple[Item, ...] = ()) -> Run:
        run = store.create_run(new_run(0).recipe, items, shard_items=2, inputs=["file:///"])
        while (lease := run.lease()) is not None:
            with lease:
                lease.commit([_row(run, i, q, i in failed) for i in lease.shard.items for q in run.recipe.questions])
        return run

    def _row(run: Run, item: Item, question: object, failed: bool) -> AnswerRow:
        outcome = {"error_kind": ErrorKind.LENGTH} if failed else {"answer": "x"}
        sha = hashlib.sha256(read(item)).hexdigest()
        return AnswerRow.of(
            run.run_id, run.recipe, item, question, "failed" if failed else "ok", content_sha256=sha, **outcome
        )

    return make


def read(item: Item) -> bytes:
    return item.uri.encode()


def never(item: Item) -> bytes:
    raise AssertionError(f"{item} was opened")


def test_items_of_the_same_version_are_left_out_without_being_opened(answer) -> None:
    other = Item("file:///d.png", file_version="10-1")
    assert list(Answered([answer(A, B)]).new([A, other, B], never)) == [other]
    assert list(Answered([]).new([A, B, NONE], never)) == [A, B, NONE]


def test_changed_file_is_opened_and_new_only_where_its_content_is(answer) -> None:
    answered = Answered([answer(A, B, NONE)])
    touched = replace(A, file_version="10-2")
    assert list(answered.new([touched, NONE], read)) == []
    assert list(answered.new([touched], lambda _: b"another")) == [touched]


def test_content_that_was_answered_under_another_name_is_new(answer) -> None:
    assert list(Answered([answer(A)]).new([replace(A, uri="file:///copy.png", item_id="")], read)) != []


def test_pages_of_a_changed_document_are_read_once(answer) -> None:
    pages = [replace(B, page=page, item_id="") for page in (1, 2, 3)]
    answered, opened = Answered([answer(*pages)]), []
    changed = [replace(page, file_version="20-2") for page in pages]
    assert list(answered.new(changed, lambda item: opened.append(item) or read(item))) == []
    assert len(opened) == 1


def test_another_question_of_the_item_itself_makes_it_new(answer) -> None:
    asked = replace(A, metadata=(("question", "Which colour?"),))
    answered = Answered([answer(asked)])
    assert list(answered.new([asked], never)) == []
    other = replace(asked, metadata=(("question", "Which shape?"),), file_version="10-2")
    assert list(answered.new([other], read)) == [other]


def test_failed_item_is_asked_again_until_it_failed_too_often_with_its_file_unchanged(answer) -> None:
    runs: list[Run] = []
    for _ in range(MOST_FAILURES):
        assert list(Answered(runs).new([A], never)) == [A]
        runs.append(answer(A, failed=(A,)))
    assert list(Answered(runs).new([A], never)) == []
    changed = replace(A, file_version="11-2")
    assert list(Answered(runs).new([changed], never)) == [changed]


def test_item_without_a_version_that_fails_is_asked_again_every_time(answer) -> None:
    runs = [answer(NONE, failed=(NONE,)) for _ in range(MOST_FAILURES + 1)]
    assert list(Answered(runs).new([NONE], never)) == [NONE]


def test_item_that_was_answered_after_it_failed_is_not_new(answer) -> None:
    assert list(Answered([answer(A, failed=(A,)), answer(A)]).new([A], never)) == []


def test_item_whose_bytes_cannot_be_had_any_more_is_new_so_that_a_row_says_so(answer) -> None:
    def gone(item: Item) -> bytes:
        raise ReadError(ErrorKind.NOT_FOUND, "gone")

    touched = replace(A, file_version="10-2")
    assert list(Answered([answer(A)]).new([touched], gone)) == [touched]


def test_only_shards_that_are_whole_count(store: Store, new_run: NewRun) -> None:
    run = store.create_run(new_run(0).recipe, [A, B], shard_items=1, inputs=["file:///"])
    with run.lease(0) as lease:
        rows = [
            AnswerRow.of(run.run_id, run.recipe, A, q, "ok", answer="x", content_sha256="0" * 64)
            for q in run.recipe.questions
        ]
        lease.commit(rows)
    assert list(Answered([run]).new([A, B], never)) == [B]
