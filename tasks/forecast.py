"""The dry run: what a run would be, from headers alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from zellige.data.decode_wire import Failed
from zellige.data.schema import Item
from zellige.data.tiling import plan_tiles
from zellige.tasks.decode import probe_item
from zellige.tasks.job import Job
from zellige.tasks.plan import source_of, timed_host
from zellige.tasks.recipe import questions_of, sampling_of, tile_fits, tiling_of


@dataclass
class Forecast:
    """What a run would be: items, those known to be unreadable, what is passed by, and what the model would be shown.

    ``unreadable`` says why, by the item's name (address, member or row, page); ``ignored`` counts by reason.
    """

    inputs: list[str] = field(default_factory=list)
    items: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, int] = field(default_factory=dict)
    views: int = 0
    calls: int = 0
    vision_tokens: int = 0


def forecast(job: Job) -> Forecast:
    """The dry run: lists the items by their headers and counts, by the model's own rule; writes nothing."""
    sampling_of(job)
    questions, tiling = questions_of(job), tiling_of(job.tile, bool(job.raw))
    source = source_of(job)
    budget = timed_host(job.engine).identity().vision
    tile_fits(tiling, budget)
    total = Forecast(list(source.inputs))
    for item in islice(source.items(), job.limit):
        total.items += 1
        loaded = probe_item(source, item)
        if isinstance(loaded, Failed):
            _note(total.unreadable, item, loaded.message or "unreadable")
            continue
        try:
            tiles = plan_tiles(loaded.width, loaded.height, budget, tiling)
            sizes = [(t.width, t.height) for t in tiles] or [(loaded.width, loaded.height)]
            tokens = sum(budget.tokens(*size) for size in sizes)
        except ValueError as e:
            _note(total.unreadable, item, str(e))
            continue
        total.views += len(sizes)
        total.calls += len(sizes) * len(questions)
        total.vision_tokens += tokens * len(questions)
    total.ignored = dict(source.ignored)
    return total


def _note(unreadable: dict[str, str], item: Item, said: str) -> None:
    """Add one item under a name of its own: two members of an archive may bear one name, then their place is told."""
    row = None if item.member is not None or item.ordinal is None else f"row {item.ordinal}"
    page = None if item.page is None else f"page {item.page}"
    name = " ".join(filter(None, (item.uri, item.member, row, page)))
    while name in unreadable:
        name += f" (place {item.ordinal})"
    unreadable[name] = said
