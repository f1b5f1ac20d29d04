"""How long a run will take: a few of its items are answered, timed and thrown away."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from zellige.data.decode_pool import DecodePool
from zellige.data.schema import Item, Recipe
from zellige.data.sources import Source
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


@dataclass(frozen=True)
class Sample:
    """An item with the calls and vision tokens that it takes by its header."""

    item: Item
    calls: int
    tokens: int


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
    """Seconds of answering, from and to, and how many items they were told by; or, in words, why there is none."""

    seconds: tuple[float, float] | None
    answered: int = 0
    why_not: str | None = None


def estimate(
    recipe: Recipe, source: Source, host: EngineHost, workers: int | None, samples: Sequence[Sample], tokens: int
) -> Estimate:
    """How long so many vision tokens take, loading the engine not counted; writes nothing."""
    if not samples:
        return Estimate(None, why_not=f"no item takes from 1 to {MOST_CALLS} calls")
    watch = Watch()
    with closing(DecodePool(workers)) as pool, shard_work("dry-run", recipe, source, host, pool, watch, None) as work:
        try:
            rates, error = _rates(host, work, samples)
        except EngineDownError as e:
            return Estimate(None, watch.tally.items, str(e))
    if not rates:
        return Estimate(None, watch.tally.items, f"none of the samples could be answered: {error}")
    fast, slow = min(rates) * (1 - SLACK), max(rates) * (1 + SLACK)
    return Estimate((fast * tokens, slow * tokens), watch.tally.items)


def _rates(host: EngineHost, work: ShardWork, samples: Sequence[Sample]) -> tuple[list[float], str | None]:
    """(seconds a vision token of the last groups, of the one that warms up only where there is no other; an error)."""
    rates: list[float] = []
    spent, error = 0.0, None
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
        error = next((row.error for row in rows if row.status == "failed"), error)
        if asked := sum(tokens[item] for item in answered):
            rates.append(seconds / asked)
    return (rates[1:] or rates)[-GROUPS_COUNTED:], error


def _groups(samples: Sequence[Sample]) -> Iterator[Sequence[Sample]]:
    ordered = sorted(samples, key=lambda sample: sample.tokens)
    ordered[1:] = random.Random(1).sample(ordered[1:], len(ordered) - 1)
    place = 0
    for size in GROUPS:
        if group := ordered[place : place + size]:
            yield group
        place += size
