"""What is sent, and what is made of the answer."""

from __future__ import annotations

import asyncio
import base64
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image
from remotes import remote
from standin import Asked, StandIn, chunk, completion

from zellige.engine.api import (
    Delta,
    EngineError,
    Grammar,
    Message,
    NonFiniteLogits,
    Request,
    RequestRejected,
    Sampling,
    TextPart,
    TokenLogprob,
    ask,
)
from zellige.engine.remote import wire


def picture(seed: int, side: int = 24) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (side, side + 8, 3), np.uint8)


async def collect(engine: Any, request: Request) -> list[Delta]:
    return [delta async for delta in engine.stream(request)]


def test_pictures_arrive_pixel_by_pixel_and_in_order(go: Any) -> None:
    async def work() -> StandIn:
        server = await StandIn().start()
        async with remote(server) as engine:
            assert (await engine.answer(ask("which?", picture(1), picture(2)))).text == "you said <image><image>which?"
        return server

    content = go(work()).asked[0].body["messages"][0]["content"]
    for seed, part in zip((1, 2), content[:2], strict=True):
        head, _, data = part["image_url"]["url"].partition(",")
        assert head == "data:image/png;base64"
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))), picture(seed))


def test_a_picture_is_encoded_once_for_all_questions_and_tries(go: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = []
    plain = wire.png_uri
    monkeypatch.setattr(wire, "png_uri", lambda pixels: encoded.append(pixels) or plain(pixels))

    async def busy(asked: Asked) -> None:
        await asked.reply(500, {})

    async def work() -> int:
        server = await StandIn([busy, busy]).start()
        pixels = picture(3)
        async with remote(server) as engine:
            await asyncio.gather(*(engine.answer(ask(f"question {i}", pixels)) for i in range(5)))
            assert len(encoded) == 1
            encoded.clear()
            del pixels
            return len(engine._uris._made)

    assert go(work()) == 0, "a picture that nobody holds any more is forgotten"


def test_sampling_is_spelled_as_openai_does_and_defaults_are_left_out(go: Any) -> None:
    full = Sampling(
        max_tokens=5, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, min_tokens=2, seed=3, stop=("a", "b"),
        stop_token_ids=(4,), frequency_penalty=0.5, presence_penalty=-0.5, logit_bias=((9, 1.5),),
        repetition_stop=True,
    )  # fmt: skip
    schema = Grammar("json_schema", '{"type": "object"}')
    requests = [
        ask("x", run_id="run-7"),
        ask("x", sampling=full),
        Request((Message("user", (TextPart("x"),)),), grammar=schema),
        Request((Message("user", (TextPart("x"),)),), grammar=Grammar("choice", choices=("a", "b"))),
    ]

    async def work() -> list[Asked]:
        server = await StandIn().start()
        async with remote(server, key="secret") as engine:
            for request in requests:
                await engine.answer(request)
        return server.asked

    plain, sampled, json_one, choice = go(work())
    assert plain.headers["x-zellige-run"] == "run-7"
    assert plain.headers["authorization"] == "Bearer secret"
    assert plain.body == {
        "model": "stand-in",
        "max_tokens": 256,
        "temperature": 0.0,
        "logprobs": True,
        "top_logprobs": 1,
        "messages": [{"role": "user", "content": "x"}],
    }
    assert {k: v for k, v in sampled.body.items() if "logprobs" not in k and k not in ("model", "messages")} == {
        "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "min_tokens": 2, "seed": 3,
        "stop": ["a", "b"], "stop_token_ids": [4], "frequency_penalty": 0.5, "presence_penalty": -0.5,
        "logit_bias": {"9": 1.5},
    }  # fmt: skip
    assert json_one.body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert choice.body["structured_outputs"] == {"choice": ["a", "b"]}


def test_an_answer_carries_usage_finish_reason_and_mean_logprob(go: Any) -> None:
    said = [{"token": "a", "logprob": -1.0, "bytes": [97]}, {"token": "b", "logprob": -2.0}]

    async def whole(asked: Asked) -> None:
        await asked.reply(200, completion("ab", "length", logprobs={"content": said}))

    async def work() -> Any:
        server = await StandIn([whole, whole]).start()
        async with remote(server) as engine:
            asked = ask("x", sampling=Sampling(logprobs=0))
            return await engine.answer(ask("x")), await engine.answer(asked)

    plain, with_logprobs = go(work())
    assert (plain.text, plain.finish_reason) == ("ab", "length")
    assert (plain.usage.prompt_tokens, plain.usage.completion_tokens) == (7, 3)
    assert plain.mean_logprob == -1.5
    assert plain.logprobs == ()
    assert plain.engine_s > 0
    assert with_logprobs.logprobs == (TokenLogprob(-1, b"a", -1.0), TokenLogprob(-1, b"b", -2.0))


def test_a_stream_comes_in_pieces_whatever_the_bytes_are_cut_into(go: Any) -> None:
    events = chunk("né\u2028w ") + b": a comment\r\n\r\n" + chunk("line").replace(b"\n", b"\r\n") + chunk("", "stop")
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2}}\n\ndata: [DONE]\n\n'

    async def dribble(asked: Asked) -> None:
        await asked.begin_stream()
        for i in range(0, len(events + usage), 7):
            await asked.send((events + usage)[i : i + 7])
            await asyncio.sleep(0)
        asked.writer.close()

    async def work() -> list[Delta]:
        server = await StandIn([dribble]).start()
        async with remote(server) as engine:
            return await collect(engine, ask("x"))

    deltas = go(work())
    assert [d.text for d in deltas] == ["né\u2028w ", "line", ""]
    answer = deltas[-1].answer
    assert answer is not None
    assert (answer.text, answer.finish_reason) == ("né\u2028w line", "stop")
    assert answer.usage.completion_tokens == 2
    assert 0 < answer.first_token_s <= answer.engine_s


