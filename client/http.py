"""HTTP/1.1 as far as the local API needs it: one request per connection, responses with a length, chunked or until close.

Ours and not http.client, whose import takes as long as the whole of a short command (email, urllib.parse, ssl). For the
same reason Unix sockets are those of _socket, the part of socket in C. One request per connection keeps the states few; on a
Unix socket a connection costs microseconds.
"""

from __future__ import annotations

from _socket import AF_UNIX, SOCK_STREAM, socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from aghbus.client.errors import ConnectionLost, Unexpected, Unreachable

Query = Sequence[tuple[str, object]]

MAX_HEAD_BYTES = 65_536
"""Bytes of status line and headers; the API's are a few hundred."""
LONGEST_STEP = 2_000_000.0
"""Seconds: poll(2) counts milliseconds in 31 bits."""
_RECEIVE_BYTES = 65_536
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")  # RFC 3986 section 2.3


class Endpoint:
    """The address of a daemon: a Unix socket at `path`, or `host` and `port` with a `token`."""

    def __init__(self, *, path: str = "", host: str = "", port: int = 0, token: str = "") -> None:
        self.path = path
        self.host = host
        self.port = port
        self.token = token

    def __str__(self) -> str:
        return self.path or f"http://{self.host}:{self.port}"

    def connect(self, timeout: float) -> socket:
        """A connection whose every step may take `timeout` seconds. Raises Unreachable."""
        timeout = min(timeout, LONGEST_STEP)
        try:
            if not self.path:
                from socket import create_connection

                return create_connection((self.host, self.port), timeout)
            connection = socket(AF_UNIX, SOCK_STREAM)
            try:
                connection.settimeout(timeout)
                connection.connect(self.path)
            except OSError:
                connection.close()
                raise
            return connection
        except OSError as error:
            raise self.unreachable(error) from None

    def authorize(self, connection: socket) -> str:
        """The value of Authorization for requests on this TCP connection (protocol/api/tcp_proof.py).

        Raises Unexpected when the process at the address does not prove first that it knows the token, which is not sent.
        """
        import hmac
        import secrets

        from aghbus.protocol.api.tcp_proof import NONCE_BYTES, SCHEME, challenge_of, proof

        nonce, address = secrets.token_hex(NONCE_BYTES), connection.getpeername()[:2]
        lines = ("GET /healthz HTTP/1.1", f"Host: {self.authority}", f"Authorization: {SCHEME} nonce={nonce}", "", "")
        try:
            connection.sendall("\r\n".join(lines).encode())
        except OSError as error:
            raise self.unreachable(error) from None
        answer = Response(connection, self)
        challenge = challenge_of(answer.headers.get("www-authenticate", ""))
        if challenge is None or not hmac.compare_digest(
            challenge[1], proof(self.token, "daemon", address, nonce, challenge[0])
        ):
            raise Unexpected(
                f"the process at {self} does not know the token of the daemon",
                "another process listens there, or --token-file is of another daemon",
                "unproven",
            )
        answer.body()
        return f"{SCHEME} proof={proof(self.token, 'client', address, nonce, challenge[0])}"

    @property
    def authority(self) -> str:
        """The value of Host."""
        if not self.host:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def unreachable(self, error: OSError) -> Unreachable:
        """The error for people when `error` prevented the exchange with the daemon."""
        if isinstance(error, TimeoutError):
            return Unreachable(
                f"the daemon at {self} did not respond in time", "see `aghctl doctor`, or raise --timeout"
            )
        if isinstance(error, FileNotFoundError | ConnectionRefusedError):
            return Unreachable(f"no daemon listens at {self}", "start one: aghd run")
        if isinstance(error, ConnectionError):
            return ConnectionLost(f"the daemon at {self} closed the connection", "it may be stopping: try again")
        reason = error.strerror or str(error)
        return Unreachable(f"the daemon at {self} cannot be reached: {reason}", "see `aghctl doctor`")


