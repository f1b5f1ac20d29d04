"""What /metrics says: vLLM's names, and numbers that are those of the answers given."""

from __future__ import annotations

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families
from server_harness import FakeEngine, LiveServer, card, chat, encoded, uri

from zellige.engine.api import KernelHealth, RunMeter

#: What vLLM's own dashboards ask for, without the prefix.
DASHBOARD = (
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries", "prefix_cache_hits",
    "mm_cache_queries", "mm_cache_hits", "num_preemptions", "prompt_tokens", "generation_tokens", "request_success",
    "time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds",
    "request_time_per_output_token_seconds", "request_prompt_tokens", "request_generation_tokens",
    "request_decode_time_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
    "request_max_num_generation_tokens", "request_params_max_tokens",
)  # fmt: skip


def test_the_names_are_vllms_and_the_format_is_prometheus(fake: LiveServer) -> None:
    reply = fake.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    names = {family.name for family in text_string_to_metric_families(reply.text)}
    assert {f"zellige:{name}" for name in DASHBOARD} <= names
    assert "zellige:nonfinite_rows" in names


def test_answers_are_counted_whole_and_streamed(fake: LiveServer) -> None:
    picture = uri(encoded(card(size=(64, 32))))
    fake.post(chat(picture, "?")).raise_for_status()
    fake.post(chat(picture, "?", stream=True)).raise_for_status()
    fake.post(chat("?", max_tokens=0))
    assert fake.metric("prompt_tokens_total") == 2 * 14
    assert fake.metric("image_tokens_total") == 2 * 4
    assert fake.metric("generation_tokens_total") == 2 * 3
    assert fake.metric("request_success_total") == 2
    assert fake.metric("request_errors_total") == 1
    assert fake.metric("time_to_first_token_seconds_count") == 2
    assert fake.metric("time_to_first_token_seconds_sum") == 2 * 0.1
    assert fake.metric("inter_token_latency_seconds_count") == 3  # the streamed one's pieces: three words and the end
    assert fake.metric("request_time_per_output_token_seconds_sum") == 2 * (0.2 - 0.1) / 2
    assert fake.metric("request_decode_time_seconds_sum") == 2 * (0.2 - 0.1)
    assert fake.metric("kv_cache_usage_perc") == 0.25


def test_what_is_being_answered_shows_while_it_is() -> None:
    engine = FakeEngine(words=("a",) * 50, gap_s=0.05)
    with LiveServer(lambda: engine) as server:
        client = server.client()
        with client.chat.completions.create(model="fake", **chat("?"), stream=True) as stream:
            next(iter(stream))
            assert server.metric("num_requests_running") == 1


def test_the_longest_answer_of_each_prompt_is_counted_and_what_was_asked_for(fake: LiveServer) -> None:
    lengths = iter((1, 3, 2, 2))
    fake.engine.before = lambda request: setattr(fake.engine, "words", ("a ",) * next(lengths))
    body = {"prompt": ["one", "two"], "n": 2, "max_tokens": 7}
    fake.post(body, "/v1/completions").raise_for_status()
    assert fake.metric("request_max_num_generation_tokens_count") == 2
    assert fake.metric("request_max_num_generation_tokens_sum") == 3 + 2
    assert fake.metric("request_params_max_tokens_sum") == 4 * 7
    fake.engine.before = lambda request: None
    fake.post(chat("?", max_tokens=9, stream=True)).raise_for_status()
    assert fake.metric("request_max_num_generation_tokens_count") == 3
    assert fake.metric("request_params_max_tokens_sum") == 4 * 7 + 9


def test_an_answers_time_is_waiting_prompt_and_the_rest(demo: LiveServer) -> None:
    names = [f"request_{part}_time_seconds_sum" for part in ("queue", "prefill", "decode")]
    before = [demo.metric(name) for name in (*names, "e2e_request_latency_seconds_sum")]
    demo.post(chat(uri(encoded(card())), "Describe the image.", max_tokens=4)).raise_for_status()
    after = [demo.metric(name) for name in (*names, "e2e_request_latency_seconds_sum")]
    queue, prefill, decode, whole = (b - a for a, b in zip(before, after, strict=True))
    assert queue >= 0
    assert prefill > 0
    assert queue + prefill + decode <= whole, "what is missing is making the image ready"


def test_the_engine_that_ships_counts_its_blocks(demo: LiveServer) -> None:
    demo.post(chat("Describe the image.", max_tokens=2)).raise_for_status()
    stats = demo.engine.stats()
    assert stats.cache_blocks > 0
    assert stats.running == stats.waiting == 0
    assert stats.failure is None


def test_the_health_of_kernels_is_part_of_a_runs_meter(fake: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that gave NaN has no error to tell; JSON has no word for it."""
    broken = KernelHealth(
        operator="rms_norm", device="cuda:0", launches=3, checked=1, max_rel_l2=math.nan, tolerance=1e-3, nonfinite=1,
        guard_hits=0, repeat_mismatches=0, launch_errors=0, device_ms=0.5, bytes=7, verdict="bad",
    )  # fmt: skip

    async def metered(run_id: str) -> RunMeter:
        return RunMeter(requests=1, kernels=(broken,))

    monkeypatch.setattr(fake.engine, "meter", metered)
    (kernel,) = fake.get("/v1/runs/a/meter").json()["kernels"]
    assert (kernel["operator"], kernel["nonfinite"], kernel["max_rel_l2"]) == ("rms_norm", 1, None)
