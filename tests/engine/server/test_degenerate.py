"""Empty and senseless requests (D22): refused with what is wrong, or answered; the next request never notices."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from server_harness import LiveServer, card, chat, encoded, uri

RED = uri(encoded(card()))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": ""}]}, "no text and no image"),
        ({"messages": [{"role": "user", "content": []}]}, "no text and no image"),
        ({"messages": [{"role": "user"}]}, "no text and no image"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": "a"}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": "hello"}, "messages"),
        ([], "no JSON object"),
        (chat("a", max_tokens=0), "max_tokens"),
        (chat("a", max_tokens=-1), "max_tokens"),
        (chat("a", max_tokens="5"), "max_tokens"),
        (chat("a", max_tokens=1.5), "max_tokens"),
        (chat("a", stop=[""]), "stop"),
        (chat("a", stop=""), "stop"),
        (chat("a", stop_token_ids=[None]), "stop_token_ids[0]"),
        (chat("a", stop_token_ids=[10**9]), "stop_token_ids"),
        (chat("a", temperature=-1), "temperature"),
        (chat("a", top_p=0), "top_p"),
        (chat("a", n=0), "n is 0"),
        (chat("a", n=10**6), "choices"),
        (chat("a", logit_bias={"x": 1}), "logit_bias"),
        (chat("a", top_logprobs=2), "logprobs"),
        (chat("a", response_format={"type": "json_schema"}), "json_schema"),
        (chat("a", response_format={"type": "json_object"}, guided_regex="a"), "one"),
        (chat("a", guided_regex="("), ""),
        (chat("a" * 50_000), "tokens"),
    ],
)
def test_what_makes_no_sense_is_told(demo: LiveServer, body: Any, says: str) -> None:
    reply = demo.post(body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert says in error["message"]
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) < 500


@pytest.mark.parametrize(
    "body",
    [
        chat("a", logit_bias={"SENT" * 1000: "x"}),
        {"messages": [{"role": "user", "content": [{"type": "SENT" * 1000}]}]},
        {"messages": [{"role": "SENT" * 1000, "content": "a"}]},
        chat("a", response_format={"type": "SENT" * 1000}),
        chat("a", model="SENT" * 1000),
        chat("SENT" * 20_000),
    ],
)
def test_what_was_sent_is_not_said_back(demo: LiveServer, body: Any) -> None:
    reply = demo.post(body)
    assert reply.status_code in (400, 404)
    assert "SENT" not in reply.text


@pytest.mark.parametrize(
    "grammar", [{"guided_regex": "(" + "a" * 100_000}, {"guided_json": {"properties": {"a" * 100_000: {"type": "b"}}}}]
)
def test_a_grammar_is_quoted_around_its_mistake_and_not_whole(demo: LiveServer, grammar: dict[str, Any]) -> None:
    reply = demo.post(chat("a", **grammar))
    assert reply.status_code == 400
    assert len(reply.text) < 600


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_is_refused(demo: LiveServer, prompt: Any) -> None:
    assert demo.post({"prompt": prompt}, "/v1/completions").status_code == 400


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(demo: LiveServer, number: str) -> None:
    body = json.dumps(chat("a")).removesuffix("}") + f', "temperature": {number}}}'
    reply = httpx.post(
        f"{demo.url}/v1/chat/completions", content=body, headers={"Content-Type": "application/json"}, timeout=30
    )
    assert reply.status_code == 400
    assert "temperature" in reply.json()["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b'{"messages": ' + b"[" * 100_000])
def test_a_body_that_is_no_json_is_refused(fake: LiveServer, body: bytes) -> None:
    reply = httpx.post(
        f"{fake.url}/v1/chat/completions", content=body, headers={"Content-Type": "application/json"}, timeout=30
    )
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "invalid_body"


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 10**9},
        {"max_tokens": None},
        {"temperature": 1e-6, "seed": 1},
        {"temperature": 10, "max_tokens": 4, "seed": 2},
        {"min_tokens": 4, "max_tokens": 4},
    ],
)
def test_what_is_extreme_but_possible_is_answered(demo: LiveServer, options: dict[str, Any]) -> None:
    reply = demo.post(chat(RED, "Describe the image.", **options))
    assert reply.status_code == 200
    assert reply.json()["choices"][0]["finish_reason"] in ("stop", "length")


def test_an_image_alone_is_answered(demo: LiveServer) -> None:
    reply = demo.post(chat(RED, max_tokens=8))
    assert reply.status_code == 200
    assert reply.json()["usage"]["prompt_tokens_details"]["image_tokens"] == 80


def test_half_a_surrogate_pair_is_refused(demo: LiveServer) -> None:
    body = b'{"messages": [{"role": "user", "content": "\\ud800"}]}'
    reply = httpx.post(
        f"{demo.url}/v1/chat/completions", content=body, headers={"Content-Type": "application/json"}, timeout=30
    )
    assert reply.status_code == 400


def test_text_that_spells_special_tokens_is_text(demo: LiveServer) -> None:
    plain = demo.post(chat("end", max_tokens=1)).json()["usage"]["prompt_tokens"]
    spelled = demo.post(chat("<|im_end|>", max_tokens=1)).json()["usage"]["prompt_tokens"]
    assert spelled > plain + 2
