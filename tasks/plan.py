"""Plan: every item listed before the first is answered; or the run that is taken up again, checked to be the same."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

from zellige.data.answered import Answered
from zellige.data.ledger import RecipeDiffers, Run, Store
from zellige.data.schema import ErrorKind, Item, Recipe
from zellige.data.sources import Source, open_source
from zellige.data.sources.missing import nothing_named
from zellige.engine.connect import EngineSpec
from zellige.tasks.host import EngineHost, engine_host
from zellige.tasks.job import DEFAULT_SHARD_ITEMS, Job, UnreachableError, WrongUseError
from zellige.tasks.recipe import (
    asked_over,
    local_path,
    model_fields,
    questions_of,
    recipe_of,
    sampling_of,
    tile_fits,
    tiling_of,
)
from zellige.tasks.watch import current_watch

#: The event that says which engine a run was begun with, so that --resume finds it again.
ENGINE_EVENT = "engine"
#: The event that counts, by reason, what the walk passed by.
IGNORED_EVENT = "ignored"
#: The event of a run that asks only about what was new when it was planned.
NEW_EVENT = "new_only"


def open_store(job: Job) -> Store:
    """The store of a job, given as a path or a ``file://`` address."""
    return Store(local_path(job.store))


def plan(job: Job) -> str | None:
    """The name of the run to work on: a new one with its items listed, or the one to resume, checked to be the same.

    None where only new items were wanted and there are none: no run is made of them. Raises WrongUseError,
    RecipeDiffers, or what the ledger and the engine raise. A finished run opens no engine.
    """
    if job.run_id is not None and not job.resume and job.run_id in open_store(job).run_ids():
        job = resuming(job, job.run_id)  # the same flow run, tried again
    run = resume_run(job) if job.resume else new_run(job)
    if run is None:
        return None
    run.close()
    return run.run_id


def resuming(job: Job, run_id: str) -> Job:
    """The job that finishes a run which ``job`` began, or would have begun."""
    job = replace(job, inputs=(), include=(), exclude=(), keep=(), column=None, limit=None, shard_items=None)
    return replace(job, resume=run_id, new_only=False)


def unfinished_runs(job: Job) -> list[str]:
    """Runs of the same recipe over the same inputs that are not finished, oldest first; opens the engine.

    Whoever asks for new items only has them finished first: what they hold was new to them.
    """
    inputs, recipe = source_of(job).inputs, _new_recipe(job)
    return [
        run.run_id
        for run in _runs_of(open_store(job), recipe)
        if (run.inputs, run.source_options) == (inputs, job.source_options) and run.state() != "finished"
    ]


def check(job: Job) -> bool:
    """Find what is wrong with a job before a server is started or a run is made; whether there is something to do.

    Opens the engine last, which stays open for whoever works in this process next. Raises as ``plan`` does. There is
    nothing to do where the run to resume is finished and is what was asked for.
    """
    if job.resume:
        run = open_store(job).open_run(job.resume)
        _same_inputs(job, run)
        _same_recipe(run, asked_over(job, run.recipe))
        if run.state() != "finished" or job.retry:
            open_store(job).check_writable()
            _same_recipe(run, _with_model(job, run))
            return True
        plan(job)  # compares the model too, where one was named
        return False
    if not job.inputs:
        raise WrongUseError("nothing to look at: name image files or folders, or a run with --resume")
    sampling_of(job)
    questions_of(job)
    tiling = tiling_of(job.tile, bool(job.raw))
    source_of(job)
    open_store(job).check_writable()
    tile_fits(tiling, timed_host(job.engine).identity().vision)
    return True


def source_of(job: Job) -> Source:
    """The source of a new run; raises WrongUseError where its inputs name nothing that is there, UnreachableError."""
    source = open_source(job.inputs, job.source_options)
    if (problem := nothing_named(source)) is not None:
        kind, told = problem
        raise UnreachableError(told) if kind == ErrorKind.TIMEOUT else WrongUseError(told)
    return source


def new_run(job: Job) -> Run | None:
    """List the items of ``job.inputs`` into a new run of ``job.store``; None where only new ones count and none is."""
    source = source_of(job)
    store = open_store(job)
    recipe = _new_recipe(job)
    watch, start = current_watch(), time.perf_counter()
    items = _new_items(store, recipe, source) if job.new_only else source.items()
    if job.new_only:
        if (first := next(items, None)) is None:
            return None
        items = chain([first], items)
    engine = {"model": _absolute(job.model), "engines": list(job.engine.urls)}
    run = store.create_run(
        recipe,
        islice(items, job.limit),
        shard_items=job.shard_items or DEFAULT_SHARD_ITEMS,
        inputs=source.inputs,
        include=job.include,
        exclude=job.exclude,
        column=job.column,
        keep=job.keep,
        limit=job.limit,
        run_id=job.run_id,
        noted={ENGINE_EVENT: engine} | ({NEW_EVENT: {}} if job.new_only else {}),
    )
    watch.tally.plan_s += time.perf_counter() - start
    run.event(IGNORED_EVENT, counts=dict(source.ignored))
    return run


