"""Addresses of images elsewhere (D24) and files (D25): refused, unless a host is listed; then judged at every step."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from server_harness import FakeEngine, LiveServer, card, chat, encoded

from zellige.engine.server import fetch
from zellige.engine.server.errors import ApiError
from zellige.engine.server.fetch import AllowedHosts, Fetcher

PNG = encoded(card(size=(64, 32)))


class Web:
    """A web server of this test: paths say what it does. Counts who asks."""

    def __init__(self) -> None:
        web = self
        self.asked: list[str] = []
        self.elsewhere = ""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.asked.append(f"{self.headers['Host']}{self.path}")
                if self.path.startswith("/to"):
                    self.send_response(302)
                    self.send_header("Location", web.elsewhere)
                    self.end_headers()
                    return
                status, kind, body = {
                    "/i.png": (200, "image/png", PNG),
                    "/page": (200, "text/html", b"<html>"),
                    "/large": (200, "image/png", PNG + bytes(2 << 20)),
                }.get(self.path, (404, "text/plain", b""))
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def web() -> Iterator[Web]:
    web = Web()
    yield web
    web.close()


def fetched(url: str, *hosts: str, max_bytes: int = 1 << 20) -> bytes:
    return asyncio.run(Fetcher(AllowedHosts(hosts), max_bytes).fetch(url))


def refused(url: str, *hosts: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        fetched(url, *hosts)
    return caught.value


OWN_ADDRESSES = [
    "http://127.0.0.1:{port}/i.png",
    "http://[::1]:{port}/i.png",
    "http://0.0.0.0:{port}/i.png",
    "http://2130706433:{port}/i.png",
    "http://0x7f.1:{port}/i.png",
    "http://[::ffff:127.0.0.1]:{port}/i.png",
    "http://localhost:{port}/i.png",
    "http://localhost.:{port}/i.png",
    "http://169.254.169.254/latest/meta-data/",
    "http://listed.example@127.0.0.1:{port}/i.png",
    "http://listed.example:80@127.0.0.1:{port}/i.png",
    "http://127.0.0.1:{port}\\@listed.example/i.png",
    "http://listed.example%00.127.0.0.1:{port}/",
    "HTTP://127.0.0.1:{port}/i.png",
]


@pytest.mark.parametrize("url", OWN_ADDRESSES)
@pytest.mark.parametrize("hosts", [(), ("listed.example",)])
def test_no_spelling_of_this_machine_is_connected_to(web: Web, url: str, hosts: tuple[str, ...]) -> None:
    assert refused(url.format(port=web.port), *hosts).status in (400, 403)
    assert not web.asked


@pytest.mark.parametrize(
    "url",
    [
        "http://photos.example/i.png",
        "https://photos.example/i.png",
        "file:///etc/hostname",
        "file://localhost/etc/hostname",
        "FILE:///etc/hostname",
        "/etc/hostname",
        "../../etc/hostname",
        "ftp://photos.example/i.png",
        "blob:abc",
        "javascript:alert(1)",
    ],
)
def test_the_server_as_it_comes_reads_data_uris_only(fake: LiveServer, url: str) -> None:
    body = chat("data:,", "?")
    body["messages"][0]["content"][0]["image_url"]["url"] = url
    reply = fake.post(body)
    assert reply.status_code in (400, 403)
    assert "image 1" in reply.json()["error"]["message"]
    assert url not in reply.text


def test_files_are_never_read_even_where_everything_is_listed(tmp_path: Path) -> None:
    (tmp_path / "i.png").write_bytes(PNG)
    engine = FakeEngine((f"{tmp_path}/i.png",))
    with LiveServer(lambda: engine, hosts=("localhost", "0.0.0.0/0", "::/0")) as server:
        body = chat("data:,")
        for url in (f"file://{tmp_path}/i.png", f"file://localhost{tmp_path}/i.png", f"{tmp_path}/i.png"):
            body["messages"][0]["content"][0]["image_url"]["url"] = url
            assert server.post(body).status_code in (400, 403)
        # An answer that is a path stays text.
        assert server.post(chat("?")).json()["choices"][0]["message"]["content"] == f"{tmp_path}/i.png"


def test_a_listed_host_is_fetched_from_through_the_server(web: Web) -> None:
    engine = FakeEngine()
    with LiveServer(lambda: engine, hosts=("localhost", "127.0.0.1")) as server:
        server.post(chat(web.url("/i.png", "localhost"), "?")).raise_for_status()
    assert engine.texts == ["<64 x 32>", "?"]
    assert web.asked == [f"localhost:{web.port}/i.png"]  # the name it was asked by, though the address was dialled


def test_a_listed_name_that_leads_inside_is_refused_unless_the_address_is_listed_too(web: Web) -> None:
    assert refused(web.url("/i.png", "localhost"), "localhost").status == 403
    assert not web.asked
    assert fetched(web.url("/i.png", "localhost"), "localhost", "127.0.0.0/8", "::1") == PNG
    assert fetched(web.url("/i.png"), "127.0.0.1") == PNG


def test_a_redirect_is_judged_like_the_first_address(web: Web) -> None:
    for target in (web.url("/i.png", "127.0.0.2"), "http://169.254.169.254/", "file:///etc/hostname", "ftp://a/"):
        web.elsewhere = target
        assert refused(web.url("/to"), "127.0.0.1").status == 403
    assert {a.rsplit("/", 1)[1] for a in web.asked} == {"to"}
    web.elsewhere = "/i.png"
    assert fetched(web.url("/to"), "127.0.0.1") == PNG
    web.elsewhere = "/to-itself"
    assert "redirects" in refused(web.url("/to"), "127.0.0.1").message


def test_every_address_of_a_name_must_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One public answer and one inside: which of them would be dialled is chance."""

    async def two_answers(self: Any, host: str, port: int, **_: Any) -> Any:
        return [(socket.AF_INET, 1, 6, "", (a, port)) for a in ("93.184.216.34", "10.0.0.7")]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", two_answers)
    assert refused("http://listed.example/i.png", "listed.example").status == 403


