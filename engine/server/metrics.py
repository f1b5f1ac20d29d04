"""Prometheus metrics. Names and meanings are those of vLLM with ``zellige:`` in front: dashboards carry over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from zellige.engine.api import Answer, EngineStats, Request

_FIRST_TOKEN_S = (0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
_BETWEEN_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10)
_WHOLE_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)


class Metrics:
    """Counts of what the server answered, and the engine's own counts at the time of asking."""

    def __init__(self, model: str, stats: Callable[[], EngineStats]) -> None:
        self._model = model
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(model, stats))

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"zellige:{name}", what, ("model_name", *labels), registry=self._registry)

        def histogram(name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
            metric = Histogram(f"zellige:{name}", what, ("model_name",), registry=self._registry, buckets=buckets)
            return metric.labels(model)

        self._prompt = counter("prompt_tokens", "Prompt tokens of finished requests.").labels(model)
        self._image = counter("image_tokens", "Image tokens among them.").labels(model)
        self._generated = counter("generation_tokens", "Generated tokens of finished requests.").labels(model)
        self._finished = counter("request_success", "Finished requests by reason.", "finished_reason")
        self._errors = counter("request_errors", "Requests that ended in an error, by HTTP status.", "status")
        self._cancelled = counter("request_cancelled", "Requests whose client went away.").labels(model)
        self._by_key = counter("key_requests", "Requests by the name of their API key.", "key")
        self._first = histogram("time_to_first_token_seconds", "Arrival to the first token.", _FIRST_TOKEN_S)
        self._between = histogram("inter_token_latency_seconds", "Between pieces of streamed answers.", _BETWEEN_S)
        self._per_token = histogram(
            "request_time_per_output_token_seconds", "Mean over a request's tokens but the first.", _BETWEEN_S
        )
        self._decoding = histogram("request_decode_time_seconds", "First to the last token.", _WHOLE_S)
        self._whole = histogram("e2e_request_latency_seconds", "Arrival to the last token.", _WHOLE_S)
        self._prompts = histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self._lengths = histogram("request_generation_tokens", "Generated tokens of a request.", _TOKENS)
        self._queued = histogram("request_queue_time_seconds", "Ready to be computed to the first step.", _WHOLE_S)
        self._prefill = histogram("request_prefill_time_seconds", "The first step to the first token.", _WHOLE_S)
        self._wanted = histogram("request_params_max_tokens", "The max_tokens of a request.", _TOKENS)
        self._longest = histogram(
            "request_max_num_generation_tokens", "Generated tokens of the longest of a prompt's answers.", _TOKENS
        )

    def asked(self, requests: Sequence[Request]) -> None:
        """These are to be answered."""
        for request in requests:
            self._wanted.observe(request.sampling.max_tokens)

    def prompts_answered(self, answers: Sequence[Answer], prompts: int) -> None:
        """Every answer to ``prompts`` prompts, which share them evenly and in order."""
        n = len(answers) // prompts
        for begin in range(0, len(answers), n):
            self._longest.observe(max(a.usage.completion_tokens for a in answers[begin : begin + n]))

    def answered(self, answer: Answer) -> None:
        usage = answer.usage
        self._finished.labels(self._model, answer.finish_reason).inc()
        self._prompt.inc(usage.prompt_tokens)
        self._image.inc(usage.image_tokens)
        self._generated.inc(usage.completion_tokens)
        self._prompts.observe(usage.prompt_tokens)
        self._lengths.observe(usage.completion_tokens)
        self._first.observe(answer.first_token_s)
        self._whole.observe(answer.engine_s)
        self._queued.observe(answer.queue_s)
        self._prefill.observe(answer.prefill_s)
        self._decoding.observe(answer.engine_s - answer.first_token_s)
        if usage.completion_tokens > 1:
            self._per_token.observe((answer.engine_s - answer.first_token_s) / (usage.completion_tokens - 1))

    def token_gap(self, seconds: float) -> None:
        self._between.observe(seconds)

    def failed(self, status: int) -> None:
        self._errors.labels(self._model, str(status)).inc()

    def cancelled(self) -> None:
        self._cancelled.inc()

    def asked_by(self, key: str) -> None:
        self._by_key.labels(self._model, key).inc()

    def text(self) -> bytes:
        """The page that Prometheus reads."""
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    """Asks the engine when the page is made, and not before."""

    def __init__(self, model: str, stats: Callable[[], EngineStats]) -> None:
        self._model, self._stats = model, stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        used = (1 - stats.cache_blocks_free / stats.cache_blocks) if stats.cache_blocks else 0.0
        for name, what, value in (
            ("num_requests_running", "Requests in the batch.", stats.running),
            ("num_requests_waiting", "Requests that wait for a place in it.", stats.waiting),
            ("kv_cache_usage_perc", "Cache blocks in use, 1 for all.", used),
        ):
            gauge = GaugeMetricFamily(f"zellige:{name}", what, labels=("model_name",))
            gauge.add_metric((self._model,), value)
            yield gauge
        for name, what, value in (
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found there.", stats.prefix_hits),
            ("mm_cache_queries", "Images looked up in the encoder cache.", stats.image_queries),
            ("mm_cache_hits", "Images found there.", stats.image_hits),
            ("num_preemptions", "Requests that gave their blocks back and were computed again.", stats.preemptions),
            ("nonfinite_rows", "Rows of logits that held NaN or infinity.", stats.nonfinite_rows),
        ):
            counter = CounterMetricFamily(f"zellige:{name}", what, labels=("model_name",))
            counter.add_metric((self._model,), value)
            yield counter
