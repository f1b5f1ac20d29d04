"""Rounds one decoder layer: scales its inputs (AWQ), then rounds with or without compensation (GPTQ), as pays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from zellige.engine.quantize.awq import Reader, search
from zellige.engine.quantize.gptq import compensated, loss
from zellige.engine.quantize.grid import Grid, nearest
from zellige.engine.quantize.plan import Plan
from zellige.engine.quantize.units import LayerParts, Part, Unit, units

#: Matrices that are rounded together: enough to fill a device, few enough for their energies to fit beside them.
_TOGETHER = 16


@dataclass(frozen=True, eq=False)
class Energies:
    """By what is read, (1 or E, K, K): of the passages that decide, and of those that judge what was decided."""

    fit: dict[str, Tensor]
    check: dict[str, Tensor]


@dataclass
class Tally:
    """How many matrices were rounded, and how many of them with compensation."""

    matrices: int = 0
    compensated: int = 0


def round_layer(layer: LayerParts, energies: Energies, plan: Plan, dtype: torch.dtype, tally: Tally) -> None:
    """Give every part that has a grid its codes; norms, router and rows are divided by the scales of their readers."""
    scale_inputs(layer, energies)
    for _, same in groupby(sorted(units(layer.parts), key=lambda u: str(u.key)), key=lambda u: str(u.key)):
        whole = list(same)
        for at in range(0, len(whole), _TOGETHER):
            _round(whole[at : at + _TOGETHER], energies, plan, dtype, tally)


def scale_inputs(layer: LayerParts, energies: Energies) -> None:
    """AWQ where every matrix that reads an input is rounded."""
    for what in ("qkv", "gate_up"):
        parts = layer.reading(what)
        if any(p.grid is None for p in parts):
            continue
        s = search(list(_readers(units(parts), energies.fit[what])))
        _multiply(parts, s)
        _divide(energies, what, s)
        if what == "qkv":
            layer.norm1 = layer.norm1 / s
        else:
            layer.norm2 = layer.norm2 / s
            layer.router = None if layer.router is None else layer.router * s
    ups = [p for p in layer.reading("gate_up") if p.name.endswith("up_proj")]
    downs = layer.reading("down")
    if any(p.grid is None for p in (*ups, *downs)):
        return
    for up, down in zip(ups, downs, strict=True):
        energy = energies.fit["down"][down.expert]
        assert down.grid is not None
        s = search([Reader(down.w.unsqueeze(0), energy.unsqueeze(0), down.grid)])
        down.w = down.w * s
        up.w = up.w / s.unsqueeze(-1)
        for side in (energies.fit, energies.check):
            side["down"][down.expert] /= s * s.unsqueeze(-1)


def _readers(found: Sequence[Unit], energy: Tensor) -> Iterator[Reader]:
    for unit in found:
        first = unit.parts[0]
        assert first.grid is not None
        yield Reader(unit.w.unsqueeze(0), energy[first.expert].unsqueeze(0), first.grid)


def _multiply(parts: Sequence[Part], s: Tensor) -> None:
    for part in parts:
        part.w = part.w * s


def _divide(energies: Energies, what: str, s: Tensor) -> None:
    for side in (energies.fit, energies.check):
        side[what] = side[what] / (s * s.unsqueeze(-1))


def _round(same: Sequence[Unit], energies: Energies, plan: Plan, dtype: torch.dtype, tally: Tally) -> None:
    """Units of one key: kept inputs chosen, both ways of rounding tried, and of each unit the better taken."""
    first = same[0].parts[0]
    grid = first.grid
    assert grid is not None
    experts = torch.tensor([u.parts[0].expert for u in same], device=first.w.device)
    w = torch.stack([u.w for u in same])
    fit, check = (side[first.what].index_select(0, experts) for side in (energies.fit, energies.check))
    count = plan.kept_inputs(grid, w.shape[-1])
    kept = _sensitive(w, grid, fit, count, dtype) if count else None
    plain = nearest(w, grid, fit.diagonal(dim1=-2, dim2=-1), dtype, kept)
    repaid = compensated(w, grid, fit, dtype, kept)
    pays = loss(w, repaid.dense(), check) < loss(w, plain.dense(), check)
    for i, unit in enumerate(same):
        unit.take((repaid if pays[i] else plain).one(i))
        tally.matrices += len(unit.parts)
        tally.compensated += len(unit.parts) * int(pays[i])


def _sensitive(w: Tensor, grid: Grid, energy: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """The ``count`` inputs (B, count) whose rounding costs most."""
    diagonal = energy.diagonal(dim1=-2, dim2=-1)
    lost = (nearest(w, grid, diagonal, dtype, quick=True).dense() - w).square().sum(-2) * diagonal
    return lost.topk(count, -1).indices.sort(-1).values
