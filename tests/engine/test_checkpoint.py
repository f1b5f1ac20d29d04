"""What is wrong with a folder is said in one message, and nothing is ever unpickled."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from zellige.engine import checkpoint as module
from zellige.engine.checkpoint import Checkpoint, CheckpointError, Habits, Weights
from zellige.engine.layers.experts import load_experts


def folder(path: Path, tensors: dict[str, torch.Tensor] | None = None) -> Path:
    (path / "config.json").write_text("{}")
    save_file(tensors or {"a": torch.arange(6.0).view(2, 3)}, path / "model.safetensors")
    return path


def weights(path: Path) -> Weights:
    return Weights(Checkpoint(path), torch.device("cpu"), torch.float32)


def test_missing_wrong_and_unknown_tensors_are_named_together(tmp_path: Path) -> None:
    folder(tmp_path, {"a": torch.zeros(2, 3), "b": torch.zeros(4), "stray": torch.zeros(1)})
    with pytest.raises(CheckpointError) as caught, weights(tmp_path) as w:
        w.take("a", 3, 2)
        w.take("b", 4)
        w.take("c", 5)
    message = str(caught.value)
    assert "a: is [2, 3], expected [3, 2]" in message
    assert "c: missing (expected [5])" in message
    assert "stray: not part of this model" in message
    assert "b:" not in message


def test_a_quantised_tensor_is_not_taken_for_a_float(tmp_path: Path) -> None:
    folder(tmp_path, {"a": torch.zeros(2, dtype=torch.int8)})
    with pytest.raises(CheckpointError, match="int8"), weights(tmp_path) as w:
        w.take("a", 2)


def test_shards_are_read_through_their_index(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"a": torch.ones(2)}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": torch.ones(3) * 2}, tmp_path / "model-00002-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with weights(tmp_path) as w:
        assert w.take("a", 2).tolist() == [1, 1]
        assert w.take("b", 3).tolist() == [2, 2, 2]
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model-00002-of-00002"):
        Checkpoint(tmp_path)


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was opened",))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.pth"])
def test_pickled_weights_are_refused_unopened(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError, match="pickled"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("cut", [0, 4, 40, -1])
def test_a_cut_weight_file_is_said_to_be_cut(tmp_path: Path, cut: int) -> None:
    path = folder(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        weights(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_a_broken_config_is_named(tmp_path: Path, text: str) -> None:
    folder(tmp_path)
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Checkpoint(tmp_path)


def test_no_folder_and_no_weights_say_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        Checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        Checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        Checkpoint(tmp_path)


def test_a_manifest_catches_one_changed_byte(tmp_path: Path) -> None:
    path = folder(tmp_path) / "model.safetensors"
    (tmp_path / "manifest.json").write_text(json.dumps({"files": {path.name: module._sha256(path)}}))
    Checkpoint(tmp_path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="sha256"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("whole", [True, False], ids=["small file", "large file"])
def test_fingerprint_changes_with_weights_and_config_and_with_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    if not whole:
        monkeypatch.setattr(module, "WHOLE_BYTES", 0)
    folder(tmp_path, {"a": torch.zeros(1000)})
    first = Checkpoint(tmp_path).fingerprint()
    (tmp_path / "README.md").write_text("nothing to do with answers")
    assert Checkpoint(tmp_path).fingerprint() == first
    folder(tmp_path, {"a": torch.ones(1000)})
    second = Checkpoint(tmp_path).fingerprint()
    (tmp_path / "config.json").write_text('{"x": 1}')
    assert len({first, second, Checkpoint(tmp_path).fingerprint()}) == 3


E, H, INNER = 3, 8, 5


def experts(path: Path, gate_up: tuple[int, ...], down: tuple[int, ...], hidden: int = H, inner: int = INNER):
    folder(path, {"e.gate_up_proj": torch.randn(gate_up), "e.down_proj": torch.randn(down)})
    with weights(path) as w:
        return load_experts(w, "e", E, hidden, inner), w


def test_both_layouts_of_experts_load_to_the_same(tmp_path: Path) -> None:
    gate_up, down = torch.randn(E, H, 2 * INNER), torch.randn(E, INNER, H)
    stores = []
    for name, layout in (("released", lambda t: t), ("newer", lambda t: t.transpose(1, 2).contiguous())):
        path = tmp_path / name
        path.mkdir()
        folder(path, {"e.gate_up_proj": layout(gate_up), "e.down_proj": layout(down)})
        with weights(path) as w:
            stores.append(load_experts(w, "e", E, H, INNER))
    for store in stores:
        assert torch.equal(store.gate_up, gate_up)
        assert torch.equal(store.down, down)


def test_where_one_tensor_cannot_tell_the_layout_the_other_does(tmp_path: Path) -> None:
    # 2I = H: gate_up is square in both layouts.
    store, _ = experts(tmp_path, (E, 8, 8), (E, 8, 4), hidden=8, inner=4)
    assert store.down.shape == (E, 4, 8)
    # I = H: down is.
    store, _ = experts(tmp_path, (E, 16, 8), (E, 8, 8), hidden=8, inner=8)
    assert store.gate_up.shape == (E, 8, 16)


@pytest.mark.parametrize(
    ("gate_up", "down"),
    [((E, H, 2 * INNER), (E, H, INNER)), ((E, 2 * INNER, H), (E, INNER, H)), ((E, 4, 4), (E, 4, 4))],
)
def test_layouts_that_contradict_each_other_are_refused(tmp_path: Path, gate_up, down) -> None:
    with pytest.raises(CheckpointError, match="neither the released layout"):
        experts(tmp_path, gate_up, down)


def test_habits_are_those_of_a_large_model_where_the_folder_says_nothing(tmp_path: Path) -> None:
    folder(tmp_path)
    assert Checkpoint(tmp_path).habits() == Habits(follows_instructions=True, lines_at_once=None)
    (tmp_path / "zellige.json").write_text('{"follows_instructions": false, "lines_at_once": 1}')
    assert Checkpoint(tmp_path).habits() == Habits(follows_instructions=False, lines_at_once=1)


@pytest.mark.parametrize("said", ['{"follows_instructions": "no"}', '{"lines_at_once": 0}', '{"lines_at_once": true}'])
def test_habits_that_make_no_sense_are_refused(tmp_path: Path, said: str) -> None:
    folder(tmp_path)
    (tmp_path / "zellige.json").write_text(said)
    with pytest.raises(CheckpointError, match="lines_at_once a number"):
        Checkpoint(tmp_path).habits()
