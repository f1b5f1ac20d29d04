"""What the commands do once their options are read: run a job, look at runs; each gives back its exit code."""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

from zellige.data.ledger import LedgerError, RecipeDiffers, RunExists, Store, UnknownRun
from zellige.data.schema import storable
from zellige.data.sources import SourceError, open_source
from zellige.flows.ephemeral import PrefectUnavailableError, prefect_server
from zellige.flows.interrupt import stopping_on_interrupt
from zellige.flows.output import put
from zellige.flows.pipeline import RunFailedError, exit_code, run_job
from zellige.flows.progress import watching
from zellige.flows.settings import settle
from zellige.flows.show import forecast_lines, next_step, resume_command, summary_lines
from zellige.tasks.forecast import forecast
from zellige.tasks.host import EngineNotOpenedError, closing_engines
from zellige.tasks.job import Flow, Job, UnreachableError, WrongUseError
from zellige.tasks.plan import check
from zellige.tasks.recipe import local_path
from zellige.tasks.record import record
from zellige.tasks.watch import Watch, watched_by

log = logging.getLogger(__name__)

#: Prefect's API refuses parameters of more than 512 kB; the rest is for its own words around them.
LARGEST_PARAMETERS_BYTES = 400_000
#: What is told as it is, without a trace: the first as wrong use.
WRONG_USE = (WrongUseError, SourceError, UnknownRun, RunExists, RecipeDiffers, EngineNotOpenedError)
TOLD = (RunFailedError, LedgerError, PrefectUnavailableError, UnreachableError)


def start(
    task: Flow,
    parameters: dict[str, Any],
    *,
    dry_run: bool,
    prefect: bool,
    as_json: bool,
    quiet: bool,
    log_file: Path | None,
) -> int:
    """Run one job from the command line; its exit code."""
    watch = Watch()

    def work() -> int:
        if log_problem is not None:
            raise log_problem
        settle(task, parameters)
        job = _job(task, parameters, dry_run)
        parameters["inputs"] = list(open_source(job.inputs, job.source_options).inputs) if job.inputs else []
        job = replace(job, inputs=tuple(parameters["inputs"]))
        if dry_run:
            return _show_forecast(job, as_json)
        if not prefect and (job.runner or job.loops):
            raise WrongUseError("--runner and --loops are Prefect's to carry out; leave --no-prefect out")
        with watched_by(watch), stopping_on_interrupt(watch), closing_engines():
            if not check(job):
                done = record(job, job.resume or "")
                return _show_end(done, as_json, quiet, exit_code(done))
            with watching(quiet) as watch.on_change:
                done = _run_in_prefect(task, parameters, quiet) if prefect else run_job(job)
        return _show_end(done, as_json, quiet, exit_code(done))

    with logging_to(log_file) as log_problem:
        try:
            return reported(work, as_json)
        except KeyboardInterrupt:
            _stop_at_once(watch, task, parameters["store"], as_json)


def _job(task: Flow, parameters: dict[str, Any], dry_run: bool) -> Job:
    store = parameters["store"]
    if not store and not dry_run:
        raise WrongUseError("give --store DIR: the folder, or s3://bucket/prefix, for the run and its answers")
    if store and store.startswith("memory://"):
        raise WrongUseError(f"--store {store}: that is gone when the program ends; name a folder or s3://bucket/prefix")
    lists = {name: tuple(value) for name, value in parameters.items() if isinstance(value, list)}
    return Job(task=task, **(parameters | lists | {"store": parameters["store"] or ""}))


def _run_in_prefect(task: Flow, parameters: dict[str, Any], quiet: bool) -> dict[str, Any]:
    """Run the flow; its summary. Errors come out as they were raised inside."""
    for name, value in parameters.items():
        if (size := len(json.dumps(value))) > LARGEST_PARAMETERS_BYTES:
            raise WrongUseError(
                f"the parameter {name} takes {size:,} bytes, more than Prefect stores; name a folder instead of its "
                "files, or a file instead of its questions, or run with --no-prefect"
            )
        if storable(text := json.dumps(value, ensure_ascii=False)) != text:
            raise WrongUseError(
                f"the parameter {name} holds bytes that are not UTF-8, which Prefect cannot store; "
                "run with --no-prefect"
            )
    with prefect_server(None if quiet else say):
        from zellige.flows.ask import ask
        from zellige.flows.caption import caption
        from zellige.flows.read import read

        flows: dict[str, Any] = {"caption": caption, "ask": ask, "read": read}
        done = flows[task](**parameters, return_state=True).result(raise_on_failure=False)
    if isinstance(done, BaseException):
        raise done
    return dict(done)


