"""Which matrix gets how many bits: by default, and by regular expressions over names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from zellige.engine.api import EngineError
from zellige.engine.quantize.grid import Grid
from zellige.kernels.int4_tiles import GROUPS

BITS = (2, 3, 4, 8)
#: Matrices of the decoder's layers, which are quantised unless something else is said.
_LAYERS = re.compile(r"model\.language_model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)$")
_EXPERTS = re.compile(r"model\.language_model\.layers\.\d+\.mlp\.experts\.\d+\.(gate|up|down)_proj$")
#: What a rule may choose beside these; it is rounded without calibration.
_OTHERS = re.compile(r"(lm_head|model\.visual\..*\.(qkv|proj|linear_fc[12]))$")
#: Few integers are laid where the weights are; with more, a zero point would gain less than it costs.
_ASYMMETRIC_UP_TO = 3


class PlanError(EngineError):
    """A rule makes no sense for this checkpoint; the message says which and why."""


@dataclass(frozen=True)
class Plan:
    """``rules``: (pattern, bits) searched in names in this order, the first that is found counts; bits None: kept.

    ``sensitive``: the share of a matrix' inputs that is kept in 8 bits; None: 4 % at 2 and 3 bits, none at more.
    """

    bits: int
    experts_bits: int | None = None
    rules: tuple[tuple[str, int | None], ...] = ()
    group: int | None = None
    sensitive: float | None = None
    #: The group of each number of bits, once the checkpoint is known.
    groups: tuple[tuple[int, int], ...] = ()

    def settled(self, matrices: Mapping[str, int]) -> Plan:
        """The plan for a checkpoint's ``matrices``, names to inputs; raises PlanError for rules that find none.

        All matrices of a number of bits get one group, the largest that divides them all: programs that read mixed
        sizes are few.
        """
        known = [n for n in matrices if _LAYERS.match(n) or _EXPERTS.match(n) or _OTHERS.match(n)]
        for pattern, _ in self.rules:
            if not any(re.search(pattern, n) for n in known):
                raise PlanError(f"{pattern!r} is found in no name of a matrix, such as {known[0] if known else 'none'}")
        groups = {}
        for bits in {b for n in known if (b := self._bits(n)) is not None}:
            widths = [matrices[n] for n in known if self._bits(n) == bits and matrices[n] % 32 == 0]
            most = self.group or (32 if bits <= _ASYMMETRIC_UP_TO else 128)
            groups[bits] = max(g for g in GROUPS if g <= most and not any(w % g for w in widths))
        return replace(self, groups=tuple(sorted(groups.items())))

    def grid(self, name: str, inputs: int) -> Grid | None:
        """How the matrix ``name`` is rounded; None: it stays as it is, as those do whose inputs make no groups."""
        bits = self._bits(name)
        if bits is None or inputs % 32:
            return None
        return Grid(bits, dict(self.groups)[bits], symmetric=bits > _ASYMMETRIC_UP_TO)

    def kept_inputs(self, grid: Grid, inputs: int) -> int:
        """How many inputs of a matrix have 8 bits."""
        share = (0.04 if grid.bits <= _ASYMMETRIC_UP_TO else 0.0) if self.sensitive is None else self.sensitive
        return round(share * inputs) if grid.bits < 8 else 0

    def _bits(self, name: str) -> int | None:
        layers, experts = _LAYERS.match(name), _EXPERTS.match(name)
        if layers or experts or _OTHERS.match(name):
            for pattern, bits in self.rules:
                if re.search(pattern, name):
                    return bits
        if experts and self.experts_bits is not None:
            return self.experts_bits
        return self.bits if layers or experts else None


def make_plan(
    bits: int,
    experts_bits: int | None,
    keep: Sequence[str],
    tensors: Sequence[str],
    group: int | None,
    sensitive: float | None,
) -> Plan:
    """From what was asked for in words: ``keep`` are patterns, ``tensors`` PATTERN=BITS; raises PlanError."""
    if bits not in BITS or experts_bits not in (None, *BITS):
        raise PlanError(f"{bits if bits not in BITS else experts_bits} bits: 2, 3, 4 and 8 are possible")
    if group not in (None, *GROUPS):
        raise PlanError(f"groups of {group}: {', '.join(map(str, GROUPS))} are possible")
    rules = [(_pattern(text), None) for text in keep] + [_rule(text) for text in tensors]
    return Plan(bits, experts_bits, tuple(rules), group, sensitive)


def _rule(text: str) -> tuple[str, int | None]:
    pattern, _, bits = text.rpartition("=")
    if not pattern or bits not in map(str, BITS):
        raise PlanError(f"{text!r} is not PATTERN=BITS with 2, 3, 4 or 8 bits")
    return _pattern(pattern), int(bits)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise PlanError(f"{text!r} is no regular expression: {error}") from error
    return text
