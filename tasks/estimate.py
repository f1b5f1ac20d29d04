"""How long a run will take: a few of its items are answered, timed and thrown away."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field, replace

from zellige.data.decode_pool import DecodeFailed, DecodePool
from zellige.data.schema import Item, Recipe
from zellige.data.sources import Source
from zellige.data.views import is_cut
from zellige.engine.api import VisionBudget
from zellige.tasks.answer import EngineDownError
from zellige.tasks.host import EngineHost
from zellige.tasks.lease import shard_work
from zellige.tasks.shard import ShardWork
from zellige.tasks.watch import Watch

#: Items answered together, one number after another. The first one, the smallest there is, warms the engine up.
GROUPS = (1, 1, 2, 4, 8, 16, 32, 64)
#: No group is begun that would take longer than this, all together.
ENOUGH_S = 10.0
#: An item of more calls is no sample: a sheet of a gigapixel may take an hour alone.
MOST_CALLS = 256
#: The range is that of the largest groups, which are most like a run, and so much wider on either side.
GROUPS_COUNTED, SLACK = 3, 0.25
#: Pages decoded at once to see where they are cut.
PAGES_AT_ONCE = 8


@dataclass(frozen=True)
class Sample:
    """An item with the calls and vision tokens that it takes: by its header, of a page to be cut by its pixels."""

    item: Item
    calls: int
    tokens: int
    questions: int = 1


@dataclass
class Reservoir:
    """As many of the items offered as are of use, each as likely as any other; the same ones every time."""

    kept: list[Sample] = field(default_factory=list)
    _offered: int = 0
    _chance: random.Random = field(default_factory=lambda: random.Random(0))

    def offer(self, sample: Sample) -> None:
        if not 1 <= sample.calls <= MOST_CALLS:
            return
        self._offered += 1
        place = len(self.kept) if len(self.kept) < sum(GROUPS) else self._chance.randrange(self._offered)
        if place < sum(GROUPS):
            self.kept[place : place + 1] = [sample]


@dataclass(frozen=True)
class Estimate:
    """Seconds of answering, from and to, and how many items they were told by; or, in words, why there is none.

    ``failed`` holds the items among those tried that cannot be read or got no good answer, each with its error.
    ``more_calls`` and ``more_tokens`` are how many times as many it takes as the headers said.
    """

    seconds: tuple[float, float] | None
    answered: int = 0
    why_not: str | None = None
    failed: Sequence[tuple[Item, str]] = ()
    more_calls: float = 1.0
    more_tokens: float = 1.0


def estimate(
    recipe: Recipe, source: Source, host: EngineHost, workers: int | None, samples: Sequence[Sample], tokens: int
) -> Estimate:
    """How long so many vision tokens (by headers) take, loading the engine not counted; writes nothing."""
    if not samples:
        return Estimate(None, why_not=f"no item takes from 1 to {MOST_CALLS} calls")
    watch = Watch()
    failed: dict[str, tuple[Item, str]] = {}
    more_calls = more_tokens = 1.0
    with closing(DecodePool(workers)) as pool, shard_work("dry-run", recipe, source, host, pool, watch, None) as work:
        if is_cut(work.decoder.rule):
            seen = host.run(_seen(work, host.identity().vision, samples, failed))
            by_header = [sample for sample in samples if sample.item.item_id not in failed]
            more_calls = _ratio(sum(s.calls for s in seen), sum(s.calls for s in by_header))
            more_tokens = _ratio(sum(s.tokens for s in seen), sum(s.tokens for s in by_header))
            samples = seen
        rates, why_not = [], "none of the samples could be answered"
        try:
            rates = _rates(host, work, samples, failed)
        except EngineDownError as e:
            why_not = str(e)
    told = Estimate(None, watch.tally.items, None, tuple(failed.values()), more_calls, more_tokens)
    if not rates:
        error = next((error for _, error in reversed(failed.values())), None)
        return replace(told, why_not=f"{why_not}: {error}" if error else why_not)
    fast, slow = min(rates) * (1 - SLACK), max(rates) * (1 + SLACK)
    tokens = round(tokens * more_tokens)
    return replace(told, seconds=(fast * tokens, slow * tokens))


def _ratio(now: int, before: int) -> float:
    return now / before if before else 1.0


async def _seen(
    work: ShardWork, budget: VisionBudget, samples: Sequence[Sample], failed: dict[str, tuple[Item, str]]
) -> list[Sample]:
    """The samples by the views that a run would show of them; those that cannot be decoded go to ``failed``."""
    places = asyncio.Semaphore(PAGES_AT_ONCE)

    async def counted(sample: Sample) -> Sample | None:
        calls = tokens = 0
        try:
            async with places, aclosing(work.decoder.views(sample.item)) as views:
                async for _, view, _ in views:
                    calls += sample.questions
                    tokens += sample.questions * budget.tokens(view.pixels.shape[1], view.pixels.shape[0])
        except DecodeFailed as e:
            failed[sample.item.item_id] = (sample.item, e.failed.message or "unreadable")
            return None
        return replace(sample, calls=calls, tokens=tokens)

    return [sample for sample in await asyncio.gather(*map(counted, samples)) if sample is not None]


def _rates(
    host: EngineHost, work: ShardWork, samples: Sequence[Sample], failed: dict[str, tuple[Item, str]]
) -> list[float]:
    """Seconds a vision token of the last groups, of the one that warms up only where there is no other.

    Items that fail are added to ``failed``.
    """
    rates: list[float] = []
    spent = 0.0
    for number, group in enumerate(_groups(samples)):
        tokens = {sample.item.item_id: sample.tokens for sample in group}
        if number > 1 and spent + (rates[-1] if rates else 0.0) * sum(tokens.values()) > ENOUGH_S:
            break
        start = time.perf_counter()
        rows = host.run(work.rows([sample.item for sample in group]))
        seconds = time.perf_counter() - start
        spent += seconds if number else 0.0
        # What could not be decoded, or the engine did not answer, says nothing of what an answer takes.
        answered = {row.item_id for row in rows if row.answer is not None}
        items = {sample.item.item_id: sample.item for sample in group}
        failed |= {row.item_id: (items[row.item_id], row.error or "") for row in rows if row.status == "failed"}
        if asked := sum(tokens[item] for item in answered):
            rates.append(seconds / asked)
    return (rates[1:] or rates)[-GROUPS_COUNTED:]


def _groups(samples: Sequence[Sample]) -> Iterator[Sequence[Sample]]:
    ordered = sorted(samples, key=lambda sample: sample.tokens)
    ordered[1:] = random.Random(1).sample(ordered[1:], len(ordered) - 1)
    place = 0
    for size in GROUPS:
        if group := ordered[place : place + size]:
            yield group
        place += size
