"""What an engine answers when a request says how: seeds, ends, log-probabilities, grammars, rows that fail."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import jsonschema
import numpy as np
import pytest
import torch
from checkpoints import SHAPES, make
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Reference
from tokenizers import Tokenizer

from zellige.engine.api import (
    Answer,
    Grammar,
    Message,
    NonFiniteLogits,
    Request,
    RequestRejected,
    Sampling,
    Usage,
    alternatives,
    ask,
)
from zellige.engine.connect import DEMO_MODEL
from zellige.engine.detokenizer import Vocabulary
from zellige.engine.local import LocalEngine
from zellige.engine.output import Output
from zellige.engine.sampler import Chosen

T = TypeVar("T")
TOKENIZER = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
VOCABULARY = Vocabulary(TOKENIZER)
TOKENS = {c: TOKENIZER.token_to_id(c) for c in "abcde"}
EMPTY = Message("user", ())


def run(folder: Path, work: Callable[[LocalEngine], Awaitable[T]]) -> T:
    async def inside() -> T:
        engine = LocalEngine.load(folder)
        try:
            return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(asyncio.wait_for(inside(), 120))


def question(number: int, grammar: Grammar | None = None, **sampling: Any) -> Request:
    pixels = np.random.default_rng(number).integers(0, 255, (64, 32 * (1 + number % 4), 3), dtype=np.uint8)
    images = [pixels] if number % 2 else []
    request = ask(f"thing {number}", *images, sampling=Sampling(**{"max_tokens": 20, **sampling}))
    return replace(request, grammar=grammar)


def varied(number: int) -> Request:
    """Requests of every kind, so that a batch holds them side by side."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 1.2, "seed": number * 7919 - 50_000},
        {"temperature": 0.8, "seed": -number, "top_p": 0.7, "top_k": 30},
        {"temperature": 1.0, "seed": 2**40 + number, "min_p": 0.02, "frequency_penalty": 0.7, "presence_penalty": -0.4},
        {"logit_bias": ((65, 3.0), (66, -100.0)), "min_tokens": 9},
        {"temperature": 1.5, "seed": number, "grammar": Grammar("regex", "[a-z ]{4,30}")},
        {"grammar": Grammar("choice", choices=("red thing", "the blue thing", "the bluest thing in here"))},
    ]
    return question(number, logprobs=number % 4, **kinds[number % len(kinds)])


def test_every_kind_of_request_is_answered_the_same_alone_and_in_a_batch(model_folder) -> None:
    async def work(engine: LocalEngine):
        alone = [await engine.answer(varied(i)) for i in range(24)]
        return alone, await asyncio.gather(*(engine.answer(varied(i)) for i in range(24)))

    alone, together = run(model_folder, work)
    assert [a.token_ids for a in alone] == [a.token_ids for a in together]
    assert [a.finish_reason for a in alone] == [a.finish_reason for a in together]
    for one, other in zip(alone, together, strict=True):
        assert [t.token_id for t in one.logprobs] == [t.token_id for t in other.logprobs]
        assert np.allclose([t.logprob for t in one.logprobs], [t.logprob for t in other.logprobs], atol=1e-4)


def test_alternatives_differ_and_each_can_be_had_again(model_folder) -> None:
    async def work(engine: LocalEngine):
        request = question(3, temperature=1.5, seed=9)
        first = await asyncio.gather(*map(engine.answer, alternatives(request, 5)))
        fresh = replace(request, request_id="again")
        again = await asyncio.gather(*map(engine.answer, reversed(alternatives(fresh, 5))))
        return first, again[::-1], await engine.answer(fresh)

    first, again, single = run(model_folder, work)
    assert [a.token_ids for a in first] == [a.token_ids for a in again]
    assert len({a.token_ids for a in first}) == 5
    assert single.token_ids == first[0].token_ids


