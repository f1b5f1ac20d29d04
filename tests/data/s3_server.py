"""OpenStack Swift on loopback, which speaks S3: Debian's packages, run from a folder of their own without root's help.

One process for each of its four servers, one disk, one copy. Nothing in ``/etc/swift`` is read or changed.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PACKAGES = "swift-proxy swift-account swift-container swift-object"
STARTS_WITHIN_S = 60
_STORES = ("account", "container", "object")
#: The interpreter of Debian's packages, and what it does to say where each kind of data lies: all on one disk.
_PYTHON = "/usr/bin/python3"
_RINGS = """
import sys
from swift.common.ring import RingBuilder
for name, port in zip(("account", "container", "object"), map(int, sys.argv[2:])):
    builder = RingBuilder(part_power=4, replicas=1, min_part_hours=1)
    device = {"region": 1, "zone": 1, "ip": "127.0.0.1", "port": port, "device": "d1", "weight": 1.0}
    builder.add_dev(device | {"replication_ip": "127.0.0.1", "replication_port": port, "meta": ""})
    builder.rebalance()
    builder.get_ring().save(f"{sys.argv[1]}/{name}.ring.gz")
"""
#: The proxy. Swift's own PUT knows ``If-None-Match: *``, and its S3 side refuses to pass it on: here it does, and one
#: who creates wins, whoever asks at the same time, as with Amazon; unless the environment has ``ZELLIGE_PLAIN_SWIFT``.
#: Debian's eventlet sends an empty chunk behind an answer to HEAD that names no length, and strict clients
#: take it for the next answer: so a length is named.
_PROXY = """
import collections
import os
import sys
from eventlet import semaphore, wsgi
from swift.common.middleware.s3api import s3request
from swift.common.middleware.s3api.controllers.obj import ObjectController
from swift.common.wsgi import run_wsgi

validate, put = s3request.S3Request._validate_headers, ObjectController.PUT
locks = collections.defaultdict(semaphore.Semaphore)

def without_condition(request):
    condition = request.environ.pop("HTTP_IF_NONE_MATCH", None) if request.method == "PUT" else None
    try:
        return validate(request)
    finally:
        if condition is not None:
            request.environ["HTTP_IF_NONE_MATCH"] = condition

def one_at_a_time(controller, request):
    with locks[request.path]:
        return put(controller, request)

one_at_a_time.publicly_accessible = True
if "ZELLIGE_PLAIN_SWIFT" not in os.environ:
    s3request.S3Request._validate_headers = without_condition
    ObjectController.PUT = one_at_a_time

serve = wsgi.server

def server(sock, app, *args, **options):
    def with_length(environ, start_response):
        def start(status, headers, *error):
            if environ["REQUEST_METHOD"] == "HEAD" and "content-length" not in (name.lower() for name, _ in headers):
                headers = [*headers, ("Content-Length", "0")]
            return start_response(status, headers, *error)
        return app(environ, start)
    return serve(sock, with_length, *args, **options)

wsgi.server = server
sys.exit(run_wsgi(sys.argv[1], "proxy-server", verbose=True))
"""
#: swift-object needs a file system with room for its metadata in extended attributes.
_ATTRIBUTE = ("user.zellige", b"x" * 2048)


@dataclass(frozen=True)
class S3Server:
    """Where the server listens and who may use it."""

    endpoint: str
    key: str = "test:tester"
    secret: str = "testing"

    @property
    def variables(self) -> dict[str, str]:
        """The environment that points the usual S3 clients at it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


def why_not(folder: Path) -> str | None:
    """Why no server can be started in ``folder``; None where one can."""
    commands = [f"swift-{name}-server" for name in (*_STORES, "proxy")]
    if missing := [command for command in commands if shutil.which(command) is None]:
        return f"{', '.join(missing)} not installed (Debian: apt-get install {PACKAGES})"
    try:
        os.setxattr(folder, *_ATTRIBUTE)
        os.removexattr(folder, _ATTRIBUTE[0])
    except OSError as error:
        return f"the file system of {folder} keeps no extended attributes ({error.strerror}); name one by --basetemp"
    return None


