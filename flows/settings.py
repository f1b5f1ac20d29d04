"""Settings in layers: what a preset says, over it a file, over that the environment, and over all what a flag says.

A key that there is not is an error that names the nearest one. Each value remembers where it came from.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from zellige.tasks.job import WrongUseError

PRESETS = Path(__file__).parent.parent / "configs" / "presets"
ENGINE_DEFAULTS = PRESETS.parent / "engine.toml"
PREFIX = "ZELLIGE_"
#: The table of the engine's own limits, in files and as the beginning of keys.
ENGINE = "engine"
#: What a preset says of itself.
ABOUT, FLOW = "about", "flow"
#: How like a variable of a setting another one has to be, to be taken for that one mistyped.
NEAR = 0.92

Kind = Literal["text", "whole number", "number", "true or false", "texts", "path", "schema"]
#: Every setting but the engine's limits: its kind, and whether it decides answers (a resumed run keeps its own).
KEYS: Mapping[str, tuple[Kind, bool]] = {
    "prompt": ("text", True),
    "tile": ("text", True),
    "max_tokens": ("whole number", True),
    "temperature": ("number", True),
    "seed": ("whole number", True),
    "json_schema": ("schema", True),
    "language": ("text", True),
    "second_tries": ("whole number", True),
    "model": ("path", False),
    "engines": ("texts", False),
    "device": ("text", False),
    "dtype": ("text", False),
    "shard_items": ("whole number", False),
    "workers": ("whole number", False),
    "runner": ("text", False),
    "runner_address": ("text", False),
    "loops": ("whole number", False),
}

#: Settings that ``read`` has not, and why.
NOT_FOR_READ = {"json_schema": "joins text", "language": "gives what is printed in whatever language"}


class SettingError(WrongUseError):
    """A setting that there is not, or a value that is none of its; the message says which and what to give."""


@dataclass(frozen=True)
class Setting:
    """One value, and the layer that it came from in words."""

    value: Any
    source: str


@dataclass(frozen=True)
class Preset:
    """A file of ``configs/presets``: what it is for, the flow that its prompt suits (None: any), and its values."""

    name: str
    about: str
    flow: str | None
    values: Mapping[str, Any]


def resolve(
    flags: Mapping[str, Any],
    presets: Sequence[str],
    file: Path | None,
    environment: Mapping[str, str],
    *,
    flow: str | None = None,
    resumed: bool = False,
) -> dict[str, Setting]:
    """Every setting that some layer says; ``flags`` are values by key, None where not given. Raises SettingError.

    Of several presets the later one counts. Where a run is ``resumed``, what decides its answers is its own, unless a
    flag says it. The environment's variables are ``ZELLIGE_`` and the key in capitals, a dot as ``_``.
    """
    layers: list[dict[str, Setting]] = []
    for preset in map(open_preset, presets):
        if flow is not None and preset.flow not in (None, flow):
            raise SettingError(f"--preset {preset.name} is for zellige {preset.flow}, not for {flow}")
        layers.append({key: Setting(value, f"preset {preset.name}") for key, value in preset.values.items()})
    if file is not None:
        layers.append({key: Setting(value, f"file {file}") for key, value in _file_values(file).items()})
    said = _environment_values(environment)
    layers.append({key: Setting(value, f"environment {_variable(key)}") for key, value in said.items()})
    found = {
        key: setting
        for layer in layers
        for key, setting in layer.items()
        if not (resumed and key in KEYS and KEYS[key][1])
    }
    for key, value in flags.items():
        if value not in (None, []):
            found[key] = Setting(_checked(key, value, "", None), f"flag {flag_of(key)}")
    return found


def settle(flow: str, parameters: dict[str, Any]) -> None:
    """Put into a flow's parameters what its presets, its file and the environment say, and take out their names."""
    names, file = parameters.pop("presets", []), parameters.pop("config", None)
    flags = {key: parameters.get(key) for key in KEYS}
    found = resolve(flags, names, file, os.environ, flow=flow, resumed=parameters.get("resume") is not None)
    if flow == "read" and (key := next((key for key in NOT_FOR_READ if key in found), None)):
        raise SettingError(f"{key} ({found[key].source}) does not go with read, which {NOT_FOR_READ[key]}")
    parameters |= {key: setting.value for key, setting in found.items() if key in KEYS}
    parameters["engine_limits"] = limits_in(found)


def limits_in(found: Mapping[str, Setting]) -> dict[str, float]:
    """The engine's limits among settings, by their own names."""
    return {key.removeprefix(f"{ENGINE}."): s.value for key, s in found.items() if key.startswith(f"{ENGINE}.")}


def flag_of(key: str) -> str:
    """The option of the command line that says this setting."""
    return {"engines": "--engine", "json_schema": "--schema"}.get(key, f"--{key.replace('_', '-')}")


def preset_names() -> list[str]:
    """The names of all presets, prompts before hardware."""
    return [path.stem for folder in ("prompts", "hardware") for path in sorted((PRESETS / folder).glob("*.toml"))]


