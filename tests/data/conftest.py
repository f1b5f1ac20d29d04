"""Recipes, items and rows for the tests of the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zellige.data.ledger import Run, Shard, Store
from zellige.data.schema import AnswerRow, ErrorKind, Item, Question, Recipe


def make_recipe(**changes: Any) -> Recipe:
    settings: dict[str, Any] = {
        "task": "ask",
        "questions": (Question("colour", "Which colour?"), Question("shape", "Which shape?")),
        "prompt": "{question}",
        "tiling": "auto",
        "sampling": {"max_tokens": 32, "temperature": 0.0, "seed": None},
        "preprocessing": {"patch": 16, "merge": 2, "max_pixels": 448 * 448},
        "model_name": "demo",
        "model_fingerprint": "f" * 32,
        "model_dtype": "float32",
    }
    return Recipe(**(settings | changes))


def make_items(count: int) -> list[Item]:
    return [Item(f"file:///images/{n:06d}.png", size_bytes=n) for n in range(count)]


def make_rows(run: Run, shard: Shard) -> list[AnswerRow]:
    """A row an item and question; every seventh item failed."""
    rows = []
    for item in shard.items:
        for question in run.recipe.questions:
            if int(item.size_bytes or 0) % 7 == 6:
                outcome: dict[str, Any] = {"status": "failed", "error_kind": ErrorKind.TRUNCATED, "error": "cut"}
            else:
                outcome = {"status": "ok", "answer": f"{question.question_id} of {item.size_bytes}"}
            rows.append(AnswerRow.of(run.run_id, run.recipe, item, question, **outcome))
    return rows


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def new_run(store: Store) -> Callable[..., Run]:
    """``new_run(items, shard_items)`` in ``store``."""

    def create(items: int = 10, shard_items: int = 4, **changes: Any) -> Run:
        recipe = changes.pop("recipe", make_recipe())
        return store.create_run(
            recipe, make_items(items), shard_items=shard_items, inputs=["file:///images"], **changes
        )

    return create


@pytest.fixture
def rows_of() -> Callable[[Run, Shard], list[AnswerRow]]:
    return make_rows


@pytest.fixture
def answer_all() -> Callable[[Run], int]:
    """Lease, answer and commit until nothing is left; how many shards that were."""

    def work(run: Run) -> int:
        shards = 0
        while (lease := run.lease()) is not None:
            with lease:
                assert lease.commit(make_rows(run, lease.shard))
                shards += 1
        return shards

    return work


@pytest.fixture
def recipe_with() -> Callable[..., Recipe]:
    return make_recipe


@pytest.fixture
def items_of() -> Callable[[int], list[Item]]:
    return make_items
