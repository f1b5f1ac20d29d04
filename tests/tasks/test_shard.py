"""How much is in memory at once, and how waiting is counted."""

from __future__ import annotations

import asyncio

import pytest

from zellige.tasks import watch
from zellige.tasks.shard import _Room
from zellige.tasks.watch import Tally, Watch, current_watch, watched_by


def entered(room: _Room, amounts: list[int]) -> tuple[list[int], int]:
    """The order in which ``amounts`` got in, and the most that was inside together."""
    order: list[int] = []
    inside = most = 0

    async def one(index: int, amount: int) -> None:
        nonlocal inside, most
        async with room.of(amount):
            order.append(index)
            inside += amount
            most = max(most, inside)
            await asyncio.sleep(0.001)
            inside -= amount

    async def everybody() -> None:
        await asyncio.wait_for(asyncio.gather(*(one(i, a) for i, a in enumerate(amounts))), timeout=10)

    asyncio.run(everybody())
    return order, most


def test_room_lets_in_what_fits_in_the_order_of_coming() -> None:
    order, most = entered(_Room(10), [6, 6, 1, 3, 10, 2, 2])
    assert order == list(range(7))
    assert most == 10


def test_what_is_larger_than_the_room_gets_in_alone() -> None:
    order, most = entered(_Room(10), [3, 500, 3])
    assert order == [0, 1, 2]
    assert most == 500


def test_requests_that_overlap_are_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(watch.time, "perf_counter", lambda: now)
    tally = Tally()
    first, second = tally.waiting_for_engine(), tally.waiting_for_engine()
    first.__enter__()
    now = 101.0
    second.__enter__()
    now = 103.0
    first.__exit__(None, None, None)
    now = 104.0
    second.__exit__(None, None, None)
    now = 110.0
    with tally.waiting_for_engine():
        now = 111.0
    assert tally.engine_s == 5.0


def test_rates_are_over_the_wall_time() -> None:
    tally = Tally(items=6, completion_tokens=90, wall_s=3.0)
    assert tally.rates() == {"items_per_s": 2.0, "tokens_per_s": 30.0}
    assert Tally().rates() == {"items_per_s": 0.0, "tokens_per_s": 0.0}


def test_watch_of_a_context_ends_with_it() -> None:
    mine = Watch()
    with watched_by(mine):
        assert current_watch() is mine
    assert current_watch() is not mine