def open_preset(name: str) -> Preset:
    """The preset of this name; raises SettingError with the nearest names."""
    path = next((p for p in PRESETS.glob("*/*.toml") if p.stem == name), None)
    if path is None:
        near = difflib.get_close_matches(name, preset_names(), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(preset_names())}"
        raise SettingError(f"--preset {name}: no such preset; {hint}")
    table = _toml(path)
    about, flow = table.pop(ABOUT), table.pop(FLOW, None)
    return Preset(name, about, flow, _values(table, f"preset {name}", path.parent))


def engine_keys() -> list[str]:
    """The engine's limits, by what configs/engine.toml has for any device."""
    tables = tomllib.loads(ENGINE_DEFAULTS.read_text(encoding="utf-8")).values()
    names = dict.fromkeys(name for table in tables for name in table if name != "dtype")
    return [f"{ENGINE}.{name}" for name in names]


def all_keys() -> list[str]:
    """Every setting that there is."""
    return [*KEYS, *engine_keys()]


def _file_values(path: Path) -> dict[str, Any]:
    return _values(_toml(path), f"file {path}", path.parent)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"{path}: {error.strerror}; name a TOML file of settings") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingError(f"{path} is no TOML: {error}") from error


def _values(table: Mapping[str, Any], where: str, folder: Path) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if key == ENGINE and isinstance(value, dict):
            flat |= {f"{ENGINE}.{name}": inside for name, inside in value.items()}
        else:
            flat[key] = value
    return {_known(key, where): _checked(key, value, f"{where}: ", folder) for key, value in flat.items()}


def _environment_values(environment: Mapping[str, str]) -> dict[str, Any]:
    by_name = {_variable(key): key for key in all_keys()}
    values = {}
    for name, text in environment.items():
        if not text.strip():
            continue
        if name in by_name:
            values[by_name[name]] = _checked(by_name[name], _from_text(by_name[name], text), f"{name}: ", None)
        elif name.startswith(PREFIX) and (near := difflib.get_close_matches(name, by_name, n=1, cutoff=NEAR)):
            raise SettingError(f"{name} in the environment: no such setting; did you mean {near[0]}?")
    return values


def _variable(key: str) -> str:
    return PREFIX + key.upper().replace(".", "_")


def _from_text(key: str, text: str) -> Any:
    kind = _kind(key)
    try:
        if kind == "whole number":
            return int(text)
        if kind == "number":
            return int(text) if text.isdecimal() else float(text)
        if kind == "true or false":
            return {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()]
    except (ValueError, KeyError):
        return text  # told below, with what to give instead
    return [part.strip() for part in text.split(",") if part.strip()] if kind == "texts" else text


def _known(key: str, where: str) -> str:
    if key in (keys := all_keys()):
        return key
    raise SettingError(f"{where}: {key}: no such setting; {_nearest(key, keys)}")


def _nearest(key: str, keys: Iterable[str]) -> str:
    names = list(keys)
    # Also by the last part: max_sequence is engine.max_sequences where nothing is nearer.
    by_part = {name.rpartition(".")[2]: name for name in names}
    near = difflib.get_close_matches(key, names, n=1) or [
        by_part[part] for part in difflib.get_close_matches(key.rpartition(".")[2], by_part, n=1)
    ]
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"


def _kind(key: str) -> Kind:
    if key in KEYS:
        return KEYS[key][0]
    if key == f"{ENGINE}.child":
        return "true or false"
    return "number" if key.endswith("_fraction") else "whole number"


def _checked(key: str, value: Any, where: str, folder: Path | None) -> Any:
    """The value as flows take it; raises SettingError for one of another kind. Paths are from ``folder``."""
    kind = _kind(key)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "whole number":
        good = number and isinstance(value, int)
    elif kind == "number":
        good = number
    elif kind == "true or false":
        good = isinstance(value, bool)
    elif kind == "texts":
        good = isinstance(value, list) and all(isinstance(one, str) for one in value)
    else:
        if key == "tile" and number:
            value = str(value)
        good = isinstance(value, str)
    if not good:
        wanted = {"texts": "a list of texts", "schema": "a JSON schema", "true or false": "true or false"}
        raise SettingError(f"{where}{key} is {value!r}; give {wanted.get(kind, f'a {kind}')}")
    if kind == "path":
        return str(((folder or Path()) / Path(value).expanduser()).absolute())
    return _schema(value, where, folder) if kind == "schema" else value


def _schema(text: str, where: str, folder: Path | None) -> str:
    """A JSON schema as one line of JSON: ``text`` is the schema, or names the file that holds it."""
    if not text.lstrip().startswith("{"):
        path = (folder or Path()) / Path(text).expanduser()
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(f"{where}json_schema {path}: cannot be read ({error}); name a file of JSON") from error
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise SettingError(f"{where}json_schema is no JSON: {error}") from error
    if not isinstance(schema, dict):
        raise SettingError(f"{where}json_schema is to be a JSON object")
    return json.dumps(schema, ensure_ascii=False)
