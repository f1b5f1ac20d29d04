"""One shard, from its items to their rows: decoded ahead in other processes while the engine answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from zellige.data.decode_pool import DecodeFailed
from zellige.data.decode_wire import Failed, Header
from zellige.data.schema import AnswerRow, Item, Question, Recipe, Status
from zellige.data.tiling import Tile
from zellige.data.views import View
from zellige.engine.api import Grammar, Sampling, ask
from zellige.tasks.answer import Asker, Outcome
from zellige.tasks.copies import Answers, Key, copied
from zellige.tasks.decode import Decoder
from zellige.tasks.job import QUESTION_PLACE
from zellige.tasks.merge import (
    Merged,
    merge_answers,
    merge_captions,
    merge_reading,
    overview_of,
    summary_prompt,
)
from zellige.tasks.watch import Watch

#: Items between decoding and their rows at once, so that some are decoded ahead of the requests in flight.
ITEMS_AT_ONCE = 96
#: Pixels of the views at the engine or waiting for it: 600 MB of 8-bit RGB. A larger view is held alone.
PIXELS_AT_ONCE = 200_000_000
#: Bytes of their files together: a small picture may lie in a very long file.
FILE_BYTES_AT_ONCE = 1 << 30


@dataclass
class _Seen:
    """What is known of an image so far: its header, the boxes of its views, and for each question their outcomes."""

    header: Header | None = None
    seconds: float = 0.0
    tiles: dict[int, Tile] = field(default_factory=dict)
    outcomes: dict[tuple[str, int], asyncio.Task[Outcome]] = field(default_factory=dict)
    overview: View | None = None

    def columns(self) -> dict[str, Any]:
        if self.header is None:
            return {"decode_s": self.seconds}
        names = ("width", "height", "frames", "content_sha256")
        return {name: getattr(self.header, name) for name in names} | {"decode_s": self.seconds}


@dataclass(frozen=True)
class ShardWork:
    """What every shard of a run needs; ``sampling`` is the recipe's. Without ``answers`` each copy is asked about."""

    run_id: str
    recipe: Recipe
    sampling: Sampling
    decoder: Decoder
    asker: Asker
    watch: Watch
    answers: Answers | None
    grammar: Grammar | None = None

    async def rows(self, items: Sequence[Item]) -> list[AnswerRow]:
        """One row an item and question, in the order of ``items``; raises EngineDownError, PoolError."""
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
        nothing = item.error is not None and item.error_kind is None
        asked = [] if nothing else [q for q in self.recipe.questions if q.concerns(item)]
        skipped = [q for q in self.recipe.questions if q not in asked]
        why = item.error if nothing else None
        made = {q.question_id: self._plain_row(item, q, "skipped", error=why) for q in skipped}
        if asked:
            # What is a local file is read where it is decoded, and takes no room here.
            local = item.error_kind is not None or self.decoder.source.local_path(item) is not None
            async with files.of(0 if local else item.size_bytes or 0):
                made |= {row.question_id: row for row in await self._answered(item, [q.of(item) for q in asked], room)}
        rows = [made[q.question_id] for q in self.recipe.questions]
        self.watch.tally.count(rows)
        self.watch.on_change(self.watch.tally)
        return rows

    async def _answered(self, item: Item, questions: Sequence[Question], room: _Room) -> list[AnswerRow]:
        """The rows of the questions that concern an item: those that a copy of it answers too, and those asked now."""
        seen, tally = _Seen(), self.watch.tally
        shared: dict[str, asyncio.Future[Merged]] = {}
        mine: dict[str, Key] = {}
        merged: dict[str, Merged] = {}
        failed: Failed | None = None
        try:
            async with asyncio.TaskGroup() as group, aclosing(self.decoder.views(item)) as views:
                try:
                    async for header, view, seconds in views:
                        if seen.header is None:
                            tally.images += 1
                            shared, mine = self._claimed(item, header, questions)
                        seen.header, seen.seconds = header, seen.seconds + seconds
                        tally.decode_s += seconds
                        to_ask = [q for q in questions if q.question_id not in shared]
                        if not to_ask:
                            break
                        await self._start(seen, view, to_ask, room, group)
                except DecodeFailed as e:
                    failed = e.failed
                    seen.seconds += failed.seconds
                    tally.decode_s += failed.seconds
                    for task in seen.outcomes.values():
                        task.cancel()
            if failed is not None:
                for key in mine.values():
                    self._settle(key, DecodeFailed(failed))
                return [self._unread(item, q, seen, failed) for q in questions]
            for q in questions:
                if q.question_id not in shared:
                    merged[q.question_id] = await self._merge(seen, q)
                    self._settle(mine.get(q.question_id), merged[q.question_id])
        finally:
            for key in mine.values():
                self._settle(key, None)
        return [
            await self._copied_row(item, seen, q, shared[q.question_id])
            if q.question_id in shared
            else self._row(item, seen, q, merged[q.question_id])
            for q in questions
        ]

    def _claimed(
        self, item: Item, header: Header, questions: Sequence[Question]
    ) -> tuple[dict[str, asyncio.Future[Merged]], dict[str, Key]]:
        """(answers that a copy of this image has or will have, what is asked now), by question."""
        shared: dict[str, asyncio.Future[Merged]] = {}
        mine: dict[str, Key] = {}
        for q in questions if self.answers is not None else ():
            assert self.answers is not None
            key = (header.content_sha256, item.page, q.question_id, q.text)
            if (future := self.answers.of(key)) is None:
                mine[q.question_id] = key
            else:
                shared[q.question_id] = future
        return shared, mine

    def _settle(self, key: Key | None, result: Merged | Exception | None) -> None:
        if self.answers is not None and key is not None:
            self.answers.settle(key, result)

    async def _start(
        self, seen: _Seen, view: View, questions: Sequence[Question], room: _Room, group: asyncio.TaskGroup
    ) -> None:
        """Ask about one view once there is room for it; the room is given back with the last answer.

        All questions of one view follow each other, so that the engine encodes its picture once.
        """
        pixels = view.pixels.shape[0] * view.pixels.shape[1]
        await room.take(pixels)
        self.watch.tally.tiles += 1
        if view.tile.turn and self.recipe.task == "ask":
            self.watch.tally.second_tries += len(questions)
        seen.tiles[view.index] = view.tile
        if view.tile.overview and self._sums_up:
            seen.overview = view
        waiting = len(questions)

        def answered(_: asyncio.Task[Outcome]) -> None:
            nonlocal waiting
            waiting -= 1
            if waiting == 0:
                room.give_back(pixels)

        for q in questions:
            task = group.create_task(self._ask(q, view))
            task.add_done_callback(answered)
            seen.outcomes[q.question_id, view.index] = task

    async def _ask(self, question: Question, view: View) -> Outcome:
        if self.recipe.task != "ask":
            return await self._say(self.recipe.prompt, view)
        around = self.recipe.prompt or QUESTION_PLACE
        return await self._say(around.replace(QUESTION_PLACE, question.text), view)

    async def _say(self, prompt: str, view: View) -> Outcome:
        request = ask(prompt, view.pixels, sampling=self.sampling, run_id=self.run_id)
        return await self.asker.ask(replace(request, grammar=self.grammar))

    @property
    def _sums_up(self) -> bool:
        """Whether the model is shown the overview again, to sum up the captions of the tiles."""
        able = bool(self.recipe.preprocessing.get("follows_instructions"))
        return self.recipe.task == "caption" and not self.recipe.raw and able

    async def _merge(self, seen: _Seen, question: Question) -> Merged:
        """The views' answers as one; a model that follows instructions is asked to sum up the captions of tiles."""
        places = sorted(seen.tiles)
        tiles = [seen.tiles[i] for i in places]
        outcomes = [seen.outcomes[question.question_id, i].result() for i in places]
        if self.recipe.raw or self.recipe.task == "ask":
            return merge_answers(tiles, outcomes)
        if self.recipe.task == "read":
            return merge_reading(tiles, outcomes)
        if not self._sums_up or seen.overview is None or overview_of(tiles, outcomes) is None:
            return merge_captions(tiles, outcomes)
        prompt = summary_prompt(self.recipe.prompt, tiles, outcomes)
        return merge_captions(tiles, outcomes, await self._say(prompt, seen.overview))

    async def _copied_row(
        self, item: Item, seen: _Seen, question: Question, answer: asyncio.Future[Merged]
    ) -> AnswerRow:
        try:
            merged = await asyncio.shield(answer)
        except DecodeFailed as e:
            return self._unread(item, question, seen, e.failed)
        return self._row(item, seen, question, copied(merged))

    def _row(self, item: Item, seen: _Seen, question: Question, merged: Merged) -> AnswerRow:
        warning = None if seen.header is None else seen.header.warning
        status: Status = "ok" if merged.error_kind is None else "failed"
        return self._plain_row(
            item,
            question,
            status,
            **seen.columns(),
            error_kind=merged.error_kind,
            error="; ".join(filter(None, (merged.error, warning))) or None,
            answer=merged.answer,
            finish_reason=merged.finish_reason,
            mean_logprob=merged.mean_logprob,
            tiles=merged.tiles,
            image_tokens=merged.usage.image_tokens,
            prompt_tokens=merged.usage.prompt_tokens,
            completion_tokens=merged.usage.completion_tokens,
            engine_s=merged.engine_s,
            attempts=merged.attempts,
        )

    def _unread(self, item: Item, question: Question, seen: _Seen, failed: Failed) -> AnswerRow:
        known = {
            "width": item.width if failed.width is None else failed.width,
            "height": item.height if failed.height is None else failed.height,
            "content_sha256": failed.content_sha256,
        } | seen.columns()
        return self._plain_row(item, question, "failed", **known, error_kind=failed.kind, error=failed.message)

    def _plain_row(self, item: Item, question: Question, status: Status, **columns: Any) -> AnswerRow:
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
        await self.take(amount)
        try:
            yield
        finally:
            self.give_back(amount)

    async def take(self, amount: int) -> None:
        """Wait for ``amount`` of the room, as ``of`` does; to be given back by ``give_back``."""
        amount = min(amount, self._size)
        async with self._turn:
            while self._free < amount:
                self._given.clear()
                await self._given.wait()
            self._free -= amount

    def give_back(self, amount: int) -> None:
        self._free += min(amount, self._size)
        self._given.set()


def _first_leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
