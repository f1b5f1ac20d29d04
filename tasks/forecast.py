"""The dry run: what a run would be, from headers alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from zellige.data.decode import DecodeLimits
from zellige.data.sources import open_source
from zellige.data.tiling import plan_tiles
from zellige.tasks.decode import Prepared, load
from zellige.tasks.job import Job
from zellige.tasks.plan import timed_host
from zellige.tasks.recipe import questions_of, sampling_of, tile_fits, tiling_of


@dataclass
class Forecast:
    """What a run would be: items, those known to be unreadable, and what the model would be shown."""

    items: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)
    views: int = 0
    calls: int = 0
    vision_tokens: int = 0


def forecast(job: Job) -> Forecast:
    """The dry run: lists the items by their headers and counts, by the model's own rule; writes nothing."""
    sampling_of(job)
    questions, tiling = questions_of(job), tiling_of(job.tile, bool(job.raw))
    source = open_source(job.inputs, job.include, job.exclude)
    budget, limits = timed_host(job.engine).identity().vision, DecodeLimits()
    tile_fits(tiling, budget)
    total = Forecast()
    for item in islice(source.items(), job.limit):
        total.items += 1
        loaded = load(source, item, limits)
        if isinstance(loaded, Prepared):
            total.unreadable[item.uri] = loaded.error or "unreadable"
            continue
        try:
            tiles = plan_tiles(loaded.width, loaded.height, budget, tiling)
            sizes = [(t.width, t.height) for t in tiles] or [(loaded.width, loaded.height)]
            tokens = sum(budget.tokens(*size) for size in sizes)
        except ValueError as e:
            total.unreadable[item.uri] = str(e)
            continue
        total.views += len(sizes)
        total.calls += len(sizes) * len(questions)
        total.vision_tokens += tokens * len(questions)
    return total
