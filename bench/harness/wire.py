"""Bare sockets: NATS and our API without a client library, so that the load costs little of the machine that is measured."""

import json
import os
import selectors
import socket
from typing import Any, Final, Self
from urllib.parse import urlsplit

CONNECT: Final = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"echo":false}\r\n'
"""The first line to a NATS server."""
_READ: Final = 1 << 18  # bytes
TIMEOUT: Final = 60.0  # seconds; nothing that is measured takes that long between two reads


def ready(picker: selectors.DefaultSelector) -> list[Any]:
    """The data registered with the sockets that are readable. RuntimeError when none is for a minute."""
    found = [key.data for key, _ in picker.select(TIMEOUT)]
    if not found:
        raise RuntimeError(f"nothing came for {TIMEOUT:g} s")
    return found


class RawNats:
    """A NATS connection that writes prepared frames and counts what its subscription gets."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname, parts.port or 4222), TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self.socket.recv(4096)  # INFO
        self.socket.sendall(CONNECT + b"PING\r\n")
        self._until_pong()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def _until_pong(self) -> None:
        while b"PONG\r\n" not in self._rest:
            self._rest += self.socket.recv(_READ)
        self._rest = b""

    def subscribe(self, subject: str) -> None:
        """Subscribe, and wait until the server has it."""
        self.socket.sendall(f"SUB {subject} 1\r\nPING\r\n".encode())
        self._until_pong()

    def flush(self) -> None:
        """Wait until the server has read everything; for a connection without a subscription."""
        self.socket.sendall(b"PING\r\n")
        self._until_pong()

    def receive(self) -> list[bytes]:
        """The payloads of what the next read brings, headers cut off; answers PINGs."""
        found, self._rest, pings = take_payloads(self._rest + self.socket.recv(_READ))
        if pings:
            self.socket.sendall(b"PONG\r\n" * pings)
        return found


def take_payloads(data: bytes) -> tuple[list[bytes], bytes, int]:
    """The payloads of whole messages of the NATS protocol, headers cut off, the bytes that are left, and the number of PINGs."""
    found: list[bytes] = []
    at = pings = 0
    while (end := data.find(b"\r\n", at)) >= 0:
        head = data[at:end]
        if not head.startswith((b"MSG", b"HMSG")):
            pings += head == b"PING"
            at = end + 2
            continue
        words = head.split()
        size = int(words[-1])
        if len(data) < end + 2 + size + 2:
            break
        skip = int(words[-2]) if head.startswith(b"H") else 0
        found.append(data[end + 2 + skip : end + 2 + size])
        at = end + 2 + size + 2
    return found, data[at:], pings


def frame(subject: str, payload: bytes, reply: str = "") -> bytes:
    """The bytes of one PUB."""
    return f"PUB {subject} {reply + ' ' if reply else ''}{len(payload)}\r\n".encode() + payload + b"\r\n"


class RawApi:
    """One kept-alive connection to the API on a Unix socket."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(TIMEOUT)
        self.socket.connect(os.fspath(path))
        self._rest = bytearray()

    def send(self, method: str, path: str, body: dict[str, Any] | None = None) -> None:
        """Write a request."""
        self.socket.sendall(request_bytes(method, path, body))

    def receive(self) -> bytes | None:
        """One read: the content of the answer, None while it is not whole. RuntimeError for an error answer."""
        piece = self.socket.recv(_READ)
        if not piece:
            raise RuntimeError("the daemon closed the connection")
        self._rest += piece
        answer = take_answer(self._rest)
        if answer is None:
            return None
        status, content = answer
        if status >= 300:
            raise RuntimeError(f"HTTP {status} {content.decode()}")
        return content

    def answer(self) -> Any:
        """Read the answer to it: its JSON. RuntimeError for an error answer."""
        while (content := self.receive()) is None:
            pass
        return json.loads(content)

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """A request and its answer."""
        self.send(method, path, body)
        return self.answer()


def take_http(buffer: bytearray) -> tuple[bytes, bytes] | None:
    """First line and content of the HTTP message at the front of `buffer`, which loses it; None while it is not whole."""
    head_end = buffer.find(b"\r\n\r\n")
    if head_end < 0:
        return None
    head = bytes(buffer[:head_end])
    end = head_end + 4 + int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
    if len(buffer) < end:
        return None
    content = bytes(buffer[head_end + 4 : end])
    del buffer[:end]
    return head.partition(b"\r\n")[0], content


def take_answer(buffer: bytearray) -> tuple[int, bytes] | None:
    """Status and content of the HTTP answer at the front of `buffer`, which loses it; None while it is not whole."""
    if (answer := take_http(buffer)) is None:
        return None
    line, content = answer
    return int(line.split(b" ", 2)[1]), content


def request_bytes(method: str, path: str, body: dict[str, Any] | None) -> bytes:
    """An HTTP/1.1 request with a JSON body."""
    content = b"" if body is None else json.dumps(body).encode()
    kind = "Content-Type: application/json\r\n" if content else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: d\r\n{kind}Content-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


class Events:
    """The event stream, read only as far as counting its events goes."""

    _MARK: Final = b"\nevent: envelope"

    def __init__(self, path: str | os.PathLike[str], query: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(TIMEOUT)
        self.socket.connect(os.fspath(path))
        self.socket.sendall(f"GET /v1/events?{query} HTTP/1.1\r\nHost: d\r\n\r\n".encode())
        self._rest = b""
        while b": stream open" not in self._rest:
            self._rest += self.socket.recv(_READ)
        self._rest = b""

    def count(self) -> int:
        """The number of events in the next read."""
        piece = self.socket.recv(_READ)
        if not piece:
            raise RuntimeError("the event stream ended")
        data = self._rest + piece
        self._rest = data[-(len(self._MARK) - 1) :]
        return data.count(self._MARK)
