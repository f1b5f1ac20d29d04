"""From the open port to the last answer: loading, readiness, what ends the server, and how."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest
from server_harness import FakeEngine, LiveServer, chat, until
from typer.testing import CliRunner

from zellige.engine.api import RequestFatal
from zellige.engine.server.limits import ANSWERS_END_S
from zellige.flows.cli import app

HERE = Path(__file__).parent


def test_the_port_is_open_while_the_model_is_loaded_and_health_says_so() -> None:
    loaded = threading.Event()

    def load() -> FakeEngine:
        loaded.wait(10)
        return FakeEngine()

    with LiveServer(load, wait=False) as server:
        until(lambda: server._server.started)
        health = server.get("/health")
        assert health.status_code == 503
        assert health.json() == {"live": True, "ready": False, "reason": "the model is being loaded"}
        refused = server.post(chat("hello"))
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert server.get("/metrics").status_code == 503
        loaded.set()
        until(lambda: server.get("/health").status_code == 200)
        assert server.get("/health").json() == {"live": True, "ready": True, "reason": None}
        assert server.post(chat("hello")).status_code == 200


def test_an_engine_that_died_is_neither_ready_nor_alive(fake: LiveServer) -> None:
    fake.engine.failure = "the engine stopped: the device is gone"
    health = fake.get("/health")
    assert health.status_code == 503
    assert health.json() == {"live": False, "ready": False, "reason": "the engine stopped: the device is gone"}
    assert fake.post(chat("hello")).status_code == 503


def test_an_engine_that_starts_again_is_alive_and_not_ready_and_finishes_what_it_has(fake: LiveServer) -> None:
    def die(place: int) -> None:
        fake.engine.pause = "the engine's process died (signal 11, SIGSEGV) and is started again"

    fake.engine.between = die
    assert fake.post(chat("in hand")).status_code == 200
    health = fake.get("/health")
    assert health.status_code == 503
    assert health.json() == {"live": True, "ready": False, "reason": fake.engine.pause}
    refused = fake.post(chat("hello"))
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    fake.engine.pause = None
    assert fake.get("/health").status_code == 200


def test_a_request_that_ended_the_engines_process_is_not_told_to_come_back(fake: LiveServer) -> None:
    def fatal(request: object) -> None:
        fake.engine.pause = "started again"
        raise RequestFatal("rms_norm")

    fake.engine.before = fatal
    reply = fake.post(chat("hello"))
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "request_fatal")
    assert "Retry-After" not in reply.headers


def test_leaving_ends_the_engine(fake: LiveServer) -> None:
    with LiveServer(lambda: FakeEngine()) as server:
        pass
    assert server.engine.closed.is_set()


#: Serves an engine that says a thousand words in a minute and a half, without torch.
SLOWLY = """
from server_harness import FakeEngine
from zellige.engine.server import run
run.ANSWERS_END_S = {answers_end_s}
engine = FakeEngine(words=("word ",) * 1000, gap_s=0.09)
say = lambda url: print(url, file=sys.stderr, flush=True)
run.serve(lambda: engine, host="127.0.0.1", port=0, on_listening=say)
"""
COMMAND = "from zellige.flows.cli import main; main()"


@contextmanager
def process_of(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A server as a process of its own, ended in any case."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(HERE)!r}); {script}", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return next(word for word in process.stderr.readline().split() if word.startswith("http"))


def ready(url: str) -> bool:
    return httpx.get(f"{url}/health", timeout=10).status_code == 200


def test_sigterm_lets_answers_end_then_exits_cleanly() -> None:
    with process_of(COMMAND, "serve", "--port", "0") as process:
        url = address(process)
        until(lambda: ready(url), 60)
        text = ""
        body = chat("Describe the image.", stream=True, max_tokens=60, min_tokens=60)
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=30) as reply:
            lines = reply.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            sent = time.monotonic()
            for line in lines:
                text += line
        assert '"finish_reason":"length"' in text
        assert text.endswith("data: [DONE]")
        assert process.wait(20) == 0
        assert time.monotonic() - sent < 20
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


def test_answers_that_do_not_end_fail_in_words_and_the_exit_is_within_20_s() -> None:
    """``ZELLIGE_TEST_LONG=1``: they get the 12 s that they have in earnest."""
    patience_s = ANSWERS_END_S if os.environ.get("ZELLIGE_TEST_LONG") == "1" else 1.0
    after_s = ended_after(process_of(SLOWLY.format(answers_end_s=patience_s)), signals=1)
    assert patience_s <= after_s < 20


def test_a_body_that_is_still_on_its_way_is_given_up_with_the_answers() -> None:
    with process_of(SLOWLY.format(answers_end_s=0.5)) as process:
        url = address(process)
        until(lambda: ready(url), 60)
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as line:
            line.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n")
            line.sendall(b"Content-Length: 100\r\n\r\n{")
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            assert b" 503 " in line.recv(4096).splitlines()[0]
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_a_second_signal_lets_answers_fail_at_once() -> None:
    assert ended_after(process_of(SLOWLY.format(answers_end_s=60)), signals=2) < 20


def ended_after(started: AbstractContextManager[subprocess.Popen[str]], signals: int) -> float:
    """Seconds from the first of ``signals`` to the exit, an answer being streamed; it must be told why it ends."""
    with started as process:
        url = address(process)
        until(lambda: ready(url), 60)
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=chat("?", stream=True), timeout=30) as reply:
            lines = reply.iter_lines()
            next(lines)
            sent = time.monotonic()
            for _ in range(signals):
                process.send_signal(signal.SIGTERM)
                time.sleep(0.3)
            last = [line for line in lines if line][-1]
        error = json.loads(last.removeprefix("data: "))["error"]
        assert error["type"] == "server_error"
        assert "closed" in error["message"]
        assert process.wait(20) == 0
        return time.monotonic() - sent


def test_a_signal_while_the_model_is_loaded_ends_at_once() -> None:
    with process_of(COMMAND, "serve", "--port", "0") as process:
        address(process)
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_what_cannot_be_served_is_told_with_exit_code_2(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("nobody\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for arguments, says in (
            (("--model", str(tmp_path)), "config.json"),
            (("--model", str(tmp_path), "--host", "0.0.0.0"), "whoever reaches this address may use it; --api-keys"),
            (("--api-keys", str(keys)), "line 1"),
            (("--image-host", "http://a/"), "no host name"),
            (("--port", str(taken.getsockname()[1])), "cannot listen"),
        ):
            result = CliRunner().invoke(app, ["serve", "--port", "0", *arguments])
            assert result.exit_code == 2
            assert says in result.stderr