def test_log_probabilities_are_those_of_transformers(tmp_path: Path) -> None:
    """The answer is given back to the judge as a prompt; temperature, bias and penalties must not show in it."""
    judge = Reference(tmp_path, make(tmp_path, SHAPES[0]))

    async def work(engine: LocalEngine):
        hot = {"temperature": 1.3, "seed": 4, "logit_bias": ((70, 4.0),), "frequency_penalty": 1.0}
        return await engine.answer(ask("the thing", sampling=Sampling(30, ignore_eos=True, logprobs=5, **hot)))

    answer = run(tmp_path, work)
    inputs = judge.inputs([("user", ["the thing"])])
    asked = inputs["input_ids"].shape[1]
    ids = torch.cat([inputs["input_ids"], torch.tensor([answer.token_ids])], dim=1)
    with torch.inference_mode():
        logits = judge.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0].float()
    want = torch.log_softmax(logits, -1)[asked - 1 : -1]
    assert [t.token_id for t in answer.logprobs] == list(answer.token_ids)
    own = want.gather(1, torch.tensor(answer.token_ids).unsqueeze(1)).squeeze(1)
    assert np.allclose([t.logprob for t in answer.logprobs], own, atol=1e-4)
    assert answer.mean_logprob == pytest.approx(float(own.mean()), abs=1e-4)
    assert [[t.token_id for t in place.top] for place in answer.logprobs] == want.topk(5).indices.tolist()
    assert np.allclose([[t.logprob for t in place.top] for place in answer.logprobs], want.topk(5).values, atol=1e-4)
    spelled = b"".join(t.token for t in answer.logprobs if not t.token.startswith(b"<|"))
    assert spelled.decode(errors="replace") == answer.text


def test_streamed_log_probabilities_join_to_the_answers(model_folder) -> None:
    async def work(engine: LocalEngine):
        return [d async for d in engine.stream(question(2, logprobs=2, temperature=1.4, seed=8, stop=("\u00e9",)))]

    deltas = run(model_folder, work)
    answer = deltas[-1].answer
    assert len(deltas) > 2
    assert tuple(t for d in deltas for t in d.logprobs) == answer.logprobs
    assert len(answer.logprobs) == answer.usage.completion_tokens
    assert "".join(d.text for d in deltas) == answer.text


def test_without_asking_there_are_no_log_probabilities_and_asking_for_none_gives_the_tokens_own(model_folder) -> None:
    async def work(engine: LocalEngine):
        return await engine.answer(question(2)), await engine.answer(question(2, logprobs=0))

    silent, own = run(model_folder, work)
    assert silent.logprobs == ()
    assert [(t.token_id, t.top) for t in own.logprobs] == [(t, ()) for t in own.token_ids]


def test_nothing_ends_an_answer_before_min_tokens(model_folder) -> None:
    async def work(engine: LocalEngine):
        free = await engine.answer(question(2, ignore_eos=True, max_tokens=30))
        ends = {"stop_token_ids": tuple(sorted(set(free.token_ids))), "repetition_stop": True}
        at_once = await engine.answer(question(2, max_tokens=30, **ends))
        later = await engine.answer(question(2, max_tokens=30, min_tokens=7, **ends))
        character = free.text[1]
        cut = await engine.answer(question(2, ignore_eos=True, max_tokens=30, stop=(character,)))
        passed = await engine.answer(question(2, ignore_eos=True, max_tokens=30, min_tokens=12, stop=(character,)))
        return free, at_once, later, cut, passed

    free, at_once, later, cut, passed = run(model_folder, work)
    assert (len(at_once.token_ids), at_once.finish_reason) == (1, "stop")
    assert len(later.token_ids) > 7
    assert not set(later.token_ids[:7]) & set(free.token_ids)
    assert cut.text == free.text[: free.text.index(free.text[1])]
    assert len(passed.token_ids) > 12
    assert passed.text.startswith(free.text[:2])


def test_a_loop_ends_with_its_own_reason_only_where_asked(model_folder) -> None:
    async def work(engine: LocalEngine):
        loop = {"max_tokens": 60, "ignore_eos": True, "logit_bias": ((65, 100.0),)}
        return [await engine.answer(question(4, repetition_stop=stop, **loop)) for stop in (True, False)]

    stopped, whole = run(model_folder, work)
    assert (stopped.finish_reason, whole.finish_reason) == ("repetition", "length")
    assert len(stopped.token_ids) == 24
    assert len(whole.token_ids) == 60