class Response:
    """The head of a response, and its body as it arrives. Header names are in lower case. Close it."""

    def __init__(self, connection: socket, endpoint: Endpoint) -> None:
        """Reads the head. Like every method, raises Unreachable (ConnectionLost for an early end) or Unexpected."""
        self._connection = connection
        self._endpoint = endpoint
        self._buffer = b""
        self.status, self.headers = _parse_head(self._read_head())

    def close(self) -> None:
        """Drop the connection."""
        self._connection.close()

    def body(self) -> bytes:
        """The whole body."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """The body as it arrives."""
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            yield from self._chunks()
        elif "content-length" in self.headers:
            yield self._exactly(_number(self.headers["content-length"], 10))
        else:
            while piece := self._buffer or self._receive():
                self._buffer = b""
                yield piece

    def _chunks(self) -> Iterator[bytes]:
        while size := _number(self._line().partition(b";")[0].decode("latin-1"), 16):
            yield self._exactly(size)
            self._line()
        while self._line():  # trailers
            pass

    def _receive(self) -> bytes:
        try:
            return self._connection.recv(_RECEIVE_BYTES)
        except OSError as error:
            raise self._endpoint.unreachable(error) from None

    def _more(self) -> bytes:
        if piece := self._receive():
            return piece
        raise self._endpoint.unreachable(ConnectionResetError())

    def _read_head(self) -> bytes:
        while b"\r\n\r\n" not in self._buffer:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise Unexpected("response headers exceed 64 KiB", "check that the socket belongs to aghd")
            self._buffer += self._more()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        return head

    def _line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            self._buffer += self._more()
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line

    def _exactly(self, count: int) -> bytes:
        parts, missing = [self._buffer[:count]], count - len(self._buffer)
        self._buffer = self._buffer[count:]
        while missing > 0:
            piece = self._more()
            parts.append(piece[:missing])
            self._buffer = piece[missing:]
            missing -= len(piece)
        return b"".join(parts)


def quote(text: str) -> str:
    """`text` percent-encoded for a path segment or a query value."""
    octets = text.encode("utf-8", "surrogateescape")
    return "".join(chr(octet) if octet in _UNRESERVED else f"%{octet:02X}" for octet in octets)


def target(path: str, query: Query = ()) -> str:
    """A request target; values that are None, False or empty are left out, True is `1`, lists repeat their name."""
    pairs: list[str] = []
    for name, value in query:
        for entry in value if isinstance(value, list) else [value]:
            if entry not in (None, False, ""):
                pairs.append(f"{name}={quote('1' if entry is True else str(entry))}")
    return f"{path}?{'&'.join(pairs)}" if pairs else path


def request(
    endpoint: Endpoint, method: str, where: str, body: Iterable[bytes], headers: Mapping[str, str], timeout: float
) -> Response:
    """Send one request and read the head of its response, which may come before the end of `body`.

    Raises Unreachable, Unexpected, and every error of `body`.
    """
    lines = [f"{method} {where} HTTP/1.1", f"Host: {endpoint.authority}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    connection = endpoint.connect(timeout)
    try:
        if endpoint.token:
            lines.append(f"Authorization: {endpoint.authorize(connection)}")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        pieces = iter(body)
        for piece in chain([head + next(pieces, b"")], pieces):
            try:
                connection.sendall(piece)
            except ConnectionError:
                break  # refused before the end: the response has the reason
            except OSError as error:
                raise endpoint.unreachable(error) from None
        return Response(connection, endpoint)
    except BaseException:
        connection.close()
        raise


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *rest = head.decode("latin-1").split("\r\n")
    version, _, after = first.partition(" ")
    if not version.startswith("HTTP/1.") or not after[:3].isdigit():
        raise Unexpected("the response is not HTTP", "is this socket that of aghd?")
    pairs = (line.partition(":") for line in rest)
    return int(after[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs}


def _number(text: str, base: int) -> int:
    try:
        return int(text.strip(), base)
    except ValueError:
        raise Unexpected("the length of the response is not a number", "is this socket that of aghd?") from None