@pytest.mark.parametrize("end", ["no finish", "cut", "nonsense", "error"])
def test_a_stream_that_breaks_after_its_first_piece_is_an_error_and_never_said_twice(go: Any, end: str) -> None:
    async def breaks(asked: Asked) -> None:
        await asked.begin_stream()
        await asked.send(chunk("half an ans"))
        await asyncio.sleep(0.05)
        if end == "nonsense":
            await asked.send(b"data: {not json\n\n")
        if end == "error":
            await asked.send(b'data: {"error": {"message": "the engine died", "type": "server_error"}}\n\n')
        if end == "cut":
            asked.cut()
        asked.writer.close()

    async def work() -> tuple[list[str], str, int]:
        server = await StandIn([breaks]).start()
        pieces = []
        async with remote(server) as engine:
            with pytest.raises(EngineError) as caught:
                async for delta in engine.stream(ask("x")):
                    pieces.append(delta.text)  # noqa: PERF401 (what came before the error counts)
        return pieces, str(caught.value), len(server.asked)

    pieces, message, times = go(work())
    assert pieces == ["half an ans"]
    assert "broke after 11 characters" in message
    assert times == 1


def test_a_stream_that_breaks_before_its_first_piece_is_asked_for_again(go: Any) -> None:
    async def breaks(asked: Asked) -> None:
        await asked.begin_stream()
        asked.cut()

    async def nonsense(asked: Asked) -> None:
        await asked.begin_stream()
        await asked.send(b"data: <html>\n\n")
        asked.writer.close()

    async def work() -> list[Delta]:
        server = await StandIn([breaks, nonsense]).start()
        async with remote(server) as engine:
            return await collect(engine, ask("x"))

    assert "".join(d.text for d in go(work())) == "you said x"


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (400, {"error": {"message": "prompt too long", "code": "request_rejected"}}, "prompt too long"),
        (
            422,
            {"detail": [{"loc": ["body", "top_k"], "msg": "not known", "input": "PAYLOAD"}]},
            "body.top_k: not known",
        ),
        (413, {"object": "error", "message": "too large"}, "too large"),
        (400, b"<html>bad</html>", "<html>bad</html>"),
        (400, {"error": {"message": "data:image/png;base64," + "PAYLOAD" * 99 + " is no picture"}}, "is no picture"),
        (400, {"error": {"message": "QUJD" * 300}}, "status 400"),
    ],
)
def test_other_4xx_are_final_with_the_servers_words_and_no_payload(go: Any, status: int, body: Any, says: str) -> None:
    async def refuse(asked: Asked) -> None:
        await asked.reply(status, body)

    async def work() -> tuple[str, int]:
        server = await StandIn([refuse]).start()
        async with remote(server) as engine:
            with pytest.raises(RequestRejected) as caught:
                await engine.answer(ask("x", picture(1)))
        return str(caught.value), len(server.asked)

    message, times = go(work())
    assert says in message
    assert "PAYLOAD" not in message
    assert "QUJDQUJD" not in message
    assert len(message) < 600
    assert times == 1


def test_nonfinite_logits_are_told_as_such_and_a_withheld_answer_is_a_rejection(go: Any) -> None:
    async def nonfinite(asked: Asked) -> None:
        await asked.reply(500, {"error": {"message": "layer 3 made NaN", "code": "nonfinite_logits"}})

    async def withheld(asked: Asked) -> None:
        await asked.reply(200, completion("", "content_filter"))

    async def work() -> int:
        server = await StandIn([nonfinite, withheld]).start()
        async with remote(server) as engine:
            with pytest.raises(NonFiniteLogits, match="layer 3"):
                await engine.answer(ask("x"))
            with pytest.raises(RequestRejected, match="filter"):
                await engine.answer(ask("x"))
        return len(server.asked)

    assert go(work()) == 2


def test_a_server_that_knows_no_logprobs_is_asked_without_them_from_then_on(go: Any) -> None:
    async def no_logprobs(asked: Asked) -> None:
        if "logprobs" in asked.body:
            await asked.reply(422, {"detail": "logprobs is not supported"})
        elif "stream_options" in asked.body:
            await asked.reply(422, {"detail": "stream_options is not supported"})
        else:
            await StandIn().otherwise(asked)

    async def work() -> list[bool]:
        server = await StandIn(otherwise=no_logprobs).start()
        async with remote(server) as engine:
            assert (await engine.answer(ask("x"))).mean_logprob is None
            assert (await engine.answer(ask("y"))).text == "you said y"
            assert (await collect(engine, ask("z")))[-1].answer is not None
        return ["logprobs" in a.body for a in server.asked]

    assert go(work()) == [True, False, False, False, False]


def test_cancelling_closes_the_connection_so_that_the_server_knows(go: Any) -> None:
    async def work() -> bool:
        closed = asyncio.Event()

        async def wait(asked: Asked) -> None:
            await asyncio.sleep(0.2)
            while not asked.writer.is_closing():
                await asked.send(b" ")
                await asyncio.sleep(0.01)
            closed.set()

        async def hang(asked: Asked) -> None:
            try:
                await wait(asked)
            except ConnectionError:
                closed.set()

        server = await StandIn([hang]).start()
        async with remote(server) as engine:
            task = asyncio.create_task(engine.answer(ask("x")))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(closed.wait(), 5)
        return closed.is_set()

    assert go(work())