@settings(max_examples=2000 if os.environ.get("ZELLIGE_TEST_LONG") else 200, deadline=None)
@given(st.data())
def test_whatever_is_drawn_an_answer_is_as_long_as_it_has_to_be_and_no_longer(data: st.DataObject) -> None:
    """Tokens are drawn from few, so that stop tokens, stop strings and loops come often and at any length."""
    least = data.draw(st.integers(0, 30))
    most = data.draw(st.integers(max(least, 1), 60))
    eos = data.draw(st.sets(st.sampled_from("de"), max_size=2))
    stop = data.draw(st.lists(st.text("abcde", min_size=1, max_size=4), max_size=3))
    sampling = Sampling(max_tokens=most, min_tokens=least, stop=tuple(stop), repetition_stop=data.draw(st.booleans()))
    output = Output(ask("x", sampling=sampling), frozenset(TOKENS[c] for c in eos), VOCABULARY)
    shown, said = "", ""
    while output.finish_reason is None:
        forbidden = {t for t, edit in output.sampler.row(len(output.tokens)).edits.items() if edit == -math.inf}
        letter = data.draw(st.sampled_from([c for c in "abcde" if TOKENS[c] not in forbidden]))
        said += letter
        delta = output.push(Chosen(TOKENS[letter], -0.5, True), full=len(said) == most)
        shown += "" if delta is None else delta.text
    answer = output.answer(Usage(completion_tokens=len(said)), engine_s=0, first_token_s=0)
    assert answer.text == shown
    assert least <= len(said) <= most
    assert (answer.finish_reason != "length") or len(said) == most
    ended_by_token = said[-1] in eos
    text = said[:-1] if ended_by_token else said
    assert text.startswith(answer.text)
    if answer.finish_reason == "stop":
        assert len(said) > least
        assert ended_by_token or text[len(answer.text) :] in stop
    else:
        assert answer.text == text


@pytest.mark.parametrize(("messages", "refused"), [(lambda: ask("").messages, False), (lambda: (EMPTY,), True)])
def test_an_empty_prompt_is_answered_and_a_message_of_nothing_refused(model_folder, messages, refused: bool) -> None:
    async def work(engine: LocalEngine) -> bool:
        try:
            return not (await engine.answer(Request(messages(), Sampling(max_tokens=3)))).token_ids
        except RequestRejected:
            return True

    assert run(model_folder, work) is refused


SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green", "blue"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "parts": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 2},
    },
    "required": ["colour", "count", "parts"],
    "additionalProperties": False,
}


def test_the_shipped_model_ends_in_json_that_meets_the_schema_beside_answers_that_are_free() -> None:
    """What it says is of no worth; that it is valid is."""

    async def work(engine: LocalEngine):
        grammar = Grammar("json_schema", json.dumps(SCHEMA))
        bound = [question(i, grammar, max_tokens=200, temperature=0.3 * (i % 5), seed=i) for i in range(12)]
        free = [question(i, max_tokens=30) for i in range(4)]
        want = [await engine.answer(r) for r in free]
        again = [replace(r, request_id=f"again {i}") for i, r in enumerate(free)]
        got = await asyncio.gather(*map(engine.answer, [*again, *bound]))
        return want, got[:4], got[4:]

    want, beside, bound = run(DEMO_MODEL, work)
    assert [a.token_ids for a in beside] == [a.token_ids for a in want]
    ended = [a for a in bound if a.finish_reason == "stop"]
    assert len(ended) >= 10
    for answer in ended:
        jsonschema.validate(json.loads(answer.text), SCHEMA)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_patterns_and_choices_hold_whatever_the_model_would_rather_say(model_folder, temperature: float) -> None:
    async def work(engine: LocalEngine) -> list[Answer]:
        grammars = [
            Grammar("regex", r"(red|green) \d{2}"),
            Grammar("choice", choices=("yes", "no", "not at all")),
            Grammar("regex", r"é{3}🙂"),
        ]
        return await asyncio.gather(
            *(engine.answer(question(i, g, temperature=temperature, seed=i)) for i, g in enumerate(grammars * 3))
        )

    answers = run(model_folder, work)
    assert {a.finish_reason for a in answers} == {"stop"}
    assert all(re.fullmatch(r"(red|green) \d{2}", a.text) for a in answers[::3])
    assert {a.text for a in answers[1::3]} <= {"yes", "no", "not at all"}
    assert {a.text for a in answers[2::3]} == {"ééé🙂"}


