"""How a checkpoint says that its weights are quantised: config.json's ``quantization_config``, of four writers.

``compressed-tensors``, ``awq`` and ``gptq`` are those of others; ``zellige`` is compressed-tensors and one thing more
(docs/quantize.md). Only the weights may be quantised: whoever rounds activations too is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zellige.engine.quantize.grid import Grid

FORMATS = ("pack-quantized", "int-quantized", "naive-quantized")


class SchemeError(Exception):
    """The quantisation is none that the engine reads; the message says which it is."""


@dataclass(frozen=True)
class Rule:
    """Matrices whose name fits one of ``targets`` have ``bits`` and groups of ``group`` (None: the whole row)."""

    targets: tuple[str, ...]
    bits: int
    group: int | None
    symmetric: bool


@dataclass(frozen=True)
class Scheme:
    """What ``quantization_config`` says. ``plus_one``: GPTQ's zero points are stored less one."""

    method: str
    rules: tuple[Rule, ...]
    plus_one: bool = False

    def rule(self, name: str) -> Rule:
        """The rule for a quantised matrix, by name, then by pattern, then by kind, as compressed-tensors looks."""
        for fits in (_is_name, _is_pattern, _is_kind):
            for rule in self.rules:
                if any(fits(target, name) for target in rule.targets):
                    return rule
        raise SchemeError(f"no group of quantization_config covers {name}")


def _is_name(target: str, name: str) -> bool:
    return target == name


def _is_pattern(target: str, name: str) -> bool:
    return target.startswith("re:") and re.match(target[3:], name) is not None


def _is_kind(target: str, name: str) -> bool:
    return target in ("Linear", "FusedMoE", "MoE")


def parse_scheme(config: dict[str, Any]) -> Scheme | None:
    """The scheme of config.json, None where nothing is quantised; raises SchemeError."""
    found = config.get("quantization_config") or config.get("text_config", {}).get("quantization_config")
    if not found:
        return None
    method = found.get("quant_method")
    try:
        if method in ("compressed-tensors", "zellige"):
            return Scheme(method, tuple(_group(g, found) for g in found["config_groups"].values()))
        if method == "awq":
            return _awq(found)
        if method == "gptq":
            return _gptq(found)
    except KeyError as error:
        raise SchemeError(f"quantization_config has no {error}") from error
    raise SchemeError(f"quant_method {method!r} is not one of compressed-tensors, awq, gptq, zellige")


def _group(group: dict[str, Any], whole: dict[str, Any]) -> Rule:
    form = group.get("format") or whole.get("format")
    if form not in FORMATS:
        raise SchemeError(f"format {form!r} of compressed-tensors is not one of {', '.join(FORMATS)}")
    if group.get("input_activations") or group.get("output_activations"):
        raise SchemeError("quantised activations are not supported")
    weights = group["weights"]
    if weights.get("type", "int") != "int" or weights["num_bits"] not in (2, 3, 4, 8):
        raise SchemeError(f"weights of {weights['num_bits']} bits, {weights.get('type')}, are not supported")
    strategy = weights.get("strategy") or ("group" if weights.get("group_size") else "tensor")
    if strategy not in ("group", "channel", "tensor"):
        raise SchemeError(f"strategy {strategy!r} is not one of group, channel, tensor")
    size = weights["group_size"] if strategy == "group" else None
    return Rule(tuple(group["targets"]), weights["num_bits"], size, bool(weights.get("symmetric", True)))


def _awq(found: dict[str, Any]) -> Scheme:
    bits, version = found.get("bits", found.get("w_bit", 4)), str(found.get("version", "gemm")).lower()
    if bits != 4 or version != "gemm":
        raise SchemeError(f"AWQ with {bits} bits, version {version}, is not supported: 4 bits, gemm is")
    size = found.get("group_size", found.get("q_group_size", 128))
    return Scheme("awq", (Rule(("Linear",), 4, None if size == -1 else size, not found.get("zero_point", True)),))


def _gptq(found: dict[str, Any]) -> Scheme:
    bits, size, form = found["bits"], found["group_size"], found.get("checkpoint_format", "gptq")
    if bits not in (2, 3, 4, 8) or form not in ("gptq", "gptq_v2") or found.get("dynamic"):
        raise SchemeError(f"GPTQ with {bits} bits, checkpoint_format {form}, is not supported")
    rule = Rule(("Linear",), bits, None if size == -1 else size, bool(found.get("sym", True)))
    return Scheme("gptq", (rule,), plus_one=form == "gptq")


def written(grids: Mapping[str, Grid], kept: Iterable[str], *, beyond: bool) -> dict[str, Any]:
    """``quantization_config`` for matrices by their grids, ``kept`` being those that stay as they are.

    ``beyond``: some have inputs in 8 bits, which compressed-tensors does not know: another name keeps others from
    reading them wrongly.
    """
    by_grid: dict[Grid, list[str]] = {}
    for name, grid in grids.items():
        by_grid.setdefault(grid, []).append(name)
    everything = set(grids) | set(kept)
    groups = {}
    for number, (grid, names) in enumerate(by_grid.items()):
        weights = {
            "num_bits": grid.bits,
            "type": "int",
            "symmetric": grid.symmetric,
            "strategy": "group",
            "group_size": grid.group,
            "dynamic": False,
        }
        targets = ["Linear"] if len(by_grid) == 1 else _patterns(names, everything)
        groups[f"group_{number}"] = {"targets": targets, "weights": weights, "input_activations": None}
    return {
        "quant_method": "zellige" if beyond else "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": _patterns(list(kept), everything),
    }


def _patterns(names: Sequence[str], everything: Iterable[str]) -> list[str]:
    """Names as few patterns: one for all that differ in numbers only, where it fits no other name."""
    others = set(everything) - set(names)
    by_form: dict[str, list[str]] = {}
    for name in names:
        # Programs differ in what they put before this.
        tail = name.removeprefix("model.").removeprefix("language_model.")
        by_form.setdefault("re:.*" + re.sub(r"\d+", r"\\d+", re.escape(tail)) + "$", []).append(name)
    found: list[str] = []
    for pattern, named in by_form.items():
        found += named if any(re.match(pattern[3:], other) for other in others) else [pattern]
    return found
