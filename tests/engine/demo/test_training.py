"""The training code: grids, packing, geometry, pictures, optimizer, and a few steps that lower the loss."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer

from zellige.data.samples.kit import training_kit
from zellige.data.samples.questions import Question
from zellige.engine.checkpoint import Checkpoint
from zellige.engine.connect import DEMO_MODEL
from zellige.engine.demo.architecture import BUDGET, IM_END, SPECIAL_TOKENS, VOCABULARY, Architecture
from zellige.engine.demo.augment import Augment, _transform
from zellige.engine.demo.drawing import Rows, draw_row
from zellige.engine.demo.export import export, released_layout, restore
from zellige.engine.demo.geometry import make_geometry
from zellige.engine.demo.grids import KINDS, Grid, Kind, choose_grid, grid_of, grids_for, native_size, reachable
from zellige.engine.demo.net import DemoNet
from zellige.engine.demo.optimizer import FlatParameters, Optimizer, orthogonalised
from zellige.engine.demo.packing import SLOTS, pack, prefix_tokens
from zellige.engine.demo.pools import Batch
from zellige.engine.demo.step import Steps
from zellige.engine.demo.stream import Stream
from zellige.engine.demo.tokenizer import make_tokenizer

TOKENIZER = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
SMALL = Architecture(hidden=64, layers=2, expert_width=32, vision_hidden=64, vision_layers=3, vision_width=64)
CPU = torch.device("cpu")


def empty_rows(kind: Kind, grid: Grid, count: int) -> Rows:
    return Rows(*(np.zeros(shape, dtype) for shape, dtype in Rows.shapes(kind, grid, count)))


def drawn(kind: Kind, grid: Grid, count: int) -> Rows:
    rows, kit = empty_rows(kind, grid, count), training_kit(f"rows of {kind}")
    for index in range(count):
        draw_row(kind, grid, kit, TOKENIZER, rows, index)
    return rows


def test_every_size_that_the_model_is_made_for_becomes_a_grid_that_is_trained() -> None:
    trained = set(grids_for("document")) | set(grids_for("scene"))
    for width in range(96, 641, 17):
        for height in range(96, 641, 13):
            assert grid_of(width, height) in trained
    assert set(reachable()) == trained


def test_native_sizes_become_their_grid() -> None:
    rng = random.Random(1)
    for kind in KINDS:
        for _ in range(50):
            grid = choose_grid(kind, rng)
            assert grid in grids_for(kind)
            assert BUDGET.resized(*native_size(grid, rng)) == (grid.width, grid.height)


def test_questions_are_packed_each_into_its_slot_and_answers_are_marked() -> None:
    ids, answers = np.zeros(sum(SLOTS["scene"]), np.int16), np.zeros(sum(SLOTS["scene"]), np.uint8)
    asked = [Question("What is it?", "a star"), None, Question("How?", "so " * 60), Question("Why?", "no")]
    pack(TOKENIZER, "scene", asked, ids, answers)
    starts = np.cumsum((0, *SLOTS["scene"]))
    slots = [slice(a, b) for a, b in pairwise(starts)]
    said = [TOKENIZER.decode(ids[slot][answers[slot] == 1].tolist(), skip_special_tokens=False) for slot in slots]
    # The second is no question and the third is too long for its slot.
    assert said == ["a star<|im_end|>", "", "", "no<|im_end|>"]
    assert not ids[slots[1]].any()
    assert not ids[slots[2]].any()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_every_kind_are_drawn_with_questions_and_marks(kind: Kind) -> None:
    grid = grids_for(kind)[3]
    rows = drawn(kind, grid, 3)
    assert rows.images.shape[1:3] == (grid.height, grid.width)
    assert (rows.answers.sum(1) > 0).all()
    assert (rows.ids[rows.answers == 1] == IM_END).sum() >= 3
    if kind in ("line", "paragraph"):
        assert ((rows.marks[..., 2] > 0).sum(1) > 0).all()


def test_a_slot_sees_the_image_and_itself_and_no_other_slot() -> None:
    net, grid = DemoNet(SMALL).eval(), Grid(3, 4)
    geometry = make_geometry(SMALL, grid, (6, 6), CPU, torch.float32)
    prefix = torch.tensor(prefix_tokens(TOKENIZER))
    ids = torch.randint(0, VOCABULARY, (1, 12), generator=torch.Generator().manual_seed(1))
    changed = ids.clone()
    changed[0, 2] = (changed[0, 2] + 1) % VOCABULARY
    with torch.no_grad():
        _, image, deep = net.see(torch.rand(1, grid.cells * 4, 768), geometry)
        before, _ = net.say(image, deep, prefix, ids, geometry)
        after, _ = net.say(image, deep, prefix, changed, geometry)
        other_image, _ = net.say(image + 1, deep, prefix, ids, geometry)
    same = torch.isclose(before, after, atol=1e-5).all(-1)[0].tolist()
    assert same == [True] * 2 + [False] * 4 + [True] * 6
    assert not torch.isclose(before, other_image, atol=1e-3).all(-1).any()


def test_characters_move_with_the_ink_when_a_sheet_is_turned_shrunk_and_shifted() -> None:
    generator = torch.Generator().manual_seed(0)
    ink, marks = torch.zeros(32, 1, 96, 128), torch.zeros(32, 1, 3)
    ink[:, :, 30:38, 80:88] = 1
    marks[:, 0] = torch.tensor([84.0, 34.0, 5.0])
    turn, scale = torch.rand(32, generator=generator) * 0.3 - 0.15, torch.rand(32, generator=generator) * 0.5 + 0.7
    shift = torch.rand(32, 2, generator=generator) * 20 - 10
    grid, moved = _transform(marks, turn, scale, shift, 96, 128)
    turned = F.grid_sample(ink, grid, mode="bilinear", align_corners=False)[:, 0]
    weight = turned / turned.sum((1, 2), keepdim=True)
    x = (weight * (torch.arange(128) + 0.5)).sum((1, 2))
    y = (weight * (torch.arange(96)[:, None] + 0.5)).sum((1, 2))
    assert float((torch.stack([x, y], -1) - moved[:, 0]).abs().max()) < 0.3
    assert float((moved[:, 0] - torch.tensor([84.0, 34.0])).abs().max()) > 5


def test_pictures_keep_every_character_in_view_with_its_label() -> None:
    torch.manual_seed(0)
    augment = Augment(CPU)
    augment.difficulty = 1.0
    rows = drawn("line", Grid(2, 10), 4)
    ink, marks, sheets = (torch.from_numpy(array) for array in (rows.images, rows.marks, rows.sheets))
    for _ in range(10):
        pictures, labels = augment.ink(ink, marks, sheets[:, :2], sheets[:, 2])
        assert pictures.shape == (4, 3, 64, 320)
        assert 0 <= float(pictures.min()) < float(pictures.max()) <= 1
        shown = (labels > 0).sum((1, 2))
        printed = (marks[..., 2] > 0).sum(1)
        # A patch has room for four characters; thin ones may be closer.
        assert (shown <= printed).all()
        assert (shown >= 0.9 * printed).all()


def test_muon_makes_singular_values_nearly_equal() -> None:
    matrices = torch.randn(3, 24, 40, generator=torch.Generator().manual_seed(2)) * torch.logspace(-1, 0, 24)[:, None]
    values = torch.linalg.svdvals(orthogonalised(matrices))
    assert float(values.min()) > 0.3
    assert float(values.max()) < 1.3


def test_a_few_steps_on_one_batch_lower_its_loss() -> None:
    torch.manual_seed(1)
    grid, kind = grids_for("line")[0], "line"
    rows = drawn(kind, grid, 8)
    batch = Batch(*(torch.from_numpy(array) for array in rows.arrays()))
    net = DemoNet(SMALL)
    flat = FlatParameters(net, CPU, torch.float32)
    optimizer = Optimizer(flat, 0.05)
    steps = Steps(net, prefix_tokens(TOKENIZER), CPU, torch.float32, scale=0.02)
    steps.augment.difficulty = 0.0
    assert steps.batch_size(kind, grid.cells) == len(rows.ids)
    losses = []
    for _ in range(12):
        steps.run(kind, grid, batch)
        optimizer.step(5e-3)
        losses.append(steps.read_statistics()[kind]["first"])
    assert losses[0] > 4
    assert losses[-1] < 0.8 * losses[0]
    assert not flat.gradients.any()


def test_drawing_processes_hand_over_whole_rows() -> None:
    stream = Stream(workers=1, seed="test", tokenizer=DEMO_MODEL / "tokenizer.json", chunk=2)
    try:
        stream.set_difficulty(1.0)
        for _ in range(3):
            ready = stream.take(timeout=60)
            rows = stream.rows(ready)
            assert ready.rows == len(rows.images) == 2
            assert rows.images.shape[1:3] == (ready.grid.height, ready.grid.width)
            assert (rows.answers.sum(1) > 0).all()
            stream.release(ready)
    finally:
        stream.stop()


def test_what_is_exported_is_what_was_trained_but_for_the_reading_head(tmp_path: Path) -> None:
    state = {name: value.to(torch.bfloat16) for name, value in DemoNet(SMALL).state_dict().items()}
    export(state, SMALL, DEMO_MODEL / "tokenizer.json", tmp_path)
    loaded = load_file(tmp_path / "model.safetensors")
    assert Checkpoint(tmp_path).config == SMALL.configuration()
    assert {name for name in state if name not in loaded} == {n for n in state if n.startswith("reading")}
    for name, value in loaded.items():
        assert value.dtype == torch.bfloat16
        assert torch.equal(value.transpose(1, 2) if ".experts." in name else value, state[name]), name
    assert {name: value.shape for name, value in released_layout(state).items()} == {
        name: value.shape for name, value in loaded.items()
    }


def test_training_goes_on_from_the_weights_that_were_exported(tmp_path: Path) -> None:
    before, after = DemoNet(SMALL), DemoNet(SMALL)
    export(before.state_dict(), SMALL, DEMO_MODEL / "tokenizer.json", tmp_path)
    reading = {n: v.clone() for n, v in after.state_dict().items() if n.startswith("reading")}
    restore(after, tmp_path)
    for name, value in after.state_dict().items():
        want = reading[name] if name in reading else before.state_dict()[name].to(torch.bfloat16).to(value.dtype)
        assert torch.equal(value, want), name


def test_a_checkpoint_of_another_size_is_not_gone_on_from(tmp_path: Path) -> None:
    export(DemoNet(SMALL).state_dict(), SMALL, DEMO_MODEL / "tokenizer.json", tmp_path)
    deeper = replace(SMALL, layers=SMALL.layers + 1)
    with pytest.raises(ValueError, match="not a checkpoint of this network"):
        restore(DemoNet(deeper), tmp_path)


def test_a_tokenizer_has_the_special_tokens_last_and_loses_no_text() -> None:
    tokenizer = make_tokenizer(samples=20)
    for number, token in enumerate(SPECIAL_TOKENS):
        assert tokenizer.token_to_id(token) == VOCABULARY - len(SPECIAL_TOKENS) + number
    for text in ("What is the total?", "INV-0042 €9.50", "é 汉字 🙂\n  two"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


@pytest.mark.skipif(os.environ.get("ZELLIGE_TEST_LONG") != "1", reason="long: set ZELLIGE_TEST_LONG=1")
@pytest.mark.long
def test_two_steps_of_training_write_a_checkpoint_that_answers(tmp_path: Path) -> None:
    options = ["--device", "cpu", "--steps", "2", "--scale", "0.01", "--workers", "1", "--out", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "zellige.engine.demo.train", *options], check=True, timeout=240)
    asked = ["--model", str(tmp_path), "--samples", "1", "--suite", "lines"]
    subprocess.run([sys.executable, "-m", "zellige.engine.demo.evaluate", *asked], check=True, timeout=120)
    assert (tmp_path / "training-log.jsonl").read_text().splitlines()[-1].startswith('{"event": "exported"')
