"""Presets, files, the environment and flags: which counts, what is refused, and what of it reaches a run."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from zellige.data.ledger import Store
from zellige.engine.api import Grammar
from zellige.engine.config import ConfigError, EngineConfig
from zellige.flows.cli import app
from zellige.flows.pipeline import run_job
from zellige.flows.settings import SettingError, all_keys, open_preset, preset_names, resolve
from zellige.tasks.job import Job

Draw = Callable[..., Path]


def toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


def said(*arguments: str | Path, code: int = 0, **environment: str) -> Any:
    done = CliRunner(env=environment).invoke(app, [*map(str, arguments)])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def test_flag_counts_more_than_environment_than_file_than_preset_than_default(tmp_path: Path) -> None:
    file = toml(tmp_path, "max_tokens = 11\ntemperature = 0.25\nseed = 5\n[engine]\nstep_tokens = 512\n")
    call = ["config", "show", "--preset", "tags", "--preset", "cpu", "--config", file, "--max-tokens", "7", "--json"]
    told = said(*call, ZELLIGE_SEED="6", ZELLIGE_MAX_TOKENS="8", ZELLIGE_ENGINE_VISION_PATCHES="2048")
    settings = {key: (s["value"], s["source"]) for key, s in told["settings"].items()}
    assert told["flow"] == "caption"
    assert settings["max_tokens"] == (7, "flag --max-tokens")
    assert settings["seed"] == (6, "environment ZELLIGE_SEED")
    assert settings["temperature"] == (0.25, f"file {file}")
    assert settings["prompt"][1] == "preset tags"
    assert settings["dtype"] == ("float32", "preset cpu")
    assert settings["shard_items"] == (256, "default")
    assert settings["engine.step_tokens"] == (512, f"file {file}")
    assert settings["engine.vision_patches"] == (2048, "environment ZELLIGE_ENGINE_VISION_PATCHES")
    assert settings["engine.block_tokens"][1] == "default"
    assert list(settings) == all_keys()
    shown = CliRunner().invoke(app, ["config", "show", "read", "--seed", "3"])
    assert "Read the text." in shown.output
    assert "flag --seed" in shown.output


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("max_token = 5", "did you mean max_tokens?"),
        ("max-tokens = 5", "did you mean max_tokens?"),
        ("[engine]\nstep_token = 5", "did you mean engine.step_tokens?"),
        ("max_sequences = 5", "did you mean engine.max_sequences?"),
        ("zzz = 5", "there are prompt"),
        ("[prompt]\ntext = 'x'", "give a text"),
        ("max_tokens = '5'", "give a whole number"),
        ("max_tokens = true", "give a whole number"),
        ("temperature = [1]", "give a number"),
        ("engines = 'http://x/v1'", "give a list of texts"),
        ("[engine]\nstep_tokens = 1.5", "give a whole number"),
        ("[engine]\nchild = 1", "give true or false"),
        ("json_schema = '{'", "no JSON"),
        ("json_schema = 'none.json'", "cannot be read"),
        ("a = ", "no TOML"),
    ],
)
def test_file_with_a_mistake_is_refused_with_what_to_write(tmp_path: Path, text: str, hint: str) -> None:
    with pytest.raises(SettingError, match=r"mine\.toml|schema") as caught:
        resolve({}, [], toml(tmp_path, text), {})
    assert hint in str(caught.value)


def test_mistyped_variable_is_refused_and_those_of_others_are_let_be() -> None:
    with pytest.raises(SettingError, match="did you mean ZELLIGE_MAX_TOKENS"):
        resolve({}, [], None, {"ZELLIGE_MAX_TOKEN": "5"})
    with pytest.raises(SettingError, match="ZELLIGE_MAX_TOKENS: max_tokens is 'many'"):
        resolve({}, [], None, {"ZELLIGE_MAX_TOKENS": "many"})
    with pytest.raises(SettingError, match=r"engine\.child is 'maybe'; give true or false"):
        resolve({}, [], None, {"ZELLIGE_ENGINE_CHILD": "maybe"})
    assert resolve({}, [], None, {"ZELLIGE_ENGINE_CHILD": "False"})["engine.child"].value is False
    others = {"ZELLIGE_ENGINE_KEY": "x", "ZELLIGE_ENGINE_KEY_FILE": "x", "ZELLIGE_TEST_LONG": "1", "MAX_TOKENS": "5"}
    assert resolve({}, [], None, others | {"ZELLIGE_SEED": ""}) == {}
    urls = resolve({}, [], None, {"ZELLIGE_ENGINES": "http://a/v1, http://b/v1"})
    assert urls["engines"].value == ["http://a/v1", "http://b/v1"]


def test_unknown_preset_and_one_of_another_flow_are_told() -> None:
    with pytest.raises(SettingError, match="did you mean receipt"):
        resolve({}, ["reciept"], None, {})
    with pytest.raises(SettingError, match="vqa is for zellige ask"):
        resolve({}, ["vqa"], None, {}, flow="caption")


@pytest.mark.parametrize("name", preset_names())
def test_presets_make_sense(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = open_preset(name)
    assert preset.about
    assert preset.values
    limits = {k.removeprefix("engine."): v for k, v in preset.values.items() if k.startswith("engine.")}
    values = {k: v for k, v in preset.values.items() if not k.startswith("engine.")}
    if preset.flow is None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        config = EngineConfig.load("cpu" if name == "cpu" else "cuda", limits=limits)
        assert config.max_sequences == limits["max_sequences"]
        assert not {"prompt", "json_schema"} & values.keys()
    else:
        values |= {"engines": tuple(values.get("engines", ()))}
        job = Job(preset.flow, "store", **values)  # type: ignore[arg-type]
        assert job.prompt
        assert "  " not in job.prompt
    if schema := values.get("json_schema"):
        import jsonschema

        jsonschema.Draft202012Validator.check_schema(json.loads(schema))


def test_paths_and_schemas_of_a_file_are_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"type": "object"}')
    found = resolve({}, [], toml(tmp_path, 'json_schema = "s.json"\nmodel = "m"'), {})
    assert (found["json_schema"].value, found["model"].value) == ('{"type": "object"}', str(tmp_path / "m"))


_TWO_WAYS = {"gpu_memory_fraction": 0.5, "cache_bytes": 1000}


def test_limits_of_the_engine_take_the_place_of_the_devices_own(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig.load("cpu", limits={"cache_bytes": 1000, "max_sequences": 3})
    assert (config.cache_bytes, config.max_sequences) == (1000, 3)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    fraction, number = (EngineConfig.load("cuda", limits={k: v}) for k, v in _TWO_WAYS.items())
    assert (fraction.gpu_memory_fraction, fraction.cache_bytes) == (0.5, None)
    assert (number.gpu_memory_fraction, number.cache_bytes) == (None, 1000)
    with pytest.raises(ConfigError, match=r"engine\.nonsense"):
        EngineConfig.load("cpu", limits={"nonsense": 3})


def test_preset_reaches_the_run_its_engine_and_each_request(fake: Any, draw: Draw, tmp_path: Path) -> None:
    asked: list[Grammar | None] = []
    answer = fake.module.FakeEngine.answer

    async def noting(self: Any, request: Any) -> Any:
        asked.append(request.grammar)
        return await answer(self, request)

    fake.module.FakeEngine.answer = noting
    store = tmp_path / "store"
    plain = ("--store", store, "--no-prefect", "--quiet", "--json")
    # The fake engine takes no heed of the schema: its colours are not JSON.
    told = said("caption", draw("a.png"), "--preset", "tags", "--preset", "cpu", "--seed", "4", *plain, code=3)
    run = Store(store).open_run(told["run_id"])
    assert told["errors"] == {"invalid_output": 1}
    assert run.recipe.sampling["max_tokens"] == 256
    assert run.recipe.sampling["seed"] == 4
    assert run.recipe.prompt.startswith("List tags")
    assert {g.kind for g in asked if g} == {"json_schema"}
    assert json.loads(asked[0].source)["required"] == ["tags"]  # type: ignore[union-attr]
    (spec,) = fake.specs
    assert (spec.device, spec.dtype, dict(spec.limits)["step_tokens"]) == ("cpu", "float32", 1024)
    # A resumed run keeps its own recipe, whatever the environment says by now.
    again = said("caption", "--resume", told["run_id"], *plain, code=3, ZELLIGE_MAX_TOKENS="9", ZELLIGE_PROMPT="Other.")
    assert again["run_id"] == told["run_id"]
    assert said("caption", "--resume", told["run_id"], "--max-tokens", "9", *plain, code=2)["exit_code"] == 2


def test_prompt_goes_around_each_question(fake: Any, draw: Draw, tmp_path: Path) -> None:
    plain = ("--store", tmp_path / "store", "--no-prefect", "--quiet", "--json")
    said("ask", draw("a.png"), "--question", "Which {question}?", "--preset", "vqa", *plain)
    (text,) = fake.opened[0].asked
    assert text.startswith("Which {question}?\n\nAnswer from this image alone")
    wrong = said("ask", draw("a.png"), "--question", "Which?", "--prompt", "Be kind.", *plain, code=2)
    assert "{question}" in wrong["error"]


def test_schema_does_not_go_with_reading(fake: Any, draw: Draw, tmp_path: Path) -> None:
    file = toml(tmp_path, "json_schema = '{}'")
    told = said("read", draw("a.png"), "--config", file, "--store", tmp_path / "s", "--no-prefect", "--json", code=2)
    assert "read" in told["error"]


@pytest.mark.parametrize("flow", ["caption", "ask", "read"])
def test_every_setting_is_a_small_parameter_of_its_prefect_flow(
    fake: Any, draw: Draw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flow: str
) -> None:
    taken = inspect.signature(importlib.import_module(f"zellige.flows.{flow}").__dict__[flow].fn)
    started: list[dict[str, Any]] = []

    def start(_: str, parameters: dict[str, Any], __: bool) -> Any:
        taken.bind(**json.loads(json.dumps(parameters)))
        started.append(parameters)
        return run_job(Job(flow, str(tmp_path / "store"), (str(path),), questions=tuple(asked[1::2])))  # type: ignore[arg-type]

    monkeypatch.setattr("zellige.flows.commands._run_in_prefect", start)
    path, asked = draw("a.png"), ["--question", "Which?"] if flow == "ask" else []
    file = toml(tmp_path, 'prompt = "{question} Say."\nworkers = 2\n[engine]\nmax_sequences = 3\n')
    said(flow, path, *asked, "--config", file, "--store", tmp_path / "store", "--quiet", "--json")
    (parameters,) = started
    assert (parameters["workers"], parameters["engine_limits"]) == (2, {"max_sequences": 3})


def test_presets_are_listed() -> None:
    told = said("config", "presets", "--json")
    assert [p["name"] for p in told] == preset_names()
    assert {"receipt", "vqa", "4x3090", "1x24gb", "cpu"} <= set(preset_names())
