"""``zellige config``: what is set, and by what; its exit code."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zellige.flows.commands import logging_to, reported
from zellige.flows.output import put
from zellige.flows.settings import (
    ENGINE,
    ENGINE_DEFAULTS,
    KEYS,
    Setting,
    engine_keys,
    open_preset,
    preset_names,
    resolve,
)
from zellige.flows.show import table
from zellige.tasks.job import DEFAULT_MAX_TOKENS, DEFAULT_PROMPTS, DEFAULT_SHARD_ITEMS, Flow, WrongUseError
from zellige.tasks.second_tries import LADDER

_FLOWS: tuple[Flow, ...] = ("caption", "ask", "read")


def show(flow: str | None, presets: list[str], file: Path | None, flags: Mapping[str, Any], as_json: bool) -> int:
    """Print every setting of a flow with its value and where that came from; ``flow`` None: the presets' own."""

    def work() -> int:
        suits = [one for name in presets if (one := open_preset(name).flow) is not None]
        asked = next((f for f in _FLOWS if f == (flow or (suits[0] if suits else "caption"))), None)
        if asked is None:
            raise WrongUseError(f"{flow}: no such flow; give one of {', '.join(_FLOWS)}")
        found = resolve(flags, presets, file, os.environ, flow=asked)
        settings = _defaults(asked, found) | found
        if as_json:
            told = {key: {"value": s.value, "source": s.source} for key, s in settings.items()}
            put(json.dumps({"flow": asked, "settings": told}), sys.stdout)
        else:
            rows = [{"setting": key, "value": _shown(s.value), "from": s.source} for key, s in settings.items()]
            put("\n".join([f"zellige {asked}", *table(rows, ("setting", "value", "from"))]), sys.stdout)
        return 0

    with logging_to(None):
        return reported(work, as_json)


def presets(as_json: bool) -> int:
    """Print every preset, what it is for and what it sets."""
    found = [open_preset(name) for name in preset_names()]
    if as_json:
        told = [{"name": p.name, "about": p.about, "flow": p.flow, "settings": dict(p.values)} for p in found]
        put(json.dumps(told), sys.stdout)
    else:
        rows = [{"preset": p.name, "for": p.flow or "hardware", "about": p.about} for p in found]
        put("\n".join(table(rows, ("preset", "for", "about"))), sys.stdout)
    return 0


def _defaults(flow: Flow, found: Mapping[str, Setting]) -> dict[str, Setting]:
    """What holds where no layer says anything, in the order of the settings."""
    device = found["device"].value if "device" in found else "cpu"
    engine = tomllib.loads(ENGINE_DEFAULTS.read_text(encoding="utf-8")).get(device.partition(":")[0], {})
    values: dict[str, Any] = dict.fromkeys(KEYS) | {
        "prompt": DEFAULT_PROMPTS[flow],
        "tile": "auto",
        "max_tokens": DEFAULT_MAX_TOKENS[flow],
        "temperature": 0.0,
        "second_tries": len(LADDER),
        "engines": [],
        "device": device,
        "dtype": engine.get("dtype"),
        "shard_items": DEFAULT_SHARD_ITEMS,
    }
    values |= {key: engine.get(key.removeprefix(f"{ENGINE}.")) for key in engine_keys()}
    return {key: Setting(value, "default") for key, value in values.items()}


def _shown(value: Any) -> str:
    text = "–" if value is None or value == [] else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 70 and text.isprintable() else f"{' '.join(text.split())[:68]} …"