def test_masks_are_computed_while_the_model_is(model_folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's every step waits until a mask is on its way: where masks came after it, this would fail."""

    async def work(engine: LocalEngine) -> Answer:
        begun = threading.Event()
        fill, forward = engine._grammars._fill, engine._runner.model.forward

        def watched(*args):
            begun.set()
            return fill(*args)

        def patient(*args):
            assert begun.wait(10)
            begun.clear()
            return forward(*args)

        monkeypatch.setattr(engine._grammars, "_fill", watched)
        monkeypatch.setattr(engine._runner.model, "forward", patient)
        return await engine.answer(question(2, Grammar("regex", "[ab]{9}")))

    assert run(model_folder, work).finish_reason == "stop"


def test_a_grammar_cut_off_by_max_tokens_says_so(model_folder) -> None:
    async def work(engine: LocalEngine) -> Answer:
        return await engine.answer(question(2, Grammar("regex", "[ab]{50}"), max_tokens=10))

    answer = run(model_folder, work)
    assert answer.finish_reason == "length"
    assert re.fullmatch("[ab]{10,}", answer.text)


@pytest.mark.parametrize(
    ("request_of", "match"),
    [
        (lambda: question(0, Grammar("regex", "(a")), "unclosed group"),
        (lambda: question(0, Grammar("json_schema", '{"type": "strin"}')), r"at \$: Invalid type"),
        (lambda: question(0, stop_token_ids=(10**6,)), "stop_token_ids holds token 1000000"),
        (lambda: question(0, logit_bias=((10**6, 1.0),)), "logit_bias holds token 1000000"),
    ],
)
def test_what_cannot_be_done_is_refused_and_the_next_request_answered(model_folder, request_of, match: str) -> None:
    async def work(engine: LocalEngine) -> Answer:
        with pytest.raises(RequestRejected, match=match):
            await engine.answer(request_of())
        return await engine.answer(question(1))

    assert run(model_folder, work).token_ids


def test_without_llguidance_all_but_grammars_is_answered(model_folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)

    async def work(engine: LocalEngine) -> Answer:
        with pytest.raises(RequestRejected, match="pip install llguidance"):
            await engine.answer(question(0, Grammar("json_object")))
        return await engine.answer(question(1))

    assert run(model_folder, work).token_ids


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize(("bad", "where"), [(float("nan"), slice(None)), (float("nan"), 3), (float("inf"), 3)])
def test_a_nonfinite_row_fails_its_request_and_no_other(model_folder, monkeypatch, temperature, bad, where) -> None:
    async def work(engine: LocalEngine):
        requests = [question(i, temperature=temperature, seed=i, ignore_eos=True) for i in range(4)]
        want = [await engine.answer(r) for r in requests]
        victim = question(50, temperature=temperature, seed=50, ignore_eos=True)
        launch, forward = engine._runner.launch, engine._runner.model.forward
        ending: list[Any] = []

        def watched(chunks, *rest):
            ending[:] = [c.sequence for c in chunks if c.ends_sequence]
            return launch(chunks, *rest)

        def faulty(*args):
            logits = forward(*args)
            for row, s in enumerate(ending):
                if s.request_id == victim.request_id and len(s.tokens) - len(s.prompt.tokens) == 5:
                    logits[row, where] = bad
            return logits

        monkeypatch.setattr(engine._runner, "launch", watched)
        monkeypatch.setattr(engine._runner.model, "forward", faulty)
        again = [replace(r, request_id=f"again {i}") for i, r in enumerate(requests)]
        got = await asyncio.gather(*map(engine.answer, [*again, victim]), return_exceptions=True)
        return want, got[:4], got[4]

    want, got, failed = run(model_folder, work)
    assert isinstance(failed, NonFiniteLogits)
    assert not isinstance(failed, RequestRejected), "it may be sent again"
    assert [g.token_ids for g in got] == [w.token_ids for w in want]
    assert [g.mean_logprob for g in got] == pytest.approx([w.mean_logprob for w in want], abs=1e-5)