def test_a_name_that_changes_its_answer_is_dialled_at_the_address_that_was_judged(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rebinding: whoever asks a second time is told another address. Nobody asks a second time."""
    asked: list[str] = []
    system = asyncio.BaseEventLoop.getaddrinfo

    async def changing(self: Any, host: Any, port: int, **more: Any) -> Any:
        if host != "listed.example":
            return await system(self, host, port, **more)
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "127.0.0.66"
        return [(socket.AF_INET, 1, 6, "", (address, port))]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", changing)
    assert fetched(web.url("/i.png", "listed.example"), "listed.example", "127.0.0.1") == PNG
    assert asked == ["listed.example"]
    assert web.asked == [f"listed.example:{web.port}/i.png"]


def test_the_address_really_connected_to_is_compared(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should a layer below ever dial another address, nothing of it is read."""

    async def misled(self: Fetcher, host: str, port: int) -> fetch.Address:
        class Elsewhere(ipaddress.IPv4Address):
            def __str__(self) -> str:
                return "127.0.0.1"

        return Elsewhere("127.0.0.9")

    monkeypatch.setattr(Fetcher, "_address_of", misled)
    assert "another address" in refused(web.url("/i.png"), "127.0.0.0/8").message


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "224.0.0.1",
        ),
        *(
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "ff02::1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
        ),
    ],
)
def test_no_inner_address_is_permitted_to_a_listed_name(address: str) -> None:
    assert not AllowedHosts(["listed.example"]).permits(ipaddress.ip_address(address))


def test_public_addresses_are_permitted_to_a_listed_name() -> None:
    hosts = AllowedHosts(["Listed.Example."])
    assert hosts.lists_name("LISTED.example")
    assert all(map(hosts.permits, map(ipaddress.ip_address, ("93.184.216.34", "2606:2800:220:1::1"))))


@pytest.mark.parametrize(("path", "status"), [("/page", 400), ("/missing", 400), ("/large", 413)])
def test_what_is_no_image_or_too_large_is_refused(web: Web, path: str, status: int) -> None:
    assert refused(web.url(path), "127.0.0.1").status == status


def test_a_host_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "FETCH_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "did not come" in refused(f"http://127.0.0.1:{silent.getsockname()[1]}/", "127.0.0.1").message


def test_nonsense_in_the_list_is_told() -> None:
    with pytest.raises(ValueError, match="no host name"):
        AllowedHosts(["http://photos.example/"])
