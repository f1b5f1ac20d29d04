"""Who answers behind a URL: all of it from our own server, and what can be taken for granted from any other."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from zellige.engine.api import EngineError, EngineUnavailable, ModelIdentity, VisionBudget
from zellige.engine.remote.config import Address, RemoteConfig
from zellige.engine.remote.pool import Served

#: What a server that is not ours says of the type it computes in.
UNKNOWN_DTYPE = "unknown"
#: Tokens of context where a server says nothing; only its own refusal is binding.
UNKNOWN_CONTEXT = 1 << 20


def served_by(models: Any, address: Address, assumed: ModelIdentity) -> Served:
    """Read the answer to ``GET /v1/models``; ``assumed`` is what holds for a server that is not ours.

    Raises EngineUnavailable where it is no list of models or does not say which one is meant.
    """
    try:
        by_name = {str(m["id"]): m for m in models["data"]}
    except (KeyError, TypeError):
        raise EngineUnavailable(f"{address.base}/models: no list of models; is it an OpenAI-compatible API?") from None
    name = address.model or next(iter(by_name), None)
    if address.model is None and len(by_name) > 1:
        listed = ", ".join(list(by_name)[:10])
        raise EngineUnavailable(
            f"{address.base} serves {len(by_name)} models ({listed}, …); name one: --engine {address.base}#MODEL"
        )
    if name is None:
        raise EngineUnavailable(f"{address.base} serves no model")
    if by_name and name not in by_name:  # a server that lists none may load any
        listed = ", ".join(list(by_name)[:10]) + (", …" if len(by_name) > 10 else "")
        raise EngineUnavailable(f"{address.base} has no model {name!r}; it serves {listed}")
    said = by_name.get(name, {})
    if isinstance(own := said.get("zellige"), dict):
        return Served(name, _own(name, said, own, address), ours=True)
    context = said.get("max_model_len")
    context = context if isinstance(context, int) and context > 0 else assumed.max_context
    return Served(
        name, replace(assumed, name=name, fingerprint=_fingerprint(name, said), max_context=context), ours=False
    )


def _own(name: str, said: dict[str, Any], own: dict[str, Any], address: Address) -> ModelIdentity:
    try:
        return ModelIdentity(
            name=name,
            fingerprint=str(own["fingerprint"]),
            dtype=str(own["dtype"]),
            vision=VisionBudget(**own["vision"]),
            max_context=int(said["max_model_len"]),
            follows_instructions=bool(own["follows_instructions"]),
            lines_at_once=own["lines_at_once"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise EngineUnavailable(f"{address.base}: a zellige server of another version ({error!r})") from error


def _fingerprint(name: str, said: dict[str, Any]) -> str:
    """16 hex digits over the name of the model and the ``root`` that vLLM adds: not over the address or the start.

    Other weights under the same name cannot be told apart this way.
    """
    plain = json.dumps([name, said.get("root")])
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


def assumed_identity(config: RemoteConfig, folder: str | None) -> ModelIdentity:
    """What holds for a server that is not ours: as in the checkpoint ``folder``, else as in configs/remote.toml.

    The folder needs its configuration files and no weights; raises EngineError where one is missing or wrong.
    """
    if folder is None:
        return ModelIdentity("", "", UNKNOWN_DTYPE, config.vision, UNKNOWN_CONTEXT)
    path = Path(folder)
    sees, habits = _json(path / "preprocessor_config.json"), {}
    if (path / "zellige.json").is_file():
        habits = _json(path / "zellige.json")
    size = sees.get("size") or {}
    try:
        vision = VisionBudget(
            patch=sees["patch_size"],
            merge=sees["merge_size"],
            min_pixels=sees.get("min_pixels") or size["shortest_edge"],
            max_pixels=sees.get("max_pixels") or size["longest_edge"],
        )
    except KeyError as error:
        raise EngineError(f"{path / 'preprocessor_config.json'}: no {error}; is it a Qwen-VL checkpoint?") from error
    return ModelIdentity(
        *("", "", UNKNOWN_DTYPE, vision, UNKNOWN_CONTEXT),
        follows_instructions=habits.get("follows_instructions", True),
        lines_at_once=habits.get("lines_at_once"),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineError(f"{path}: cannot be read ({error}); --model names a checkpoint folder") from error
    if not isinstance(value, dict):
        raise EngineError(f"{path}: expected a JSON object")
    return value
