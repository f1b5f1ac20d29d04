"""The review page on loopback: every address holds a key that only its reader knows.

Other programs and pages of this machine reach the port too. Without the key in its address a request gets nothing, and
one that names another host (a name elsewhere that leads here) gets nothing either.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from zellige.data.ledger import LedgerError
from zellige.tasks.pictures import NoPicture
from zellige.tasks.review import RefusedError, ReviewDesk

#: An answer is far shorter; what is longer is not read.
LARGEST_BODY_BYTES = 4 << 20
#: Seconds that a connection may stay silent.
SILENT_S = 60.0

_PICTURE = re.compile(r"(small|large)/(\d{1,9})")
_JSON, _TEXT = "application/json", "text/plain; charset=utf-8"


class ReviewServer(ThreadingHTTPServer):
    """Serves one desk on 127.0.0.1; ``address`` is where. Raises OSError where the port is taken."""

    daemon_threads = True

    def __init__(self, desk: ReviewDesk, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.desk, self.key = desk, secrets.token_urlsafe(16)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{self.key}/"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = SILENT_S
    server: ReviewServer

    def handle(self) -> None:
        with suppress(ConnectionError, TimeoutError):  # the browser left: it wants the next page's pictures by now
            super().handle()

    def do_GET(self) -> None:
        path = self._path()
        if path is None:
            return
        desk = self.server.desk
        if path == "":
            policy = f"{desk.policy}; frame-ancestors 'none'"
            self._send(200, desk.page(), "text/html; charset=utf-8", {"Content-Security-Policy": policy})
        elif match := _PICTURE.fullmatch(path):
            try:
                self._send(200, desk.picture(int(match[2]), match[1]), "image/jpeg")
            except (RefusedError, NoPicture) as error:
                self._send(404, str(error).encode(), _TEXT)
        else:
            self._send(404, b"there is nothing here", _TEXT)

    def do_POST(self) -> None:
        # What is not read of a body would be taken for the next request.
        self.close_connection = True
        path = self._path()
        if path is None:
            return
        size = self.headers.get("Content-Length", "")
        if path != "reviews":
            self._say(404, "there is nothing here")
        elif self.headers.get_content_type() != _JSON:
            self._say(415, f"send {_JSON}")
        elif not size.isdecimal() or int(size) > LARGEST_BODY_BYTES:
            self._say(413, f"send at most {LARGEST_BODY_BYTES} bytes, and say how many")
        else:
            self._decide(self.rfile.read(int(size)))

    def _decide(self, body: bytes) -> None:
        try:
            self.server.desk.decide(json.loads(body))
        except RefusedError as error:
            self._say(422, str(error))
        except ValueError:
            self._say(400, "this is no JSON")
        except LedgerError as error:
            self._say(500, str(error))
        else:
            self._say(200, None)

    def _path(self) -> str | None:
        """What the address says behind the key; None, answered, for who does not know it."""
        hosts = {f"{name}:{self.server.server_address[1]}" for name in ("127.0.0.1", "localhost")}
        key, slash, rest = self.path.removeprefix("/").partition("/")
        known = hmac.compare_digest(key.encode(), self.server.key.encode())
        if self.headers.get("Host") in hosts and known and slash:
            return rest
        self._send(403, b"open the whole address that zellige review printed", _TEXT)
        return None

    def _say(self, status: int, error: str | None) -> None:
        self._send(status, json.dumps({} if error is None else {"error": error}).encode(), _JSON)

    def _send(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        usual = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "private, max-age=600" if kind == "image/jpeg" else "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
        }
        self.send_response(status)
        for name, value in (usual | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base class names it
        """Nothing: an address holds the key."""