@contextmanager
def s3_server(folder: Path, host: str = "127.0.0.1") -> Iterator[S3Server]:
    """The server, at ``host``, while inside; its data and logs lie in ``folder``.

    Raises RuntimeError where it does not start.
    """
    with ExitStack() as ended:
        ports = _free_ports(4)
        _configure(folder, ports, host)
        servers = [_started(folder, name, ended) for name in (*_STORES, "proxy")]
        server = S3Server(f"http://{host}:{ports[-1]}")
        _wait_for(server, servers, folder)
        yield server


def _free_ports(count: int) -> list[int]:
    with ExitStack() as closed:
        sockets = [closed.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def _configure(folder: Path, ports: list[int], host: str) -> None:
    (folder / "disks" / "d1").mkdir(parents=True)
    (folder / "swift.conf").write_text(
        "[swift-hash]\nswift_hash_path_suffix = s\nswift_hash_path_prefix = p\n"
        "[storage-policy:0]\nname = one\ndefault = yes\n"
    )
    subprocess.run([_PYTHON, "-c", _RINGS, folder, *map(str, ports)], check=True)
    for name, port in zip(_STORES, ports, strict=False):
        (folder / f"{name}.conf").write_text(
            _common(folder, port) + f"devices = {folder / 'disks'}\nmount_check = false\n"
            f"[pipeline:main]\npipeline = {name}-server\n[app:{name}-server]\nuse = egg:swift#{name}\n"
        )
    (folder / "proxy.conf").write_text(
        _common(folder, ports[-1], host) + "[pipeline:main]\n"
        "pipeline = catch_errors gatekeeper cache listing_formats s3api tempauth slo dlo proxy-server\n"
        + "".join(
            f"[filter:{name}]\nuse = egg:swift#{name}\n"
            for name in ("catch_errors", "gatekeeper", "listing_formats", "s3api", "slo", "dlo")
        )
        # tempauth asks for a cache; that nothing answers there costs it one refused connection now and then.
        + "[filter:cache]\nuse = egg:swift#memcache\nmemcache_servers = 127.0.0.1:1\n"
        f"[filter:tempauth]\nuse = egg:swift#tempauth\nuser_test_tester = {S3Server.secret} .admin\n"
        "[app:proxy-server]\nuse = egg:swift#proxy\naccount_autocreate = true\n"
    )


def _common(folder: Path, port: int, host: str = "127.0.0.1") -> str:
    return (
        f"[DEFAULT]\nbind_ip = {host}\nbind_port = {port}\nworkers = 0\nuser = {getpass.getuser()}\n"
        f"swift_dir = {folder}\nlog_level = WARNING\n"
    )


def _started(folder: Path, name: str, ended: ExitStack) -> subprocess.Popen[bytes]:
    log = ended.enter_context((folder / f"{name}.log").open("wb"))
    command = [_PYTHON, "-c", _PROXY] if name == "proxy" else [f"swift-{name}-server"]
    process = subprocess.Popen([*command, folder / f"{name}.conf"], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    ended.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(5)
    process.kill()
    process.wait()


def _wait_for(server: S3Server, servers: list[subprocess.Popen[bytes]], folder: Path) -> None:
    until = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < until and all(process.poll() is None for process in servers):
        try:
            urllib.request.urlopen(server.endpoint, timeout=5).close()
        except urllib.error.HTTPError:  # it answers; that nobody may come in without a key is right
            return
        except OSError:
            time.sleep(0.1)
    logs = {path.name: path.read_text(errors="replace")[-2000:] for path in folder.glob("*.log")}
    raise RuntimeError(f"Swift did not start within {STARTS_WITHIN_S} s: {logs}")