def _show_forecast(job: Job, as_json: bool) -> int:
    if job.resume:
        raise WrongUseError("--dry-run looks at a new run; leave --resume out")
    if job.new_only:
        raise WrongUseError("--dry-run looks at all inputs; leave --new out")
    with closing_engines():
        found = asdict(forecast(job))
    if as_json:
        put(json.dumps({"flow": job.task, "dry_run": True, **found}), sys.stdout)
    else:
        put("\n".join(forecast_lines(found)), sys.stdout)
    return 0


def _show_end(done: dict[str, Any], as_json: bool, quiet: bool, code: int) -> int:
    step = next_step(done)
    if not quiet:
        say(*summary_lines(done))
    if step and (not quiet or done["state"] != "finished"):
        say(f"  next: {step}")
    if as_json:  # last: who interrupts the words above gets one object all the same, and not two
        put(json.dumps(done | {"exit_code": code, "next": step}, default=str), sys.stdout)
    return code


def reported(work: Callable[[], int], as_json: bool) -> int:
    """What ``work`` gives back; its errors are told, with what to do next, and become exit codes."""
    try:
        return work()
    except Exception as e:
        code = 2 if isinstance(e, WRONG_USE) else 1
        told = e.summary if isinstance(e, RunFailedError) else {}
        message = str(e)
        if told:
            message += f"\n  go on with: {next_step(told)}"
        if not isinstance(e, (*WRONG_USE, *TOLD)):
            traceback.print_exc()
            message = f"an error that zellige should not have made: {type(e).__name__}: {e}"
        log.exception("%s", message)
    say(f"zellige: {message}")
    if as_json:
        put(json.dumps({"state": "failed", **told, "error": message, "exit_code": code}, default=str), sys.stdout)
    return code


def _stop_at_once(watch: Watch, task: str, store: str, as_json: bool) -> NoReturn:
    """Leave without waiting for threads: what is committed is whole, and the rest is done again by --resume."""
    step = resume_command(task, watch.run_id, local_path(store)) if watch.run_id else None
    say("zellige: stopped at once" + (f"; finish it with: {step}" if step else ""))
    if as_json:
        stopped = {"run_id": watch.run_id, "flow": task, "state": "interrupted", "error": "stopped at once"}
        put(json.dumps(stopped | {"exit_code": 1, "next": step}), sys.stdout)
    logging.shutdown()
    sys.stdout.flush()
    os._exit(1)


def existing(store: str) -> Store:
    """The store of runs that were made; raises WrongUseError where there is no such folder."""
    found = Store(store)
    if not found.is_there:
        raise WrongUseError(f"{store} is no folder; give the --store that runs were made with")
    return found


@contextmanager
def logging_to(file: Path | None) -> Iterator[WrongUseError | None]:
    """Inside, what zellige logs goes to ``file``; without one, nowhere. Yields what is wrong with the file.

    So do Python's warnings: a library's words about some image, without its name, are nothing to print.
    """
    root, warned, problem = logging.getLogger("zellige"), logging.getLogger("py.warnings"), None
    try:
        handler = logging.NullHandler() if file is None else logging.FileHandler(file, encoding="utf-8")
    except OSError as e:
        handler, problem = logging.NullHandler(), WrongUseError(f"--log-file {file}: {e.strerror}; name another file")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    before = [(logger, logger.level, logger.propagate) for logger in (root, warned)]
    for logger in (root, warned):
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    logging.captureWarnings(True)
    try:
        yield problem
    finally:
        logging.captureWarnings(False)
        for logger, level, propagate in before:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
        handler.close()


def say(*lines: str) -> None:
    put("\n".join(lines), sys.stderr)
