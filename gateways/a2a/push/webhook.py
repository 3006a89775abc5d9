"""One HTTPS request to a webhook, to an address that was checked: no private network is reached, no redirect followed.

A receiver on this host that the operator names may have plain HTTP.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import h11

from aghbus.protocol.base.addresses import is_loopback

SECONDS: Final = 15.0
"""For one request, from the look-up of the name to the head of the response."""
ANY: Final = "*"
"""In an allow-list: every host with a public address."""
MAX_URL: Final = 2048
"""Characters."""
_HOST: Final = re.compile(r"(?=.{1,253}$)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*|[0-9a-f:.]{2,45}")
"""A name that can be looked up, or an address."""
_EMBEDDING: Final = tuple(
    map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::/96"))
)
"""IPv6 networks whose addresses lead to IPv4 addresses."""


class Refused(Exception):
    """The URL, or the address of its host, is not allowed; the text says why."""


class Target(NamedTuple):
    """A URL in parts."""

    host: str
    port: int
    path: str
    tls: bool = True


class AllowList:
    """The hosts that notifications may go to: `HOST`, `HOST:PORT`, `HOST:*` for every port, or `*`."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._entries = frozenset(entry.lower() for entry in entries)

    def __bool__(self) -> bool:
        return bool(self._entries)

    def target(self, url: str) -> Target:
        """The parts of a URL that may be used. Raises Refused."""
        try:
            parts = urlsplit(url)
            host, tls = (parts.hostname or "").lower().rstrip("."), parts.scheme == "https"
            port = parts.port or (443 if tls else 80)
        except ValueError:
            raise Refused("must be an https URL") from None
        here = parts.scheme == "http" and is_loopback(host) and self._names(host, port)
        if not (tls or here) or not url.isascii() or any(char <= " " for char in url):
            raise Refused("must be an https URL")
        if len(url) > MAX_URL or not _HOST.fullmatch(host):
            raise Refused(f"must have a legal host and at most {MAX_URL} characters")
        if parts.username is not None or parts.password is not None or parts.fragment:
            raise Refused("must have no user, password or fragment")
        if not self._names(host, port) and ANY not in self._entries:
            raise Refused("its host is not one that this agent sends notifications to")
        path = parts.path or "/"
        return Target(host, port, f"{path}?{parts.query}" if parts.query else path, tls)

    async def address(self, target: Target) -> str:
        """An address of the target that may be connected to. Raises Refused and OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        addresses = [str(each[4][0]) for each in found]
        for address in addresses:
            if not (_is_public(address) or self._names(address, target.port)):
                raise Refused("the address of its host is not public")
        return addresses[0]

    def _names(self, host: str, port: int) -> bool:
        shown = f"[{host}]" if ":" in host else host
        if port == 443 and not self._entries.isdisjoint((shown, host)):
            return True
        return not self._entries.isdisjoint((f"{shown}:{port}", f"{shown}:*"))


def _is_public(address: str) -> bool:
    plain = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(plain, ipaddress.IPv6Address) and (
        plain.ipv4_mapped or any(plain in network for network in _EMBEDDING)
    ):
        return False
    return plain.is_global and not plain.is_multicast and not plain.is_reserved


async def post(allowed: AllowList, url: str, headers: dict[str, str], body: bytes) -> int:
    """POST `body`: the status of the response. Raises Refused, OSError (TimeoutError too) and h11.ProtocolError."""
    target = allowed.target(url)
    async with asyncio.timeout(SECONDS):
        address = await allowed.address(target)
        tls, name = (ssl.create_default_context(), target.host) if target.tls else (None, None)
        reader, writer = await asyncio.open_connection(address, target.port, ssl=tls, server_hostname=name)
        try:
            return await _exchange(reader, writer, target, headers, body)
        finally:
            writer.close()


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: Target, headers: dict[str, str], body: bytes
) -> int:
    shown = f"[{target.host}]" if ":" in target.host else target.host
    host = shown if target.port == (443 if target.tls else 80) else f"{shown}:{target.port}"
    fields = [("Host", host), ("Content-Length", str(len(body))), ("Connection", "close"), *headers.items()]
    connection = h11.Connection(h11.CLIENT)
    request = h11.Request(method="POST", target=target.path, headers=fields)
    for event in (request, h11.Data(data=body), h11.EndOfMessage()):
        writer.write(connection.send(event) or b"")
    await writer.drain()
    while True:
        answer = connection.next_event()
        if answer is h11.NEED_DATA:
            connection.receive_data(await reader.read(65_536))
        elif isinstance(answer, h11.Response):
            return answer.status_code
        elif isinstance(answer, h11.ConnectionClosed):
            raise ConnectionResetError("the connection was closed before the response")
