"""Who is let in, and with how much: keys (401), sizes (413, D26), queues (429), times (408), types (415)."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
from PIL import Image
from server_harness import FakeEngine, LiveServer, card, chat, encoded, until, uri

from zellige.engine.server import images
from zellige.engine.server.keys import KeyFileError, KeyRing
from zellige.engine.server.limits import MIB, Limits

CHAT = "/v1/chat/completions"


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_key_is_asked_for_everywhere_but_at_the_health() -> None:
    engine = FakeEngine()
    with LiveServer(lambda: engine, keys={"alice": "k-1", "bob": "k-2"}) as server:
        for path in ("/v1/models", "/metrics", "/v1/runs/a/meter"):
            assert server.get(path).status_code == 401
            assert server.get(path, Authorization="Bearer k-2").status_code == 200
        assert server.get("/health").status_code == 200
        assert server.get("/").status_code == 200  # the page holds nothing; it asks for the key
        with pytest.raises(openai.AuthenticationError) as caught:
            server.client("k-3").chat.completions.create(model="fake", **chat("hello"))
        assert caught.value.code == "invalid_api_key"
        for wrong in (b"k-", b"k-11", "ключ".encode(), b"k-1 k-2", b"\xff"):
            headers = {b"Authorization": b"Bearer " + wrong}
            assert httpx.post(server.url + CHAT, json=chat("hello"), headers=headers).status_code == 401
        assert server.post(chat("hello"), Authorization="Basic k-1").status_code == 401
        reply = server.client("k-1").chat.completions.create(model="fake", **chat("hello"))
        assert reply.choices[0].message.content == "one two three"
        assert (
            'zellige:key_requests_total{key="alice",model_name="fake"} 1.0'
            in server.get("/metrics", Authorization="Bearer k-1").text
        )
    assert len(engine.seen) == 1


def test_a_file_of_keys_is_read_or_told_by_line_without_the_key(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# who\n\nalice: k:1 \nbob:k-2\n")
    ring = KeyRing.load(path)
    assert ring.name_of("Bearer k:1") == "alice"
    assert ring.name_of("bearer k-2") == "bob"
    assert ring.name_of(None) is None
    for text, line in (
        ("alice:k-1\nsecret\n", "line 2"),
        ("a:x\nb:x\n", "line 2"),
        ("a:x\na:y\n", "line 2"),
        ("", "no key"),
    ):
        path.write_text(text)
        with pytest.raises(KeyFileError, match=line) as caught:
            KeyRing.load(path)
        assert "secret" not in str(caught.value)
    with pytest.raises(KeyFileError, match="cannot be read"):
        KeyRing.load(tmp_path / "none")


def test_a_huge_body_is_refused_by_its_length_and_never_held(fake: LiveServer) -> None:
    """150 MB of data: URI (D26). The sender gets to read why, though it has only begun to send."""
    size = 150 << 20
    before = resident_bytes()
    peak = before
    with socket.create_connection(("127.0.0.1", fake.port)) as line:
        line.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n")
        line.sendall(b"Content-Length: %d\r\n\r\n" % size)
        for _ in range(size >> 20):
            line.sendall(b"A" * MIB)
            peak = max(peak, resident_bytes())
        with line.makefile("rb") as sent:
            line.shutdown(socket.SHUT_WR)
            reply = sent.read()
    assert reply.split()[1] == b"413"
    assert b"request_too_large" in reply
    assert peak - before < 40 * MIB


def test_a_body_of_untold_length_is_refused_where_it_grows_too_long() -> None:
    engine = FakeEngine()
    with LiveServer(lambda: engine, limits=Limits(body_bytes=MIB)) as server:
        pieces = (b" " * 65536 for _ in range(64))
        reply = httpx.post(server.url + CHAT, content=pieces, headers={"Content-Type": "application/json"}, timeout=30)
        assert reply.status_code == 413
        short = httpx.post(
            server.url + CHAT,
            content=iter([b'{"messages": [', b'{"role": "user", "content": "a"}]}']),
            headers={"Content-Type": "application/json"},
        )
        assert short.status_code == 200


@pytest.mark.parametrize(
    ("limits", "body", "says"),
    [
        (Limits(images=3), chat(*[uri(encoded(card(size=(32, 32))))] * 4), "4 images"),
        (Limits(image_bytes=MIB), chat(uri(bytes(2 * MIB))), "1 MiB"),
        (Limits(image_pixels=10_000), chat(uri(encoded(card(size=(320, 240))))), "320 x 240"),
    ],
)
def test_too_many_or_too_large_images_are_refused_before_they_are_decoded(
    limits: Limits, body: dict[str, object], says: str
) -> None:
    engine = FakeEngine()
    with LiveServer(lambda: engine, limits=limits) as server:
        reply = server.post(body)
    assert reply.status_code == 413
    assert says in reply.json()["error"]["message"]
    assert not engine.seen


def test_bombs_at_once_take_no_memory_and_text_is_answered_meanwhile(fake: LiveServer) -> None:
    """A white page of 12,000 x 12,000 in 20 kB, 32 times (D26)."""
    bomb = uri(encoded(Image.new("1", (12_000, 12_000), 1)))
    before = resident_bytes()
    with ThreadPoolExecutor(32) as senders:
        replies = [senders.submit(fake.post, chat(bomb, "?")) for _ in range(32)]
        began = time.monotonic()
        assert fake.post(chat("hello")).status_code == 200
        assert time.monotonic() - began < 10
        assert {r.result().status_code for r in replies} == {413}
    assert resident_bytes() - before < 64 * MIB


def test_decoding_keeps_to_its_threads_and_text_goes_past_it(fake: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = [0, 0]
    go_on = threading.Event()
    open_image = images.open_image

    def slowly(data: bytes, max_pixels: int) -> object:
        busy[0] += 1
        busy[1] = max(busy)
        go_on.wait(10)
        busy[0] -= 1
        return open_image(data, max_pixels)

    monkeypatch.setattr(images, "open_image", slowly)
    with ThreadPoolExecutor(12) as senders:
        replies = [senders.submit(fake.post, chat(uri(encoded(card())), "?")) for _ in range(12)]
        until(lambda: busy[0] == 4)
        assert fake.post(chat("hello")).status_code == 200
        go_on.set()
        assert {r.result().status_code for r in replies} == {200}
    assert busy[1] == 4


def test_over_the_limit_of_requests_one_is_told_when_to_come_back() -> None:
    engine = FakeEngine(gap_s=0.3)
    with LiveServer(lambda: engine, limits=Limits(requests=2)) as server, ThreadPoolExecutor(3) as senders:
        slow = [senders.submit(server.post, chat("hello")) for _ in range(2)]
        until(lambda: len(engine.answering) == 2)
        refused = server.post(chat("hello"))
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert 1 <= int(refused.headers["Retry-After"]) <= 60
        assert {s.result().status_code for s in slow} == {200}
        assert server.post(chat("hello")).status_code == 200
        assert server.post(chat("hello", n=3)).status_code == 429  # three answers are three places
        # The official client waits as it was told, and is answered.
        patient = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=5)
        slow = [senders.submit(server.post, chat("hello")) for _ in range(2)]
        until(lambda: len(engine.answering) == 2)
        reply = patient.chat.completions.create(model="fake", **chat("hello"))
        assert reply.choices[0].message.content == "one two three"
    assert (server.service.admission.requests, server.service.admission.bytes) == (0, 0)


def test_over_the_limit_of_bytes_in_hand_a_request_is_told_to_wait() -> None:
    engine = FakeEngine(gap_s=0.3)
    pixels = 3 * 320 * 256
    picture = uri(encoded(card()))
    limits = Limits(bytes_in_hand=pixels * 3 // 2)
    with LiveServer(lambda: engine, limits=limits) as server, ThreadPoolExecutor(1) as senders:
        first = senders.submit(server.post, chat(picture))
        until(lambda: len(engine.answering) == 1)
        assert server.service.admission.bytes == pixels
        assert server.post(chat(picture)).status_code == 429
        assert server.post(chat("hello")).status_code == 200
        assert first.result().status_code == 200
        assert server.service.admission.bytes == 0


def test_a_body_that_does_not_come_is_given_up() -> None:
    engine = FakeEngine()
    with (
        LiveServer(lambda: engine, limits=Limits(body_s=0.3)) as server,
        socket.create_connection(("127.0.0.1", server.port)) as line,
    ):
        line.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n")
        line.sendall(b"Content-Length: 100\r\n\r\n{")
        assert b" 408 " in line.recv(4096).splitlines()[0]
        until(lambda: server.service.admission.requests == 0)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_what_another_sites_page_could_send_is_refused(fake: LiveServer, kind: str) -> None:
    reply = httpx.post(fake.url + CHAT, content=b'{"messages": []}', headers={"Content-Type": kind})
    assert reply.status_code == 415
