"""Lease: one worker's loop over the shards of a run, until none is left or it is told to stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict

from zellige.data.decode_pool import DecodePool
from zellige.data.ledger import Lease, LedgerError, Run
from zellige.data.schema import AnswerRow, Recipe
from zellige.data.sources import Source, open_source
from zellige.data.views import ViewRule
from zellige.engine.api import RunMeter
from zellige.tasks.answer import Asker
from zellige.tasks.copies import Answers
from zellige.tasks.decode import Decoder
from zellige.tasks.environment import ENVIRONMENT_EVENT, environment
from zellige.tasks.host import EngineHost
from zellige.tasks.job import Job
from zellige.tasks.plan import engine_of, open_store, timed_host
from zellige.tasks.recipe import grammar_of, second_tries_of, stored_sampling, validator_of
from zellige.tasks.shard import ShardWork
from zellige.tasks.timeline import Timeline
from zellige.tasks.watch import Tally, Watch, current_watch

#: Threads that wait for the bytes of items that are no local files.
READ_THREADS = 8
#: Seconds between looks at shards that other workers hold, in case one of them dies.
LOOK_AGAIN_S = 2.0

log = logging.getLogger(__name__)


def lease_loop(job: Job, run_id: str) -> None:
    """Answer and commit shard after shard of a run, then record what this worker did and how it ended.

    Ends when every shard is done, by whomever, or when the watch of this context says stop. Does nothing on a finished
    run. Raises EngineDownError, or StoreUnusable where a part cannot be written; what was committed before stays.
    """
    run, watch = open_store(job).open_run(run_id), current_watch()
    watch.run_id = run_id
    if run.state() == "finished":
        return
    with closing(DecodePool(job.workers)) as pool:
        pool.start_one()  # while the engine loads
        host = timed_host(engine_of(job, run))
        _work(run, host, watch, pool, Answers() if job.dedupe else None)


def _work(run: Run, host: EngineHost, watch: Watch, pool: DecodePool, answers: Answers | None) -> None:
    """Answer what is left of a run and record how it ended."""
    timeline = Timeline(watch.tally, host.engine)
    try:
        run.event(ENVIRONMENT_EVENT, **environment())
        with timeline:
            _answer_shards(run, host, watch, pool, answers, timeline)
    except BaseException as e:
        interrupted = not isinstance(e, Exception)  # Ctrl-C, or Prefect's word for a flow run that is cancelled
        with suppress(LedgerError):  # a store that is gone or full is often the error itself, which then says more
            run.finish("interrupted" if interrupted else "failed", None if interrupted else f"{type(e).__name__}: {e}")
        raise
    _store_health(run, host, watch.tally, timeline)
    run.finish("finished" if len(run.done_shards()) == run.shard_count else "interrupted")


def _answer_shards(
    run: Run, host: EngineHost, watch: Watch, pool: DecodePool, answers: Answers | None, timeline: Timeline
) -> None:
    tally, start = watch.tally, time.perf_counter()
    tally.items_total, look_again = run.items_left(), start + LOOK_AGAIN_S

    def on_change(changed: Tally) -> None:
        changed.wall_s = changed.plan_s + time.perf_counter() - start
        watch.on_change(changed)

    source, inside = open_source(run.inputs, run.source_options), Watch(tally, watch.stop, on_change)
    with shard_work(run.run_id, run.recipe, source, host, pool, inside, answers) as work:
        while (lease := _next_lease(run, watch)) is not None:
            with lease:
                rows = host.run(work.rows(lease.shard.items))
                commit(lease, rows, tally)
            if time.perf_counter() > look_again:  # others may have done some of them meanwhile
                tally.items_total, look_again = tally.items + run.items_left(), time.perf_counter() + LOOK_AGAIN_S
            on_change(tally)
            # After every part, so that the share of a worker that is killed later is counted too.
            _store_health(run, host, tally, timeline)
    tally.items_total = tally.items + run.items_left()
    on_change(tally)


@contextmanager
def shard_work(
    run_id: str,
    recipe: Recipe,
    source: Source,
    host: EngineHost,
    pool: DecodePool,
    watch: Watch,
    answers: Answers | None,
) -> Iterator[ShardWork]:
    """What answers the items of ``source`` by ``recipe``, while inside."""
    lines = recipe.preprocessing.get("lines_at_once")
    tries = second_tries_of(recipe)
    turn_pages = recipe.task == "ask" and recipe.tiling != "off" and tries > 0
    rule = ViewRule(recipe.task, recipe.tiling, host.identity().vision, lines_at_once=lines, turn_pages=turn_pages)
    with ThreadPoolExecutor(READ_THREADS, thread_name_prefix="zellige-read") as readers:
        yield ShardWork(
            run_id=run_id,
            recipe=recipe,
            sampling=stored_sampling(recipe),
            decoder=Decoder(source, rule, pool, readers),
            asker=Asker(host.engine, watch.tally, validator_of(recipe), second_tries=tries),
            watch=watch,
            answers=answers,
            grammar=grammar_of(recipe),
        )


def commit(lease: Lease, rows: Sequence[AnswerRow], tally: Tally) -> None:
    """Write a shard's rows as its part, and the log's lines about it."""
    start = time.perf_counter()
    committed = lease.commit(rows)
    if lease.repeats or not committed:
        tally.repeated(rows)
    if not committed:
        log.warning("shard %d was answered by another worker; its rows stand, ours are dropped", lease.shard.index)
    tally.commit_s += time.perf_counter() - start
    log.info("shard %d: %d rows", lease.shard.index, len(rows))
    for row in rows:
        if row.status == "failed":
            log.warning("%s, question %s: %s: %s", row.uri, row.question_id, row.error_kind, row.error)


def _store_health(run: Run, host: EngineHost, tally: Tally, timeline: Timeline) -> None:
    """What this worker did so far and how the kernels of its engine behaved, in place of what was stored before."""
    run.write_timeline(timeline.moments())
    meter = host.run(host.engine.meter(run.run_id))
    run.write_throughput(_sample(tally, meter))
    if meter.kernels:
        run.write_kernels([asdict(row) for row in meter.kernels])


def _sample(tally: Tally, meter: RunMeter) -> dict[str, int | float | None]:
    """One worker's share of a run: what it counted itself, and the seconds inside the engine."""
    counted: dict[str, int | float | None] = {
        name: getattr(tally, name)
        for name in (
            *("items", "rows", "failed", "tiles", "requests", "retries", "second_tries", "images"),
            *("image_tokens", "prompt_tokens", "completion_tokens"),
            *("wall_s", "load_s", "plan_s", "decode_s", "engine_s", "commit_s"),
        )
    }
    for name, again in (("items", tally.items_again), ("rows", tally.rows_again), ("failed", tally.failed_again)):
        counted[name] = getattr(tally, name) - again
    inside = {"preprocess_s": meter.preprocess_s, "vision_s": meter.vision_s, "prefill_s": meter.prefill_s}
    return counted | inside | {"generate_s": meter.decode_s}


def _next_lease(run: Run, watch: Watch) -> Lease | None:
    """The next shard to do, waiting while other workers hold all that are left; None when there is nothing to do."""
    while not watch.stop.is_set():
        if (lease := run.lease()) is not None:
            return lease
        if len(run.done_shards()) == run.shard_count:
            return None
        watch.stop.wait(LOOK_AGAIN_S)
    return None