def resume_run(job: Job) -> Run:
    """The run to finish; raises RecipeDiffers for an option that changes answers, else WrongUseError."""
    assert job.resume is not None
    run = open_store(job).open_run(job.resume)
    _same_inputs(job, run)
    opened = run.state() != "finished" or job.model or job.engines or job.dtype or job.retry
    _same_recipe(run, _with_model(job, run) if opened else asked_over(job, run.recipe))
    if not run.planned:
        source = open_source(run.inputs, run.source_options)
        new_only = any(event["kind"] == NEW_EVENT for event in run.events())
        items = _new_items(open_store(job), run.recipe, source) if new_only else source.items()
        run.plan(islice(items, run.limit))
        run.event(IGNORED_EVENT, counts=dict(source.ignored))
    if job.retry:
        run.retry(job.retry_kinds, open_source(run.inputs, run.source_options).again)
    return run


def engine_of(job: Job, run: Run) -> EngineSpec:
    """The engine for ``run``: what the job names, else the one and the dtype that the run was begun with."""
    begun_with = next((e for e in run.events() if e["kind"] == ENGINE_EVENT), {})
    if not (job.model or job.engines):
        job = replace(job, model=begun_with.get("model"), engines=tuple(begun_with.get("engines", ())))
    if job.engines or job.dtype or not job.resume:
        return job.engine
    return replace(job.engine, dtype=run.recipe.model_dtype)


def timed_host(spec: EngineSpec) -> EngineHost:
    """``engine_host``, with the seconds that it took counted."""
    tally, start = current_watch().tally, time.perf_counter()
    host = engine_host(spec)
    tally.load_s += time.perf_counter() - start
    return host


def _new_recipe(job: Job) -> Recipe:
    """The recipe of a new run; opens the engine."""
    sampling = sampling_of(job)
    questions, tiling = questions_of(job), tiling_of(job.tile, bool(job.raw))
    identity = timed_host(job.engine).identity()
    tile_fits(tiling, identity.vision)
    return recipe_of(job, questions, tiling, sampling, identity)


def _new_items(store: Store, recipe: Recipe, source: Source) -> Iterator[Item]:
    """Those items of ``source`` that no run of the recipe has answered."""
    return Answered(_runs_of(store, recipe)).new(source.items(), source.read)


def _runs_of(store: Store, recipe: Recipe) -> list[Run]:
    return [run for run in store.open_all()[0] if run.recipe.fingerprint == recipe.fingerprint]


def _with_model(job: Job, run: Run) -> Recipe:
    """What is asked for now, of the model that is there now: opens the engine."""
    return replace(asked_over(job, run.recipe), **model_fields(timed_host(engine_of(job, run)).identity()))


def _same_recipe(run: Run, wanted: Recipe) -> None:
    if differences := wanted.differences(run.recipe):
        raise RecipeDiffers(run.run_id, differences)


def _same_inputs(job: Job, run: Run) -> None:
    """Naming the run's inputs again is allowed, naming others is not."""
    given: list[tuple[str, object, object]] = []
    if job.inputs:
        given.append(("INPUT", open_source(job.inputs, job.source_options).inputs, run.inputs))
    if job.include:
        given.append(("--include", tuple(job.include), tuple(run.include)))
    if job.exclude:
        given.append(("--exclude", tuple(job.exclude), tuple(run.exclude)))
    if job.column is not None:
        given.append(("--column", job.column, run.source_options.column))
    if job.keep:
        given.append(("--keep", tuple(job.keep), run.source_options.keep))
    if job.limit is not None:
        given.append(("--limit", job.limit, run.limit))
    if job.shard_items is not None:
        given.append(("--shard-items", job.shard_items, run.shard_items))
    differing = [f"{name} is {now!r} and was {then!r}" for name, now, then in given if now != then]
    if differing:
        raise WrongUseError(
            f"run {run.run_id} was begun otherwise: {'; '.join(differing)}. "
            "Leave these out to finish it as it was begun, or start a new run without --resume."
        )


def _absolute(model: str | None) -> str | None:
    return None if model is None else str(Path(model).absolute())
