"""One shard, from its items to their rows: decoding ahead in threads while the engine answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from zellige.data.decode import DecodeLimits
from zellige.data.schema import AnswerRow, Item, Question, Recipe, Status
from zellige.data.sources import Source
from zellige.engine.api import Sampling, VisionBudget, ask
from zellige.tasks.answer import Asker, Outcome
from zellige.tasks.decode import Prepared, View, load, prepare
from zellige.tasks.merge import merge_answers, merge_captions
from zellige.tasks.watch import Watch

#: Items between decoding and their rows at once, so that some are decoded ahead of the requests in flight.
ITEMS_AT_ONCE = 96
#: Pixels of those items together: 1.2 GB of 8-bit RGB. A larger image is held alone.
PIXELS_AT_ONCE = 400_000_000
#: Bytes of their files together: a small picture may lie in a very long file.
FILE_BYTES_AT_ONCE = 1 << 30


@dataclass(frozen=True)
class ShardWork:
    """What every shard of a run needs; ``sampling`` is the recipe's."""

    run_id: str
    recipe: Recipe
    sampling: Sampling
    source: Source
    budget: VisionBudget
    asker: Asker
    pool: ThreadPoolExecutor
    watch: Watch
    limits: DecodeLimits

    async def rows(self, items: Sequence[Item]) -> list[AnswerRow]:
        """One row an item and question, in the order of ``items``; raises EngineDownError."""
        places, files, room = asyncio.Semaphore(ITEMS_AT_ONCE), _Room(FILE_BYTES_AT_ONCE), _Room(PIXELS_AT_ONCE)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = []
                for item in items:
                    await places.acquire()
                    tasks.append(task := group.create_task(self._item(item, files, room)))
                    task.add_done_callback(lambda _: places.release())
        except BaseExceptionGroup as e:
            raise _first_leaf(e) from e
        return [row for task in tasks for row in task.result()]

    async def _item(self, item: Item, files: _Room, room: _Room) -> list[AnswerRow]:
        async with files.of(item.size_bytes or 0):
            rows = await self._rows_of(item, room)
        self.watch.tally.count(rows)
        self.watch.on_change(self.watch.tally)
        return rows

    async def _rows_of(self, item: Item, room: _Room) -> list[AnswerRow]:
        tally, loop = self.watch.tally, asyncio.get_running_loop()
        loaded = await loop.run_in_executor(self.pool, load, self.source, item, self.limits)
        if isinstance(loaded, Prepared):
            return self._unread(item, loaded)
        async with room.of(loaded.width * loaded.height):
            prepared = await loop.run_in_executor(
                self.pool, prepare, item, loaded, self.budget, self.recipe.tiling, self.limits
            )
            tally.decode_s += prepared.decode_s
            tally.images += bool(prepared.views)
            tally.tiles += len(prepared.views)
            return await self._ask_all(item, prepared) if prepared.views else self._unread(item, prepared)

    def _unread(self, item: Item, prepared: Prepared) -> list[AnswerRow]:
        columns = _columns(prepared) | {"error_kind": prepared.error_kind, "error": prepared.error}
        return [AnswerRow.of(self.run_id, self.recipe, item, q, "failed", **columns) for q in self.recipe.questions]

    async def _ask_all(self, item: Item, prepared: Prepared) -> list[AnswerRow]:
        """All questions of one view follow each other, so that the engine encodes its picture once."""
        questions = self.recipe.questions
        async with asyncio.TaskGroup() as group:
            asked = [[group.create_task(self._ask(q, view)) for q in questions] for view in prepared.views]
        by_question = zip(*([task.result() for task in of_view] for of_view in asked), strict=True)
        return [self._row(item, prepared, q, outcomes) for q, outcomes in zip(questions, by_question, strict=True)]

    async def _ask(self, question: Question, view: View) -> Outcome:
        prompt = self.recipe.prompt if self.recipe.task == "caption" else question.text
        return await self.asker.ask(ask(prompt, view.pixels, sampling=self.sampling, run_id=self.run_id))

    def _row(self, item: Item, prepared: Prepared, question: Question, outcomes: Sequence[Outcome]) -> AnswerRow:
        merge = merge_captions if self.recipe.task == "caption" else merge_answers
        merged = merge([view.tile for view in prepared.views], outcomes)
        columns = _columns(prepared) | {
            "error_kind": merged.error_kind,
            "error": "; ".join(filter(None, (merged.error, prepared.error))) or None,
            "answer": merged.answer,
            "finish_reason": merged.finish_reason,
            "mean_logprob": merged.mean_logprob,
            "tiles": merged.tiles,
            "image_tokens": merged.usage.image_tokens,
            "prompt_tokens": merged.usage.prompt_tokens,
            "completion_tokens": merged.usage.completion_tokens,
            "engine_s": merged.engine_s,
            "attempts": merged.attempts,
        }
        status: Status = "ok" if merged.error_kind is None else "failed"
        return AnswerRow.of(self.run_id, self.recipe, item, question, status, **columns)


class _Room:
    """Holds back, in the order they came, those who would take more than there is."""

    def __init__(self, size: int) -> None:
        self._size = self._free = size
        self._turn = asyncio.Lock()
        self._given = asyncio.Event()

    @asynccontextmanager
    async def of(self, amount: int) -> AsyncIterator[None]:
        """``amount`` of the room while inside; whoever wants more than all of it gets all of it."""
        amount = min(amount, self._size)
        async with self._turn:
            while self._free < amount:
                self._given.clear()
                await self._given.wait()
            self._free -= amount
        try:
            yield
        finally:
            self._free += amount
            self._given.set()


def _columns(prepared: Prepared) -> dict[str, Any]:
    return {
        "width": prepared.width,
        "height": prepared.height,
        "frames": prepared.frames,
        "content_sha256": prepared.content_sha256,
        "decode_s": prepared.decode_s,
    }


def _first_leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
