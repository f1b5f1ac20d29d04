"""A model against itself: sound in every dtype, and one wrong place is named."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from zellige.engine import doctor_layers
from zellige.engine.doctor_layers import DoctorError, compare_layers, relative_l2

PIXELS = np.random.default_rng(3).integers(0, 255, (96, 160, 3), dtype=np.uint8)


def spoiled(monkeypatch: pytest.MonkeyPatch, spoil) -> None:
    """``spoil`` changes the model that is looked at, which is loaded second; the reference stays."""
    load, loaded = doctor_layers._runner, []

    def runner(*how):
        loaded.append(load(*how))
        if len(loaded) == 2:
            spoil(loaded[1][0].model)
        return loaded[-1]

    monkeypatch.setattr(doctor_layers, "_runner", runner)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_sound_model_is_within_tolerance_at_every_place(model_folder, dtype):
    report = compare_layers(model_folder, PIXELS, "cpu", dtype)
    assert report.first is None
    assert (report.patches, report.dtype) == (math.prod(PIXELS.shape[:2]) // 16**2, dtype)
    names = [p.name for p in report.places]
    assert names[0] == "patch embedding"
    assert names[-1] == "logits"
    blocks = [p for p in report.places if p.name.startswith("vision block")]
    assert len(blocks) >= 2
    assert all(0.9997 <= p.row_sums[0] <= p.row_sums[1] <= 1.0003 for p in blocks)
    assert all((p.own == 0) == (dtype == "float32") for p in report.places)


@pytest.mark.parametrize(
    ("spoil", "place"),
    [
        (lambda model: model.tower.blocks[1].fc2.weight.mul_(1.5), "vision block 1"),
        (lambda model: model.tower.merger.fc2.weight.mul_(1.5), "vision merger"),
        (lambda model: model.layers[1].norm1.weight.mul_(1.5), "decoder layer 1"),
        (lambda model: model.layers[1].norm2.weight.fill_(math.nan), "decoder layer 1"),
    ],
    ids=["block", "merger", "layer", "nan"],
)
def test_the_wrong_place_is_named_and_those_behind_it_are_sound(model_folder, monkeypatch, spoil, place):
    spoiled(monkeypatch, spoil)
    report = compare_layers(model_folder, PIXELS, "cpu", "float32")
    assert report.first == place
    assert [p.name for p in report.places if not p.sound] == [place]
    behind = report.places[-1]
    assert behind.running > behind.tolerance >= behind.own


def test_probabilities_that_do_not_add_up_are_told(model_folder, monkeypatch):
    whole = doctor_layers.attention.vision_attention
    monkeypatch.setattr(doctor_layers.attention, "vision_attention", lambda *a: whole(*a) * 0.999)
    report = compare_layers(model_folder, PIXELS, "cpu", "float32")
    assert report.first == "vision block 0"
    assert report.places[1].row_sums == pytest.approx((0.999, 0.999), abs=1e-5)


def test_what_comes_out_of_a_place_is_written_whole(model_folder, tmp_path):
    report = compare_layers(model_folder, PIXELS, "cpu", "bfloat16", ["vision block 1", "logits"], tmp_path / "new")
    (first, second) = report.dumped
    assert second.endswith("logits.safetensors")
    shape = next(p.shape for p in report.places if p.name == "vision block 1")
    written = load_file(first)
    assert {name: tuple(t.shape) for name, t in written.items()} == dict.fromkeys(
        ("reference", "own", "running"), shape
    )
    own = next(p.own for p in report.places if p.name == "vision block 1")
    assert relative_l2(written["own"], written["reference"]) == pytest.approx(own)


def test_a_place_that_there_is_not_is_refused_with_those_that_there_are(model_folder):
    with pytest.raises(DoctorError, match=r"vision block 99; there are patch embedding, vision block 0"):
        compare_layers(model_folder, PIXELS, "cpu", "float32", ["vision block 99"])


def test_a_dump_that_cannot_be_written_is_an_error(model_folder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DoctorError, match="file"):
        compare_layers(model_folder, PIXELS, "cpu", "float32", ["logits"], tmp_path / "file")


def test_a_folder_that_is_no_checkpoint_is_told(tmp_path):
    with pytest.raises(DoctorError, match=r"config\.json"):
        compare_layers(tmp_path, PIXELS, "cpu", "float32")


def test_rows_that_took_another_expert_are_left_out_and_no_more():
    want = torch.ones(100, 8)
    got = want.clone()
    got[:5] = -1
    assert relative_l2(got, want, 0.05) == 0
    got[5] = -1
    assert relative_l2(got, want, 0.05) > 0.1
    got[0] = math.nan
    assert relative_l2(got, want, 0.05) == math.inf


def test_a_place_is_sound_by_its_own_error_alone():
    place = doctor_layers.Place("vision block 0", (4, 8), 1e-3, 0.9, 6e-3, (0.9998, 1.0002))
    assert place.sound
    assert not replace(place, own=7e-3).sound
    assert not replace(place, row_sums=(0.9996, 1.0)).sound
    assert not replace(place, row_sums=(1.0, 1.0004)).sound
    assert not replace(place, own=math.nan).sound
