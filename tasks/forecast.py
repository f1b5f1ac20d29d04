"""The dry run: what a run would be, from headers alone, and how long it would take, from a few answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice

from zellige.data.decode_wire import Failed
from zellige.data.schema import Item
from zellige.data.tiling import plan_tiles
from zellige.tasks.decode import probe_item
from zellige.tasks.estimate import Reservoir, Sample, estimate
from zellige.tasks.job import Job
from zellige.tasks.plan import source_of, timed_host
from zellige.tasks.recipe import questions_of, recipe_of, sampling_of, tile_fits, tiling_of


@dataclass
class Forecast:
    """What a run would be: items, those known to be unreadable, what is passed by, and what the model would be shown.

    ``kinds`` counts the readable items by media type; ``unreadable`` says why, by the item's name (address, member or
    row, page); ``ignored`` counts by reason. ``seconds`` is how long answering may take, from and to, by ``answered``
    items; where it is None ``no_estimate`` says why. ``failed`` are items among those that were tried and did not get
    a good answer. Where a page is cut is seen in its pixels: ``views`` of many pages are told by a sample of them.
    """

    inputs: list[str] = field(default_factory=list)
    items: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, int] = field(default_factory=dict)
    views: int = 0
    calls: int = 0
    vision_tokens: int = 0
    seconds: tuple[float, float] | None = None
    answered: int = 0
    no_estimate: str | None = None
    failed: dict[str, str] = field(default_factory=dict)


def forecast(job: Job) -> Forecast:
    """The dry run: lists the items by their headers, counts by the model's own rule, times a few; writes nothing."""
    sampling = sampling_of(job)
    questions, tiling = questions_of(job), tiling_of(job.tile, bool(job.raw))
    source = source_of(job)
    host = timed_host(job.engine)
    budget = host.identity().vision
    tile_fits(tiling, budget)
    total, kinds, samples = Forecast(list(source.inputs)), Counter[str](), Reservoir()
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
        kinds[loaded.format] += 1
        if asked := sum(q.concerns(item) for q in questions):
            sample = Sample(item, len(sizes) * asked, tokens * asked, asked)
            total.views += len(sizes)
            total.calls += sample.calls
            total.vision_tokens += sample.tokens
            samples.offer(sample)
    total.kinds, total.ignored = dict(kinds.most_common()), dict(source.ignored)
    if total.calls:
        recipe = recipe_of(job, questions, tiling, sampling, host.identity())
        told = estimate(recipe, source, host, job.workers, samples.kept, total.vision_tokens)
        total.seconds, total.answered, total.no_estimate = told.seconds, told.answered, told.why_not
        total.views, total.calls = round(total.views * told.more_calls), round(total.calls * told.more_calls)
        total.vision_tokens = round(total.vision_tokens * told.more_tokens)
        for item, error in told.failed:
            _note(total.failed, item, error)
    return total


def _note(unreadable: dict[str, str], item: Item, said: str) -> None:
    """Add one item under a name of its own: two members of an archive may bear one name, then their place is told."""
    row = None if item.member is not None or item.ordinal is None else f"row {item.ordinal}"
    page = None if item.page is None else f"page {item.page}"
    name = " ".join(filter(None, (item.uri, item.member, row, page)))
    while name in unreadable:
        name += f" (place {item.ordinal})"
    unreadable[name] = said
