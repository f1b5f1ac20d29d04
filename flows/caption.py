"""The caption flow: one caption for every image. A deployment names it ``flows/caption.py:caption``."""

from __future__ import annotations

from typing import Any

from zellige.flows.prefect_run import flow, run_as_flow
from zellige.tasks.job import Job


@flow(name="caption", persist_result=False)
def caption(
    inputs: list[str],
    store: str,
    prompt: str | None = None,
    tile: str | None = None,
    limit: int | None = None,
    resume: str | None = None,
    raw: bool | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    model: str | None = None,
    engines: list[str] | None = None,
    device: str | None = None,
    dtype: str | None = None,
    shard_items: int | None = None,
    include: list[str] | None = None,
    exclude: list[str] | None = None,
    column: str | None = None,
    keep: list[str] | None = None,
    workers: int | None = None,
    runner: str | None = None,
    runner_address: str | None = None,
    loops: int | None = None,
    dedupe: bool = True,
    retry: list[str] | None = None,
    json_schema: str | None = None,
    language: str | None = None,
    second_tries: int | None = None,
    engine_limits: dict[str, float] | None = None,
    new_only: bool = False,
    reports: str | None = None,
) -> Any:
    """Caption the images of ``inputs`` (paths or ``file://`` addresses) into ``store``; the run's summary.

    What is left out takes its default, or the run's own choice where ``resume`` names one. Rows that failed leave the
    flow run Completed; a run that was stopped is Cancelled, one that could not go on Failed. ``new_only`` finishes what
    earlier nights left, then asks about items that no run of the same recipe has answered; ``reports`` is a folder for
    a page about each run.
    """
    return run_as_flow(
        Job(
            task="caption",
            store=store,
            inputs=tuple(inputs),
            prompt=prompt,
            tile=tile,
            limit=limit,
            resume=resume,
            raw=raw,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            model=model,
            engines=tuple(engines or ()),
            device=device,
            dtype=dtype,
            shard_items=shard_items,
            include=tuple(include or ()),
            exclude=tuple(exclude or ()),
            column=column,
            keep=tuple(keep or ()),
            workers=workers,
            runner=runner,
            runner_address=runner_address,
            loops=loops,
            dedupe=dedupe,
            retry=tuple(retry or ()),
            json_schema=json_schema,
            language=language,
            second_tries=second_tries,
            engine_limits=engine_limits or {},
            new_only=new_only,
        ),
        reports,
    )
