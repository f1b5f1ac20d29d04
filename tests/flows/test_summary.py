"""Captions of tiles are summed up by models that follow instructions, and by no others."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from zellige.engine.api import ModelIdentity
from zellige.flows.cli import app

Rows = Callable[[Path, str], list[dict[str, Any]]]


def captioned(image: Path, store: Path, rows: Rows, *options: str) -> dict[str, Any]:
    arguments = ["caption", str(image), "--store", str(store), "--no-prefect", "--json", "--quiet", *options]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    (row,) = rows(store, json.loads(result.stdout)["run_id"])
    return row


def test_tiles_captions_are_summed_up_once_with_the_prompt_that_was_given(
    fake: Any, draw: Callable[..., Path], tmp_path: Path, rows: Rows
) -> None:
    row = captioned(draw("a.png", size=(300, 200)), tmp_path / "store", rows, "--prompt", "What is this?")
    *views, summary = fake.opened[0].asked
    assert set(views) == {"What is this?"}
    assert len(views) == len(row["tiles"])
    assert summary.endswith("\nWhat is this?")
    assert summary.count("colour 10 20 30") == len(views) - 1
    # What the overview costs is paid twice.
    assert row["completion_tokens"] == 4 * (len(views) + 1)


def test_image_seen_whole_is_asked_about_once(fake: Any, draw: Callable[..., Path], tmp_path: Path, rows: Rows) -> None:
    captioned(draw("a.png"), tmp_path / "store", rows)
    assert fake.opened[0].asked == ["Describe the image."]


def test_model_of_fixed_wordings_keeps_the_overviews_caption(
    fake: Any, draw: Callable[..., Path], tmp_path: Path, rows: Rows, monkeypatch: Any
) -> None:
    identity = fake.module.FakeEngine.identity

    async def fixed(self: Any) -> ModelIdentity:
        return replace(await identity(self), follows_instructions=False)

    monkeypatch.setattr(fake.module.FakeEngine, "identity", fixed)
    row = captioned(draw("a.png", size=(300, 200)), tmp_path / "store", rows)
    assert set(fake.opened[0].asked) == {"Describe the image."}
    assert len(fake.opened[0].asked) == len(row["tiles"])
    assert row["answer"] == row["tiles"][0]["answer"]
