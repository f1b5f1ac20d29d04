"""Images from elsewhere: only from listed hosts, and only from the address that was looked at.

A name is resolved here, once; every address it has must be public (or listed), and the connection goes to one of just
those. Each redirect is a new URL and is judged like the first. Proxies of the environment are not used.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import Iterable
from functools import cached_property
from urllib.parse import SplitResult, urljoin, urlsplit

import httpx

from zellige.engine.server.errors import ApiError, too_large

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

REDIRECTS = 3
FETCH_S = 15.0
#: IPv6 addresses that stand for an IPv4 one behind a translator: where they lead cannot be seen from here.
_TRANSLATED = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")))
_NOT_IN_URLS = re.compile(r"[\x00-\x20\x7f\\]")
_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_-]+(\.[a-z0-9_-]+)*")


class AllowedHosts:
    """The hosts that images may come from: names, and addresses or networks where these are not public ones."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        """Raises ValueError for what is neither a host name nor an address nor a network."""
        self._names: set[str] = set()
        self._networks: list[Network] = []
        for entry in entries:
            try:
                self._networks.append(ipaddress.ip_network(entry))
            except ValueError:
                name = entry.lower().rstrip(".")
                if not _NAME.fullmatch(name):
                    raise ValueError(f"{entry!r} is no host name, address or network (10.0.0.0/8)") from None
                self._names.add(name)

    def __bool__(self) -> bool:
        return bool(self._names or self._networks)

    def lists_name(self, host: str) -> bool:
        return host.lower().rstrip(".") in self._names

    def lists(self, address: Address) -> bool:
        return any(address in network for network in self._networks)

    def permits(self, address: Address) -> bool:
        """Whether a listed name may lead there: a public address, or one that is listed itself."""
        if isinstance(address, ipaddress.IPv6Address):
            if address.ipv4_mapped is not None:
                return self.permits(address.ipv4_mapped)
            if any(address in network for network in _TRANSLATED):
                return False
        return self.lists(address) or (address.is_global and not address.is_multicast)


class Fetcher:
    """Gets images by http(s) from allowed hosts, ``max_bytes`` each; raises ApiError 400, 403 or 413."""

    def __init__(self, hosts: AllowedHosts, max_bytes: int) -> None:
        self._hosts, self._max_bytes = hosts, max_bytes

    async def fetch(self, url: str) -> bytes:
        if not self._hosts:
            raise _refused("this server fetches no images; send it as a data: URI")
        try:
            async with asyncio.timeout(FETCH_S):
                return await self._follow(url)
        except TimeoutError as error:
            raise _failed(f"it did not come within {FETCH_S:g} s") from error
        except httpx.HTTPError as error:
            raise _failed(f"it could not be fetched ({type(error).__name__})") from error

    async def _follow(self, url: str) -> bytes:
        for _ in range(REDIRECTS + 1):
            parts = _split(url)
            address = await self._address_of(parts.hostname or "", parts.port or {"https": 443}.get(parts.scheme, 80))
            found = await self._get(parts, address)
            if isinstance(found, bytes):
                return found
            url = urljoin(url, found)
        raise _failed(f"over {REDIRECTS} redirects")

    async def _address_of(self, host: str, port: int) -> Address:
        """Where to connect for this host; raises ApiError 403 for one that is not allowed."""
        literal = _as_address(host)
        if literal is not None:
            if not self._hosts.lists(literal):
                raise _refused("its address is not on this server's list of image hosts")
            return literal
        if not self._hosts.lists_name(host):
            raise _refused("its host is not on this server's list of image hosts")
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise _failed("its host has no address") from error
        addresses = [ipaddress.ip_address(entry[4][0]) for entry in found]
        if not addresses or not all(map(self._hosts.permits, addresses)):
            raise _refused("its host leads to an address that is neither public nor listed")
        return addresses[0]

    async def _get(self, parts: SplitResult, address: Address) -> bytes | str:
        """The image, or where it has moved to."""
        netloc = f"[{address}]" if address.version == 6 else str(address)
        pinned = parts._replace(netloc=f"{netloc}:{parts.port}" if parts.port else netloc, fragment="").geturl()
        async with (
            httpx.AsyncClient(verify=self._tls, trust_env=False, follow_redirects=False) as client,
            client.stream(
                "GET",
                pinned,
                headers={"Host": parts.netloc, "Accept": "image/*"},
                extensions={"sni_hostname": parts.hostname or ""},
            ) as response,
        ):
            peer = response.extensions["network_stream"].get_extra_info("server_addr")
            if ipaddress.ip_address(peer[0]) != address:
                raise _refused("the connection went to another address than was asked for")
            if response.is_redirect and "location" in response.headers:
                return response.headers["location"]
            if response.status_code != 200:
                raise _failed(f"its host answered {response.status_code}")
            if not response.headers.get("content-type", "image/").startswith(("image/", "application/octet-stream")):
                raise _failed("what its host sent is not of a type image/…")
            data = bytearray()
            async for piece in response.aiter_bytes():
                data += piece
                if len(data) > self._max_bytes:
                    raise too_large(f"over the limit of {self._max_bytes >> 20} MiB an image")
            return bytes(data)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return httpx.create_ssl_context(trust_env=False)


def _split(url: str) -> SplitResult:
    """The URL's parts; raises ApiError for one that two readers could understand differently."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ApiError(400, "the URL is malformed", code="invalid_image_url") from error
    if parts.scheme not in ("http", "https"):
        raise _refused("it leads to something else than http or https")
    if _NOT_IN_URLS.search(url) or not parts.hostname:
        raise ApiError(400, "the URL is malformed", code="invalid_image_url")
    if "@" in parts.netloc:
        raise _refused("names and passwords in a URL are not taken")
    return parts


def _as_address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _refused(message: str) -> ApiError:
    return ApiError(403, message, code="url_refused")


def _failed(message: str) -> ApiError:
    return ApiError(400, message, code="image_fetch_failed")
