"""One run: its items, its shards, who answers them and what has been answered."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from zellige.data.events import EventLog
from zellige.data.files import LedgerError, StoreUnusable, usable
from zellige.data.folder import Folder, matching, read_json, write_json
from zellige.data.health import KernelFolder, ThroughputFolder, TimelineFolder
from zellige.data.leases import Claim, LeaseBook
from zellige.data.parts import PartFolder, PartInfo
from zellige.data.plan import Again, Plan, SecondLook
from zellige.data.retries import Places, RetryFolder
from zellige.data.schema import AnswerRow, Item, Recipe, row_id
from zellige.data.sources.options import SourceOptions
from zellige.data.workers import Roster

RunState = Literal["planning", "running", "finished", "interrupted", "failed", "crashed"]
_PLAN = "plan"
#: What it takes to tell how fast a run goes: so many committed shards, the first and the last so many seconds apart.
RATE_COMMITS, RATE_S = 3, 2.0


@dataclass(frozen=True)
class Shard:
    """The items that are leased, answered and committed together."""

    index: int
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Progress:
    """What is committed, in shards, items and rows; ``rows`` is what there will be: items x questions."""

    shards: int
    shards_done: int
    items: int
    items_done: int
    rows: int
    ok: int
    failed: int
    skipped: int


class Run:
    """A run's folder. Any number of processes may hold one; nothing is kept in memory that the files do not say."""

    def __init__(self, folder: Folder, store: str, about: Mapping[str, Any]) -> None:
        self.folder, self.store = folder, store
        #: Where the files are on this machine, or copies of some of them.
        self.path = folder.path
        try:
            self.run_id: str = about["run_id"]
            self.started_at: str = about["started_at"]
            self.shard_items: int = about["shard_items"]
            self.inputs: tuple[str, ...] = tuple(about["inputs"])
            self.include: tuple[str, ...] = tuple(about["include"])
            self.exclude: tuple[str, ...] = tuple(about["exclude"])
            self.source_options = SourceOptions(
                self.include, self.exclude, about.get("column"), tuple(about.get("keep", ()))
            )
            self.limit: int | None = about["limit"]
            self.recipe = Recipe.from_json(json.dumps(about["recipe"]))
        except (KeyError, TypeError, ValueError) as error:
            raise StoreUnusable(f"{folder.at('recipe.json')} is damaged: {error!r}") from error
        self._fingerprint = self.recipe.fingerprint
        self._roster = Roster(folder / "leases")
        self._leases = LeaseBook(self._roster)
        self._events = EventLog(folder / "events")
        self._parts = PartFolder(folder / "parts", folder / "aside")
        self._retries = RetryFolder(folder / "retries")
        self._plan = Plan(folder, self.shard_items, self._retries)
        self._throughput = ThroughputFolder(folder / "health")
        self._kernels = KernelFolder(folder / "health")
        self._timeline = TimelineFolder(folder / "health")

    # --- what is to be done

    @property
    def planned(self) -> bool:
        """Whether every item is stored. A run killed while planning is not: give its items to ``plan`` again."""
        return self._plan.exists()

    def plan(self, items: Iterable[Item]) -> int:
        """Store the items; how many there are. A planned run keeps those it has.

        Raises LedgerError where another worker is planning at this moment.
        """
        if not self.planned:
            self._join()
            claim = self._leases.claim([_PLAN])
            if claim is None:
                raise LedgerError(f"another process is planning run {self.run_id} right now; try again when it is done")
            try:
                if not self.planned:
                    self.event("planned", items=self._plan.write(items))
            finally:
                self._leases.release(claim)
        return self._plan.count()

    def items(self) -> Iterator[Item]:
        """All items in their order, in bounded memory."""
        return self._plan.items()

    @property
    def shard_count(self) -> int:
        return self._plan.shard_count()

    def shard(self, index: int) -> Shard:
        """One shard with its items; raises IndexError."""
        return Shard(index, self._plan.shard(index))

    def shards(self) -> Iterator[Shard]:
        """All shards in their order, one in memory at a time."""
        return map(self.shard, range(self.shard_count))

    def retry(self, kinds: Collection[str], again: Again | None = None) -> int:
        """Let the rows that failed as one of ``kinds`` be answered again; how many rows there are to answer.

        With ``again`` (``Source.again``) what failed so while planning is opened again, and what is found in it now
        joins the run. Old rows stay until their shard is committed anew. Raises LedgerError where another worker plans.
        """
        self._join()
        claim = self._leases.claim([_PLAN])
        if claim is None:
            raise LedgerError(f"another process is planning run {self.run_id} right now; try again when it is done")
        try:
            count = self._ask_again(kinds, again)
            if count:
                with usable(self.folder, "write to"):
                    (self.folder / "parts").mark()  # an index that knows the run as finished looks again
                self.event("retry", kinds=sorted(kinds), rows=count)
            return count
        finally:
            self._leases.release(claim)

    # --- doing it

    def lease(self, index: int | None = None) -> Lease | None:
        """Take shard ``index``, or the first that is neither done nor held; None where there is none to take now.

        A shard whose holder is gone is taken over; a part that is unreadable or short is moved to ``aside/`` first.
        """
        done = self.done_shards()
        wanted = range(self.shard_count) if index is None else [index]
        while open_shards := [i for i in wanted if i not in done]:
            self._join()
            claim = self._leases.claim([_shard_name(i) for i in open_shards])
            if claim is None:
                return None
            taken = int(claim.what.removeprefix("shard-"))
            if self._is_done(taken, self._parts.part(taken)):  # committed between the look and the claim
                self._leases.release(claim)
                done.add(taken)
                continue
            if claim.taken_from is not None:
                self.event("lease_taken_over", shard=taken, holder=claim.taken_from)
            part, shard = self._parts.part(taken), self.shard(taken)
            retries, again = self._retries.wanted(taken, 0 if part is None else part.retries)
            if self._is_whole(taken, part):
                return Lease(self, Shard(taken, self._among(again, shard.items)), claim, retries, again)
            if (aside := self._parts.set_aside(taken)) is not None:
                self.event("part_set_aside", shard=taken, file=f"aside/{aside}")
            return Lease(self, shard, claim, retries, repeats=aside is not None)
        return None

    def done_shards(self) -> set[int]:
        """The shards with nothing left to do: their part is whole, and no retry of its rows is open."""
        return self._looked()[1]

    def whole_shards(self) -> set[int]:
        """The shards whose part is readable and has a row for every item and question, to be retried or not."""
        return set(self._looked()[0])

    def items_left(self) -> int:
        """How many items are still to be answered, those of open retries among them."""
        whole, done = self._looked()
        left = sum(size for index, size in enumerate(self._plan.shard_sizes()) if index not in whole)
        for index in whole.keys() - done:  # only some of its items are wanted again
            left += len(self._among(self._retries.wanted(index, whole[index].retries)[1], self.shard(index).items))
        return left

    def part_path(self, index: int) -> Path:
        """The part of shard ``index`` on this machine: the file itself, or a copy of it as it is now."""
        return self._parts.paths([index])[0]

    def part_paths(self, indices: Sequence[int]) -> list[Path]:
        """``part_path`` of many shards, several at a time."""
        return self._parts.paths(indices)

    def parts_changed(self) -> int:
        """A number that is another one once parts came, went or are to be answered again; raises StoreUnusable."""
        with usable(self.folder, "read"):
            return (self.folder / "parts").changed()

    def errors(self) -> dict[str, int]:
        """How many rows failed, by kind, the most frequent first; reads the parts with such rows."""
        failed = [index for index, info in sorted(self._looked()[0].items()) if info.failed]
        kinds = Counter(kind for index in failed for kind in self._parts.error_kinds(index))
        return dict(sorted(kinds.items(), key=lambda pair: (-pair[1], pair[0])))

    def event(self, kind: str, **fields: Any) -> None:
        """Note that something happened; ``fields`` are JSON values."""
        self._events.append(self._roster.my_name, kind, fields)

    def events(self) -> list[dict[str, Any]]:
        """What happened, oldest first: dicts with at least ``at`` (ISO time) and ``kind``."""
        return self._events.read()

    def write_throughput(self, sample: Mapping[str, int | float | None]) -> None:
        """Store what this worker did so far, by column of ``THROUGHPUT``, in place of what it stored before."""
        self._throughput.write(self.run_id, self._roster.my_name, sample)

    def throughput(self) -> dict[str, float]:
        """The sums over all samples, by column."""
        return self._throughput.sums()

    def write_kernels(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Store how the kernels behaved in this worker's engine so far, by column of ``KERNELS``."""
        self._kernels.write(self.run_id, self._roster.my_name, rows)

    def kernels(self) -> list[dict[str, Any]]:
        """How the kernels behaved: one row an operator and device, all workers together."""
        return self._kernels.rows()

    def write_timeline(self, moments: Sequence[Mapping[str, Any]]) -> None:
        """Store how this worker stood, moment by moment, by column of ``TIMELINE``, in place of what it stored."""
        self._timeline.write(self.run_id, self._roster.my_name, moments)

    def timeline(self) -> pa.Table:
        """How all workers stood, moment by moment, as a table of ``TIMELINE``."""
        return self._timeline.read()

    # --- how it stands

    def progress(self) -> Progress:
        """Counts by the footers of the parts, rows to be retried among them; may be read while others write."""
        if not self.planned:
            return Progress(0, 0, 0, 0, 0, 0, 0, 0)
        whole, done = self._looked()
        sizes = self._plan.shard_sizes()
        return Progress(
            shards=len(sizes),
            shards_done=len(done),
            items=sum(sizes),
            items_done=sum(sizes[i] for i in done),
            rows=sum(sizes) * len(self.recipe.questions),
            ok=sum(info.ok for info in whole.values()),
            failed=sum(info.failed for info in whole.values()),
            skipped=sum(info.skipped for info in whole.values()),
        )

    def rate(self) -> float | None:
        """Items a second by the shards committed since a worker last ended or was found gone.

        None before there are ``RATE_COMMITS`` of them over ``RATE_S``: two workers may commit in the same instant.
        """
        commits: list[dict[str, Any]] = []
        for event in self.events():
            if event["kind"] in ("finish", "planned", "worker_gone"):
                commits.clear()
            elif event["kind"] == "committed":
                commits.append(event)
        if len(commits) < RATE_COMMITS:
            return None
        first, last = (datetime.fromisoformat(e["at"]) for e in (commits[0], commits[-1]))
        rows, seconds = sum(e["rows"] for e in commits[1:]), (last - first).total_seconds()
        return rows / max(1, len(self.recipe.questions)) / seconds if seconds >= RATE_S else None

    def bad_parts(self) -> list[Path | str]:
        """Parts that are damaged or not whole, set aside already or not."""
        whole = self.whole_shards()
        bad = [self._parts.at(index) for index in sorted(self._parts.parts()) if index not in whole]
        aside = self.folder / "aside"
        return [*bad, *(aside.at(name) for name in matching(aside, "shard-*.parquet"))]

    def state(self) -> RunState:
        """What the files say: what is done, who is alive, and else how the last worker ended."""
        alive = [living for _, living in self._roster.workers()]
        # Before the living: one who still says goodbye, or is idle, must not make a whole run look unfinished.
        if self.planned and len(self.done_shards()) == self.shard_count:
            return "finished"
        if any(alive):
            return "running" if self.planned else "planning"
        if alive:  # a worker's file outlives it only if it was killed
            return "crashed"
        outcome = read_json(self.folder, "outcome.json")
        return "failed" if outcome is not None and outcome.get("state") == "failed" else "interrupted"

    def finish(self, state: Literal["finished", "interrupted", "failed"], error: str | None = None) -> RunState:
        """This process is done with the run: record how it ended, stop the heartbeat; the run's state after that.

        Where others are still at work the run goes on, and where shards are left "finished" does not make it so.
        """
        self.event("finish", state=state, error=error)
        how = {"state": state, "error": error, "at": datetime.now(UTC).isoformat()}
        write_json(self.folder, "outcome.json", how)
        self._roster.leave()
        return self.state()

    def close(self) -> None:
        """Stop the heartbeat without a word about the outcome."""
        self._roster.leave()

    def standing(self) -> dict[str, Any]:
        """How the run stands, in plain values: its name, flow and state, and the counts of ``progress``."""
        # The state before the counts: a run that is finished has all of them.
        state, progress = self.state(), self.progress()
        return {
            "run_id": self.run_id,
            "flow": self.recipe.task,
            "state": state,
            "items": progress.items,
            "items_done": progress.items_done,
            "rows": progress.rows,
            "ok": progress.ok,
            "failed": progress.failed,
            "skipped": progress.skipped,
        }

    def outcome(self) -> dict[str, Any] | None:
        """How the last worker ended ("state", "error", "at"); None where none has said."""
        return read_json(self.folder, "outcome.json")

    def _join(self) -> None:
        """Be a worker of this run; the dead are struck off when one joins."""
        if not self._roster.joined:
            with usable(self.folder, "write to"):
                self._roster.join()
                for worker, living in list(self._roster.workers()):
                    if not living:
                        self.event("worker_gone", gone=worker.name)
                        self._roster.forget(worker)

    def _looked(self) -> tuple[dict[int, PartInfo], set[int]]:
        """(parts that are whole, shards that are done): ``_is_whole`` and ``_is_done`` of all shards at once."""
        if not self.planned:
            return {}, set()
        sizes, last, questions = self._plan.shard_sizes(), self._retries.last(), len(self.recipe.questions)
        whole = {
            index: info
            for index, info in self._parts.parts().items()
            if info is not None and index < len(sizes) and info.rows == sizes[index] * questions
        }
        return whole, {index for index, info in whole.items() if info.retries >= last.get(index, 0)}

    def _is_done(self, index: int, info: PartInfo | None) -> bool:
        return info is not None and self._is_whole(index, info) and info.retries >= self._retries.wanted(index, 0)[0]

    def _is_whole(self, index: int, info: PartInfo | None) -> bool:
        questions = len(self.recipe.questions)
        return info is not None and index < self.shard_count and info.rows == self._plan.shard_size(index) * questions

    def _ask_again(self, kinds: Collection[str], again: Again | None) -> int:
        whole, _ = self._looked()
        rows = {i: self._parts.failed_rows(i, kinds) for i, info in sorted(whole.items()) if info.failed}
        number, added, replaced = self._retries.next_number(), 0, Places()
        if again is not None:
            room = None if self.limit is None else max(0, self.limit - self._plan.count())
            look = SecondLook(self._plan, kinds, again, room)
            added = self._plan.write_added(self._retries.added_name(number), look.added()) if look.failed else 0
            replaced = look.replaced
        for shard, items in replaced.items():
            then = self._plan.shard(shard)
            gone = set(self._row_ids(then[place] for place in items))
            rows[shard] = [row for row in rows.get(shard, ()) if row not in gone] + self._row_ids(items.values())
        rows = {shard: ids for shard, ids in rows.items() if ids}
        if rows or added:
            self._retries.add(number, sorted(kinds), rows, replaced, added)
        return sum(map(len, rows.values())) + added * len(self.recipe.questions)

    def _among(self, rows: frozenset[str], items: Iterable[Item]) -> tuple[Item, ...]:
        """Those of ``items`` that any of ``rows`` is about."""
        return tuple(item for item in items if not rows.isdisjoint(self._row_ids([item])))

    def _row_ids(self, items: Iterable[Item]) -> list[str]:
        return [row_id(i.item_id, q.question_id, self._fingerprint) for i in items for q in self.recipe.questions]

    def _commit(
        self, shard: Shard, claim: Claim, rows: Sequence[AnswerRow], retries: int, again: frozenset[str] | None
    ) -> bool:
        ordered = self._in_order(shard, rows)
        if not self._leases.holds(claim) and self._is_done(shard.index, self._parts.part(shard.index)):
            self.event("late_commit_dropped", shard=shard.index)
            return False
        if again is None:
            if not self._parts.write(shard.index, ordered, retries):
                self.event("late_commit_dropped", shard=shard.index)
                return False
        else:  # of the items that were answered again, the rows that nobody asked for stay as they were
            ordered = [row for row in ordered if row.row_id in again]
            self._parts.write(shard.index, ordered, retries, self._row_ids(self.shard(shard.index).items))
        self.event("committed", shard=shard.index, rows=len(ordered), failed=sum(r.status == "failed" for r in ordered))
        return True

    def _in_order(self, shard: Shard, rows: Sequence[AnswerRow]) -> list[AnswerRow]:
        """``rows`` by item and question; raises ValueError unless there is exactly one for each."""
        by_id = {row.row_id: row for row in rows}
        ids = self._row_ids(shard.items)
        missing, foreign = len(set(ids) - by_id.keys()), len(by_id.keys() - set(ids))
        if missing or foreign or len(rows) != len(ids) or any(row.run_id != self.run_id for row in rows):
            raise ValueError(
                f"shard {shard.index} of run {self.run_id} needs {len(ids)} rows, one an item and question; "
                f"given {len(rows)}: {missing} missing, {foreign} of other items, questions or recipes"
            )
        return [by_id[i] for i in ids]


class Lease:
    """The right to answer one shard. A context manager: what is not committed is given back.

    ``repeats``: its items were answered before, in rows that failed or in a part that was no good.
    """

    def __init__(
        self,
        run: Run,
        shard: Shard,
        claim: Claim,
        retries: int,
        again: frozenset[str] | None = None,
        repeats: bool = False,
    ) -> None:
        self.shard = shard
        self.repeats = repeats or again is not None
        self._retries, self._again = retries, again
        self._run = run
        self._claim = claim

    def commit(self, rows: Sequence[AnswerRow]) -> bool:
        """Write the shard's part at once and give the lease back.

        False where another worker had taken the lease over and committed first: then its part stays. Raises ValueError
        unless there is exactly one row an item and question, and StoreUnusable where the part cannot be written.
        """
        committed = self._run._commit(self.shard, self._claim, rows, self._retries, self._again)
        self.release()
        return committed

    def release(self) -> None:
        """Give the shard back, committed or not; may be called twice."""
        self._run._leases.release(self._claim)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def _shard_name(index: int) -> str:
    return f"shard-{index:05d}"
