"""The engine in this process: requests come from asyncio, one thread steps the model."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from zellige.engine.account import Account
from zellige.engine.accounts import Accounts
from zellige.engine.api import (
    Answer,
    Delta,
    EngineError,
    EngineStats,
    ModelIdentity,
    NonFiniteLogits,
    Request,
    RequestRejected,
    RunMeter,
    Usage,
)
from zellige.engine.cache import BlockPool, prefix_keys
from zellige.engine.caller import Caller
from zellige.engine.checkpoint import Checkpoint, Weights
from zellige.engine.config import EngineConfig
from zellige.engine.detokenizer import Vocabulary
from zellige.engine.flights import EngineStopped, Flight, Job
from zellige.engine.grammar import GrammarCompiler
from zellige.engine.host_memory import keep_freed_memory
from zellige.engine.models.qwen3_vl import load_model
from zellige.engine.openmp import in_own_thread
from zellige.engine.output import Output, check_token_ids, controls_of
from zellige.engine.processor import Processor, Prompt
from zellige.engine.runner import Runner
from zellige.engine.sampler import Chosen
from zellige.engine.scheduler import Scheduler, Sequence
from zellige.kernels.meter import LaunchFailed

#: Requests whose logits were not finite that are computed once more to find where it began.
NONFINITE_LOCATED = 16
ENGINE_THREAD = "zellige-engine"


class LocalEngine:
    """Implements ``engine.api.Engine``. One thread owns the scheduler, the runner and all jobs."""

    def __init__(self, processor: Processor, runner: Runner, identity: ModelIdentity, eos: frozenset[int]) -> None:
        self._processor, self._runner, self._identity, self._eos = processor, runner, identity, eos
        self._vocabulary = Vocabulary(processor.tokenizer)
        self._grammars = GrammarCompiler(self._vocabulary, processor.tokenizer, eos)
        config = runner.config
        self._scheduler = Scheduler(
            BlockPool(runner.blocks, config.block_tokens, runner.remembered_blocks),
            config.max_sequences,
            config.step_tokens,
        )
        self._jobs: dict[str, Job] = {}
        self._inbox: queue.SimpleQueue[Job | str | None] = queue.SimpleQueue()
        self._accounts = Accounts()
        self._flight: Flight | None = None
        #: Why it answers nobody any more.
        self.stopped: EngineError | None = None
        self._nonfinite_rows = 0
        self._prepare = ThreadPoolExecutor(2, thread_name_prefix="zellige-prepare")
        self._thread = threading.Thread(target=self._serve, name=ENGINE_THREAD, daemon=True)
        self._thread.start()

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        name: str | None = None,
        limits: Mapping[str, float] | None = None,
    ) -> LocalEngine:
        """Load a checkpoint folder, called ``name`` (None: as the folder is); raises CheckpointError or ConfigError."""
        config = EngineConfig.load(device, dtype, limits)
        if config.device != "cpu":
            return cls._load(folder, config, name)
        keep_freed_memory()
        return in_own_thread(lambda: cls._load(folder, config, name))

    @classmethod
    def _load(cls, folder: Path, config: EngineConfig, name: str | None) -> LocalEngine:
        _use(config.torch_device)
        checkpoint = Checkpoint(folder)
        processor = Processor(checkpoint)
        with Weights(checkpoint, config.torch_device, config.torch_dtype) as weights:
            model = load_model(weights, checkpoint.config)
        runner = Runner(model, processor.rules, config)
        habits = checkpoint.habits()
        identity = ModelIdentity(
            name=name or folder.resolve().name,
            fingerprint=checkpoint.fingerprint(),
            dtype=config.dtype,
            vision=processor.budget,
            max_context=min(model.text.context, runner.blocks * config.block_tokens),
            follows_instructions=habits.follows_instructions,
            lines_at_once=habits.lines_at_once,
        )
        return cls(processor, runner, identity, _eos(checkpoint))

    async def answer(self, request: Request) -> Answer:
        """The whole answer; raises RequestRejected, NonFiniteLogits or EngineError."""
        async for delta in self._run(request, streams=False):
            if delta.answer is not None:
                return delta.answer
        raise EngineError("the engine ended without an answer")

    def stream(self, request: Request) -> AsyncIterator[Delta]:
        """The answer piece by piece, never half a character; the last delta carries the whole."""
        return self._run(request, streams=True)

    async def meter(self, run_id: str) -> RunMeter:
        return self.account(run_id).meter()

    def account(self, run_id: str) -> Account:
        """What a run had so far; any thread may ask."""
        return self._accounts.account(run_id)

    async def identity(self) -> ModelIdentity:
        return self._identity

    def stats(self) -> EngineStats:
        """What the scheduler holds now; lengths and counters only, so that any thread may ask."""
        pool = self._scheduler.pool
        return EngineStats(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            cache_blocks=pool.blocks,
            cache_blocks_free=pool.free,
            prefix_queries=self._scheduler.asked_tokens,
            prefix_hits=self._scheduler.reused_tokens,
            image_queries=self._runner.images.cache.queries,
            image_hits=self._runner.images.cache.hits,
            preemptions=self._scheduler.preemptions,
            nonfinite_rows=self._nonfinite_rows,
            failure=None if self.stopped is None else str(self.stopped),
        )

    async def close(self) -> None:
        """Stop the thread; requests on their way fail with EngineError."""
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)
        self._prepare.shutdown(wait=False, cancel_futures=True)
        self._grammars.close()

    async def _run(self, request: Request, *, streams: bool) -> AsyncIterator[Delta]:
        job = await self._admit(request, streams=streams)
        try:
            async for delta in job.caller.pieces():
                yield delta
        finally:
            # Harmless for a job that has ended; for one that was cancelled it frees its blocks.
            self._inbox.put(request.request_id)

    async def _admit(self, request: Request, *, streams: bool) -> Job:
        arrived = time.perf_counter()
        loop = asyncio.get_running_loop()
        prompt, keys, output, preprocess_s = await loop.run_in_executor(self._prepare, self._timed_prepare, request)
        room = self._identity.max_context - len(prompt.tokens)
        if room < 1:
            raise RequestRejected(
                f"the prompt has {len(prompt.tokens)} tokens ({prompt.image_tokens} of images) and the context holds "
                f"{self._identity.max_context}, at least one of them for the answer; shorten it or send fewer images"
            )
        sequence = Sequence(
            request_id=request.request_id,
            prompt=prompt,
            tokens=list(prompt.tokens),
            limit=len(prompt.tokens) + min(request.sampling.max_tokens, room),
            keys=keys,
        )
        job = Job(
            request=request,
            sequence=sequence,
            output=output,
            caller=Caller(),
            streams=streams,
            arrived=arrived,
            queued=time.perf_counter(),
            preprocess_s=preprocess_s,
        )
        self._inbox.put(job)
        if self.stopped is not None:  # set before the thread empties its inbox for the last time
            raise self.stopped
        return job

    def _timed_prepare(self, request: Request) -> tuple[Prompt, tuple[bytes, ...], Output, float]:
        begin = time.perf_counter()
        check_token_ids(request.sampling, self._runner.model.text.vocab)
        grammar = self._grammars.start(request.grammar) if request.grammar is not None else None
        output = Output(request, self._eos, self._vocabulary, grammar)
        prompt = self._processor.prepare(request)
        keys = prefix_keys(prompt.tokens, prompt.images, self._runner.config.block_tokens)
        return prompt, keys, output, time.perf_counter() - begin

    # ---- from here on everything runs in the engine's thread

    def _serve(self) -> None:
        _use(self._runner.device)
        try:
            while self._take_messages():
                if not self._idle:
                    self._step()
            self._stop(EngineError("the engine was closed"))
        except BaseException as error:
            self._stop(EngineStopped(error, frozenset(s.request_id for s in self._scheduler.running)))
            raise

    @property
    def _idle(self) -> bool:
        return self._scheduler.idle and self._flight is None

    def _stop(self, reason: EngineError) -> None:
        """Nobody is left waiting: jobs on their way fail, and so does whatever still lies in the inbox."""
        self.stopped = reason
        while not self._inbox.empty():
            if isinstance(message := self._inbox.get(), Job):
                message.caller.send(reason)
        for job in list(self._jobs.values()):
            self._forget(job)
            job.caller.send(reason)
        self._accounts.settle()

    def _take_messages(self) -> bool:
        """Take in new jobs and cancellations; sleep while there is nothing to do. False when the engine is closed."""
        wait = self._idle
        while True:
            try:
                message = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            if message is None:
                return False
            if isinstance(message, str):
                if message in self._jobs:
                    self._forget(self._jobs[message])
            elif message.request.request_id in self._jobs:
                message.caller.send(
                    RequestRejected(f"request id {message.request.request_id} is already being answered")
                )
            else:
                self._jobs[message.request.request_id] = message
                self._accounts.count(message.request.run_id, preprocess_s=message.preprocess_s)
                self._scheduler.add(message.sequence)

    def _step(self) -> None:
        """One step to its end, with the next one on its way behind it where that can be."""
        flight, self._flight = self._flight or self._launch(), None
        if flight is None:
            return
        self._flight = self._launch_ahead(flight)
        self._accounts.settle()
        result = flight.launched.result()
        alive = [self._jobs.get(c.sequence.request_id) is j for c, j in zip(flight.chunks, flight.jobs, strict=True)]
        for chunk, still in zip(flight.chunks, alive, strict=True):
            if still:
                self._scheduler.computed(chunk)
        self._accounts.ran(flight.shares(), result)
        for row, chosen in zip(flight.ending, result.chosen, strict=True):
            job = flight.jobs[row]
            if not alive[row]:
                continue
            if not chosen.finite:
                self._nonfinite_rows += 1
                self._scheduler.remove(job.sequence, spoiled=True)
                where = self._nonfinite_place(job.sequence)
                self._fail(job, NonFiniteLogits(f"the model's logits held NaN or infinity{where}"))
            else:
                self._advance(job, chosen)

    def _launch(self) -> Flight | None:
        """Plan a step and start it; None where it failed and its requests with it."""
        chunks = self._scheduler.plan()
        jobs = [self._jobs[c.sequence.request_id] for c in chunks]
        for job in jobs:
            job.begin()
        ending = [row for row, c in enumerate(chunks) if c.ends_sequence]
        try:
            controls = controls_of([jobs[row].output for row in ending], self._grammars)
            return Flight(self._runner.launch(chunks, controls), chunks, jobs, ending)
        except Exception as error:
            if self._runner.device.type == "cuda" or isinstance(error, LaunchFailed):
                raise  # a device error spoils the context; nothing computed after it can be trusted
            for job in jobs:
                failure = EngineError(f"the engine failed while computing this request: {error}")
                failure.__cause__ = error
                self._fail(job, failure)
            return None

    def _launch_ahead(self, flight: Flight) -> Flight | None:
        """Start the step behind ``flight`` before its tokens are known: every sequence goes on by one.

        Not where somebody waits to join, and not where a token depends on the text before it. A sequence that
        turns out to have ended has computed one token too many, into a block that nobody has been given yet.
        """
        if self._runner.graphs is None or not self._inbox.empty() or len(flight.ending) != len(flight.jobs):
            return None
        rows = [
            row
            for row, job in enumerate(flight.jobs)
            if self._jobs.get(job.request.request_id) is job and len(job.sequence.tokens) + 1 < job.sequence.limit
        ]
        jobs = [flight.jobs[row] for row in rows]
        if not jobs or any(job.output.looks_back for job in jobs):
            return None
        chunks = self._scheduler.plan_ahead([job.sequence for job in jobs])
        if chunks is None:
            return None
        controls = controls_of([job.output for job in jobs], self._grammars, ahead=1)
        launched = self._runner.launch_ahead(flight.launched, rows, chunks, controls)
        return None if launched is None else Flight(launched, chunks, jobs, list(range(len(jobs))))

    def _nonfinite_place(self, sequence: Sequence) -> str:
        """Words on where the first NaN or infinity comes up; the first few times, for it costs the request again."""
        if self._nonfinite_rows > NONFINITE_LOCATED:
            return ""
        try:
            place = self._runner.first_nonfinite(sequence)
        except Exception as error:
            if self._runner.device.type == "cuda" and not isinstance(error, torch.OutOfMemoryError):
                raise
            return f"; computing it again to find where failed: {error}"
        return ", which did not come up when it was computed again" if place is None else f"; the first in: {place}"

    def _advance(self, job: Job, chosen: Chosen) -> None:
        sequence, output = job.sequence, job.output
        sequence.tokens.append(chosen.token)
        try:
            delta = output.push(chosen, full=len(sequence.tokens) >= sequence.limit)
        except RequestRejected as error:
            self._fail(job, error)
            return
        if len(output.tokens) == 1:
            job.first_token_s = time.perf_counter() - job.arrived
        if output.finish_reason is None:
            if delta is not None and job.streams:
                job.caller.send(delta)
            return
        prompt = sequence.prompt
        usage = Usage(prompt.image_tokens, len(prompt.tokens), len(output.tokens))
        engine_s = time.perf_counter() - job.arrived
        answer = replace(
            output.answer(usage, engine_s=engine_s, first_token_s=job.first_token_s),
            queue_s=job.queue_s or 0.0,
            prefill_s=job.arrived + job.first_token_s - job.queued - (job.queue_s or 0.0),
        )
        self._accounts.settle()
        self._accounts.count(
            job.request.run_id,
            requests=1,
            images=len(prompt.images),
            image_tokens=prompt.image_tokens,
            prompt_tokens=len(prompt.tokens),
            completion_tokens=usage.completion_tokens,
        )
        self._forget(job)
        job.caller.send(replace(delta or Delta(""), answer=answer))

    def _fail(self, job: Job, error: EngineError) -> None:
        self._accounts.settle()
        self._forget(job)
        job.caller.send(error)

    def _forget(self, job: Job) -> None:
        self._jobs.pop(job.request.request_id, None)
        self._scheduler.remove(job.sequence)


def _use(device: torch.device) -> None:
    """Let the calling thread compute there: Triton launches on a thread's current device, whatever tensors are on."""
    if device.index is not None:
        torch.cuda.set_device(device)


def _eos(checkpoint: Checkpoint) -> frozenset[int]:
    """Stop tokens: generation_config's eos_token_id, or config's where there is none."""
    own = checkpoint.json("generation_config.json", required=False).get("eos_token_id")
    if own is None:
        own = checkpoint.config.get("eos_token_id", checkpoint.config.get("text_config", {}).get("eos_token_id"))
    return frozenset([own] if isinstance(own, int) else own or ())
