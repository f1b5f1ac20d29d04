"""The checkpoint that ships is whole, small, read alike by transformers, and really looks at images."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace

import pytest
import torch
from ours import Ours, relative_l2
from reference import Reference
from transformers import Qwen3VLMoeForConditionalGeneration

from zellige.data.samples import SceneObject, held_out_kit, parse_caption, scene_from
from zellige.data.samples.fonts import BUILT_IN, Face
from zellige.engine.connect import DEMO_MODEL, EngineSpec, open_engine
from zellige.engine.demo.architecture import BUDGET, Architecture
from zellige.engine.demo.evaluate import answers
from zellige.engine.demo.export import CHAT_TEMPLATE
from zellige.engine.demo.suites import SUITES, Case


def ask_all(cases: list[Case]) -> list[str]:
    async def work() -> list[str]:
        engine = open_engine(EngineSpec())
        try:
            return await answers(engine, cases)
        finally:
            await engine.close()

    return asyncio.run(asyncio.wait_for(work(), 120))


def held_out(name: str, count: int) -> list[Case]:
    """Cases of a suite, drawn with the face that Pillow brings along: the same on every machine."""
    (suite,) = [suite for suite in SUITES if suite.name == name]
    kits = [held_out_kit(f"shipped/{name}/{number}") for number in range(count)]
    return [suite.draw(replace(kit, faces=(Face(BUILT_IN, "Aileron"),))) for kit in kits]


def test_the_manifest_holds_the_sums_of_the_files_and_they_are_small() -> None:
    listed = json.loads((DEMO_MODEL / "manifest.json").read_text())["files"]
    assert {"model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"} <= set(listed)
    for name, digest in listed.items():
        assert hashlib.sha256((DEMO_MODEL / name).read_bytes()).hexdigest() == digest, name
    assert sum(path.stat().st_size for path in DEMO_MODEL.iterdir()) <= 40e6


def test_its_configuration_is_what_training_writes() -> None:
    assert json.loads((DEMO_MODEL / "config.json").read_text()) == Architecture().configuration()
    assert (DEMO_MODEL / "chat_template.jinja").read_text() == CHAT_TEMPLATE
    size = json.loads((DEMO_MODEL / "preprocessor_config.json").read_text())["size"]
    assert size == {"shortest_edge": BUDGET.min_pixels, "longest_edge": BUDGET.max_pixels}


def test_transformers_reads_it_whole_and_gives_the_same_logits() -> None:
    model, report = Qwen3VLMoeForConditionalGeneration.from_pretrained(
        DEMO_MODEL, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    theirs, ours = Reference(DEMO_MODEL, model.eval()), Ours(DEMO_MODEL)
    for case in (*held_out("scene sizes", 2), *held_out("documents", 2)):
        turns = [("user", [case.pixels, case.question])]
        assert relative_l2(ours.logits(turns), theirs.logits(turns)) <= 1e-5


@pytest.mark.parametrize(("name", "count", "least"), [("scenes", 12, 11), ("documents", 16, 14)])
def test_held_out_samples_are_answered_right(name: str, count: int, least: int) -> None:
    cases = held_out(name, count)
    pairs = list(zip(cases, ask_all(cases), strict=True))
    wrong = [(case.question, case.answer, given) for case, given in pairs if case.answer != given]
    assert count - len(wrong) >= least, wrong


def test_the_picture_decides_and_not_the_question() -> None:
    """One question, one size: nine places and three colours are told apart."""
    objects = [SceneObject(("red", "blue", "green")[place % 3], "circle", place, "large") for place in range(9)]
    cases = [
        Case(scene.pixels, "Describe the image.", scene.caption)
        for scene in (scene_from([o], 256, 256) for o in objects)
    ]
    said = ask_all(cases)
    assert said == [case.answer for case in cases]
    assert [parse_caption(text) for text in said] == [(o,) for o in objects]
