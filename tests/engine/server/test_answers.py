"""The API as the official client uses it, with the checkpoint that ships."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from server_harness import FakeEngine, LiveServer, card, chat, encoded, uri

from zellige.engine.api import EngineError, NonFiniteLogits, Request

RED, BLUE = uri(encoded(card("red"))), uri(encoded(card("blue", "rectangle")))
DESCRIBE = "Describe the image."


def test_an_image_is_described(demo: LiveServer) -> None:
    reply = demo.client().chat.completions.create(model="zellige-demo", **chat(RED, DESCRIBE))
    choice = reply.choices[0]
    assert choice.finish_reason == "stop"
    assert "red circle" in (choice.message.content or "")
    assert reply.usage is not None
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.image_tokens == 10 * 8  # cells of 32 pixels in 320 x 240, rounded
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_a_streamed_answer_is_the_same_in_pieces(demo: LiveServer) -> None:
    client = demo.client()
    whole = client.chat.completions.create(model="zellige-demo", **chat(RED, DESCRIBE))
    stream = client.chat.completions.create(
        model="zellige-demo", **chat(RED, DESCRIBE), stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    pieces = [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content]
    assert len(pieces) > 3
    assert "".join(pieces) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert len({c.id for c in chunks}) == 1


def test_several_images_reach_the_engine_in_their_order(fake: LiveServer) -> None:
    small, large = uri(encoded(card(size=(64, 32)))), uri(encoded(card(size=(2000, 1000)), "JPEG"))
    fake.post(chat(small, "and", large, "?")).raise_for_status()
    # The second is shrunk to the model's most pixels, by the model's own rule.
    assert fake.engine.texts == ["<64 x 32>", "and", "<608 x 288>", "?"]


def test_two_images_in_one_question_are_answered(demo: LiveServer) -> None:
    reply = demo.client().chat.completions.create(model="zellige-demo", **chat(RED, BLUE, DESCRIBE), max_tokens=8)
    assert reply.usage is not None
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.image_tokens == 160


def test_what_the_sampling_fields_say_is_asked_of_the_engine(fake: LiveServer) -> None:
    fields = {
        "max_completion_tokens": 7, "temperature": 0.5, "top_p": 0.9, "seed": 3, "stop": "x", "frequency_penalty": 0.25,
        "presence_penalty": -1, "logit_bias": {"5": 2}, "min_p": 0.1, "top_k": -1, "min_tokens": 2,
        "stop_token_ids": [4], "ignore_eos": True, "repetition_stop": True, "logprobs": True, "top_logprobs": 2,
    }  # fmt: skip
    fake.post(chat("hello", **fields)).raise_for_status()
    sampling = fake.engine.seen[-1].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.seed) == (7, 0.5, 0.9, 3)
    assert (sampling.stop, sampling.stop_token_ids, sampling.logit_bias) == (("x",), (4,), ((5, 2.0),))
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.25, -1.0)
    assert (sampling.min_p, sampling.top_k, sampling.min_tokens, sampling.logprobs) == (0.1, 0, 2, 2)
    assert sampling.ignore_eos
    assert sampling.repetition_stop


def test_a_field_that_is_left_out_or_null_is_greedy_and_goes_to_the_contexts_end(fake: LiveServer) -> None:
    fake.post(chat("hello", max_tokens=None, temperature=None, stop=None)).raise_for_status()
    sampling = fake.engine.seen[-1].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.stop) == (512, 0.0, ())


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}}, "json_schema"),
        ({"response_format": {"type": "json_object"}}, "json_object"),
        ({"structured_outputs": {"regex": "[a-z]+"}}, "regex"),
        ({"guided_choice": ["yes", "no"]}, "choice"),
    ],
)  # fmt: skip
def test_a_format_becomes_the_engines_grammar(fake: LiveServer, fields: dict[str, object], kind: str) -> None:
    fake.post(chat("hello", **fields)).raise_for_status()
    assert fake.engine.seen[-1].grammar.kind == kind


def test_an_answer_meets_its_schema(demo: LiveServer) -> None:
    schema = {
        "type": "object",
        "properties": {"shapes": {"enum": [1, 2]}},
        "required": ["shapes"],
        "additionalProperties": False,
    }
    reply = demo.client().chat.completions.create(
        model="zellige-demo",
        **chat(RED, DESCRIBE),
        response_format={"type": "json_schema", "json_schema": {"name": "count", "schema": schema}},
    )
    assert json.loads(reply.choices[0].message.content or "")["shapes"] in (1, 2)


def test_n_gives_as_many_choices_whole_and_streamed(demo: LiveServer) -> None:
    body = chat(RED, DESCRIBE, n=3, temperature=1.5, seed=5, max_tokens=12)
    client = demo.client()
    whole = client.chat.completions.create(model="zellige-demo", **body)
    texts = [c.message.content for c in whole.choices]
    assert [c.index for c in whole.choices] == [0, 1, 2]
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(model="zellige-demo", **body, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts
    assert whole.usage is not None
    assert whole.usage.prompt_tokens < 200  # the prompt is counted once


def test_logprobs_come_whole_and_streamed(demo: LiveServer) -> None:
    client = demo.client()
    body = chat(RED, DESCRIBE, logprobs=True, top_logprobs=2, max_tokens=4)
    whole = client.chat.completions.create(model="zellige-demo", **body).choices[0].logprobs
    assert whole is not None
    tokens = whole.content or []
    assert len(tokens) == 4
    assert all(len(t.top_logprobs) == 2 and t.top_logprobs[0].logprob == t.logprob for t in tokens)
    streamed = [
        token.token
        for chunk in client.chat.completions.create(model="zellige-demo", **body, stream=True)
        for token in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else None) or []
    ]
    assert streamed == [t.token for t in tokens]


def test_completions_go_on_from_each_prompt_as_written(fake: LiveServer) -> None:
    reply = fake.client().completions.create(model="fake", prompt=["a", "b"])
    assert [c.text for c in reply.choices] == ["one two three"] * 2
    assert [r.templated for r in fake.engine.seen] == [False, False]
    assert fake.engine.seen[0].sampling.max_tokens == 16  # OpenAI's default for this endpoint
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == 20
    pieces = [c.choices[0].text for c in fake.client().completions.create(model="fake", prompt="a", stream=True)]
    assert "".join(pieces) == "one two three"


def test_the_engine_goes_on_from_a_text_without_a_template(demo: LiveServer) -> None:
    reply = demo.client().completions.create(model="zellige-demo", prompt="a large red", max_tokens=3, logprobs=1)
    assert reply.usage is not None
    assert reply.usage.prompt_tokens < 8


def test_models_names_the_one_model_and_its_vision(demo: LiveServer) -> None:
    (model,) = demo.client().models.list().data
    about = model.model_dump()
    assert model.id == "zellige-demo"
    assert about["max_model_len"] > 1000
    assert about["zellige"]["vision"]["patch"] == 16
    with pytest.raises(openai.NotFoundError, match="zellige-demo"):
        demo.client().chat.completions.create(model="gpt-5", **chat("hello"))


def test_the_run_of_a_header_is_metered(demo: LiveServer) -> None:
    demo.post(chat(RED, DESCRIBE), **{"X-Zellige-Run": "run-7"}).raise_for_status()
    meter = demo.get("/v1/runs/run-7/meter").json()
    assert (meter["requests"], meter["images"], meter["image_tokens"]) == (1, 1, 80)
    assert demo.get("/v1/runs/another/meter").json()["requests"] == 0
    assert demo.post(chat("a"), **{"X-Zellige-Run": "a b/../c"}).status_code == 400


def test_an_error_before_the_first_token_has_its_status_and_one_after_it_ends_the_stream(fake: LiveServer) -> None:
    def fail(request: Request) -> None:
        raise NonFiniteLogits("NaN in layer 3")

    fake.engine.before = fail
    for stream in (False, True):
        reply = fake.post(chat("hello", stream=stream))
        assert (reply.status_code, reply.json()["error"]["code"]) == (500, "nonfinite_logits")

    def fail_later(place: int) -> None:
        if place == 2:
            raise EngineError("the device is gone")

    fake.engine.before, fake.engine.between = lambda request: None, fail_later
    heard: list[str | None] = []
    stream = fake.client().chat.completions.create(model="fake", **chat("hello"), stream=True)
    with pytest.raises(openai.APIError, match="the device is gone"):
        heard.extend(chunk.choices[0].delta.content for chunk in stream)
    assert heard == ["", "one ", "two "]


def test_an_unforeseen_failure_says_nothing_of_what_was_sent(fake: LiveServer) -> None:
    def fail(request: Request) -> None:
        raise KeyError("secret")

    fake.engine.before = fail
    reply = fake.post(chat("secret"))
    assert reply.status_code == 500
    assert "secret" not in reply.text
    assert reply.json()["error"]["code"] == "internal_error"


@pytest.mark.parametrize("field", ["tools", "functions", "audio", "suffix"])
def test_what_is_not_built_is_refused_by_name(fake: LiveServer, field: str) -> None:
    reply = fake.post(chat("hello", **{field: [{"a": 1}]}))
    assert reply.status_code == 400
    assert field in reply.json()["error"]["message"]
    assert reply.json()["error"]["param"] == field


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"temperature": 20}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"n": 100_000}, "n"),
        ({"stop": [""]}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"model": "another"}, "model"),
        ({"messages": []}, "messages"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_an_error_names_the_field_that_is_wrong(fake: LiveServer, given: dict[str, Any], param: str) -> None:
    assert fake.post(chat("hello") | given).json()["error"]["param"] == param


def test_ignored_fields_and_roles_of_other_clients_are_taken(fake: LiveServer) -> None:
    body = {"messages": [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}], "user": "me"}
    fake.post(body | {"tools": [], "metadata": {"a": "b"}}).raise_for_status()
    assert [m.role for m in fake.engine.seen[-1].messages] == ["system", "user"]


def test_unknown_paths_and_methods_are_errors_in_the_same_shape(fake: LiveServer) -> None:
    assert fake.get("/v1/nothing").json()["error"]["type"] == "invalid_request_error"
    assert fake.get("/v1/chat/completions").status_code == 405


def test_an_engine_in_the_harness_is_a_whole_engine() -> None:
    """The harness would hide a change of the protocol otherwise."""
    from zellige.engine.api import ObservedEngine

    engine: ObservedEngine = FakeEngine()
    assert engine.stats().cache_blocks == 8
