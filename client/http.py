"""HTTP/1.1 as far as the local API needs it: responses with a length, chunked or until close.

Ours and not http.client, whose import takes as long as the whole of a short command (email, urllib.parse, ssl). For the
same reason Unix sockets are those of _socket, the part of socket in C. `aghctl` makes a connection for each request; clients
keep them (core/threads.py), and so does the relay of agent hosts (cli/mcp/link.py).
"""

from __future__ import annotations

import time
from _socket import AF_UNIX, MSG_PEEK, SHUT_RDWR, SOCK_STREAM, socket
from collections.abc import AsyncGenerator, Awaitable, Generator, Iterable, Mapping, Sequence
from itertools import chain

from aghbus.client.errors import ConnectionLost, Unexpected, Unreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")

Query = Sequence[tuple[str, object]]

MAX_HEAD_BYTES = 65_536
"""Bytes of status line and headers; the API's are a few hundred."""
LONGEST_WAIT = 2_000_000.0
"""Seconds: poll(2) counts milliseconds in 31 bits."""
RECEIVE_BYTES = 65_536
"""Most bytes of one read."""
MAX_KEPT = 32
"""Connections that a client keeps between requests, of the 256 that a daemon serves."""
KEEP_SECONDS = 30.0
"""How long they are kept: the daemon closes them after 75 s without a request."""
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")  # RFC 3986 section 2.3


class Endpoint:
    """The address of a daemon: a Unix socket at `path`, or `host` and `port` with a `token`."""

    def __init__(self, *, path: str = "", host: str = "", port: int = 0, token: str = "") -> None:
        self.path = path
        self.host = host
        self.port = port
        self.token = token

    def resolved(self) -> Endpoint:
        """The address to connect to now. Raises Unreachable."""
        return self

    def __str__(self) -> str:
        return self.path or f"http://{self.host}:{self.port}"

    def connect(self, timeout: float) -> socket:
        """A connection whose every step may take `timeout` seconds. Raises Unreachable."""
        timeout = min(timeout, LONGEST_WAIT)
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

    def open(self, timeout: float) -> Connection:
        """`connect` as a Connection."""
        return Connection(self.connect(timeout), self)

    async def authorize(self, connection: Connection) -> str:
        """The value of Authorization for requests on this TCP connection (protocol/api/tcp_proof.py).

        Raises Unexpected when the process at the address does not prove first that it knows the token, which is not sent.
        """
        import hmac
        import secrets

        from aghbus.protocol.api.tcp_proof import NONCE_BYTES, SCHEME, challenge_of, proof

        nonce, address = secrets.token_hex(NONCE_BYTES), connection.address
        lines = ("GET /healthz HTTP/1.1", f"Host: {self.authority}", f"Authorization: {SCHEME} nonce={nonce}", "", "")
        await connection.send("\r\n".join(lines).encode())
        answer = Incoming(connection)
        await answer.read_head()
        challenge = challenge_of(answer.headers.get("www-authenticate", ""))
        if challenge is None or not hmac.compare_digest(
            challenge[1], proof(self.token, "daemon", address, nonce, challenge[0])
        ):
            raise Unexpected(
                f"the process at {self} does not know the token of the daemon",
                "another process listens there, or --token-file is of another daemon",
                "unproven",
            )
        await answer.body()
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


class Connection:
    """A connection to the daemon whose every step blocks, for at most the timeout of its socket.

    The steps are coroutines, so that one reader of responses serves this class and the one for asyncio (core/aio.py).
    All of them raise Unreachable (ConnectionLost for an early end).
    """

    authorization = ""
    """The value of Authorization that the daemon takes on this connection."""

    def __init__(self, stream: socket, endpoint: Endpoint, kept: list[Connection] | None = None) -> None:
        """`kept`: where it waits for further requests; None: it is for one."""
        self._stream = stream
        self.endpoint = endpoint
        self.kept = kept
        self._free_since = 0.0

    @property
    def address(self) -> tuple[str, int]:
        """Numeric address and port of the daemon, of a TCP connection."""
        host, port = self._stream.getpeername()[:2]
        return host, port

    async def send(self, data: bytes) -> None:
        """Send all of `data`."""
        try:
            self._stream.sendall(data)
        except OSError as error:
            raise self.endpoint.unreachable(error) from None

    async def receive(self) -> bytes:
        """The next bytes; empty at the end."""
        try:
            return self._stream.recv(RECEIVE_BYTES)
        except OSError as error:
            raise self.endpoint.unreachable(error) from None

    def limit(self, seconds: float) -> None:
        """Let every further step take `seconds` at most."""
        try:  # noqa: SIM105 - contextlib is slow to load
            self._stream.settimeout(min(seconds, LONGEST_WAIT))
        except OSError:
            pass  # closed by another thread: the next step says so

    def abort(self) -> None:
        """End a step that blocks in another thread."""
        try:  # noqa: SIM105 - contextlib is slow to load
            self._stream.shutdown(SHUT_RDWR)
        except OSError:
            pass  # it has ended

    def close(self) -> None:
        """Drop the connection."""
        self._stream.close()

    def free(self) -> None:
        """The response was read whole: keep the connection for another request."""
        if self.kept is None or len(self.kept) >= MAX_KEPT:
            self.close()
        else:
            self._free_since = time.monotonic()
            self.kept.append(self)

    def is_usable(self) -> bool:
        """Whether a kept connection can take a request: the daemon has not closed it, and will not soon."""
        try:
            self._stream.settimeout(0)
            self._stream.recv(1, MSG_PEEK)
        except BlockingIOError:
            return time.monotonic() - self._free_since < KEEP_SECONDS
        except OSError:
            pass  # closed by us, after a fork
        return False


def take(kept: list[Connection]) -> Connection | None:
    """One of the connections that are free, for any number of threads."""
    while True:
        try:
            connection = kept.pop()
        except IndexError:
            return None
        if connection.is_usable():
            return connection
        connection.close()


class Incoming:
    """The head of a response, once `read_head` is done, and its body as it arrives. Header names are in lower case. Close it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.status = 0
        self.headers: dict[str, str] = {}
        self._buffer = b""
        self._is_whole = False

    def close(self) -> None:
        """Free the connection after the end of the body, else drop it."""
        if self._is_whole and not self._buffer and self.headers.get("connection") != "close":
            self._is_whole = False
            self.connection.free()
        else:
            self.connection.close()

    async def read_head(self) -> None:
        """Read status and headers. Like every method, raises Unreachable (ConnectionLost for an early end) or Unexpected."""
        while b"\r\n\r\n" not in self._buffer:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise Unexpected("response headers exceed 64 KiB", "check that the socket belongs to aghd")
            self._buffer += await self._more()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        self.status, self.headers = _parse_head(head)

    async def body(self) -> bytes:
        """The whole body."""
        if "content-length" in self.headers:
            whole = await self._exactly(_number(self.headers["content-length"], 10))
            self._is_whole = True
            return whole
        return b"".join([piece async for piece in self.pieces()])

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives."""
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            while size := _number((await self._line()).partition(b";")[0].decode("latin-1"), 16):
                yield await self._exactly(size)
                await self._line()
            while await self._line():  # trailers
                pass
            self._is_whole = True
        elif "content-length" in self.headers:
            yield await self.body()
        else:
            while piece := self._buffer or await self.connection.receive():
                self._buffer = b""
                yield piece

    async def _more(self) -> bytes:
        if piece := await self.connection.receive():
            return piece
        raise self.connection.endpoint.unreachable(ConnectionResetError())

    async def _line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            self._buffer += await self._more()
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line

    async def _exactly(self, count: int) -> bytes:
        parts, missing = [self._buffer[:count]], count - len(self._buffer)
        self._buffer = self._buffer[count:]
        while missing > 0:
            piece = await self._more()
            parts.append(piece[:missing])
            self._buffer = piece[missing:]
            missing -= len(piece)
        return b"".join(parts)


def run(steps: Awaitable[T]) -> T:
    """The result of a coroutine whose every step blocks: it never waits for an event loop."""
    try:
        next(iter(steps.__await__()))
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("the coroutine waits for an event loop")


def iterate(pieces: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """The values of an asynchronous generator whose every step blocks."""
    try:
        while True:
            yield run(pieces.__anext__())
    except StopAsyncIteration:
        return
    finally:
        run(pieces.aclose())


def quote(text: str) -> str:
    """`text` percent-encoded for a path segment or a query value."""
    if _UNRESERVED.issuperset(text):
        return text
    octets = text.encode("utf-8", "surrogateescape")
    return "".join(chr(octet) if chr(octet) in _UNRESERVED else f"%{octet:02X}" for octet in octets)


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
) -> Incoming:
    """Send one request and read the head of its response, which may come before the end of `body`.

    Raises Unreachable, Unexpected, and every error of `body`.
    """
    return run(exchange(endpoint.open(timeout), method, where, body, headers))


async def exchange(
    connection: Connection, method: str, where: str, body: Iterable[bytes], headers: Mapping[str, str]
) -> Incoming:
    """`request` on a connection, which is closed by an error."""
    endpoint = connection.endpoint
    lines = [f"{method} {where} HTTP/1.1", f"Host: {endpoint.authority}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if connection.kept is None:
        lines.append("Connection: close")
    try:
        if endpoint.token:
            connection.authorization = connection.authorization or await endpoint.authorize(connection)
            lines.append(f"Authorization: {connection.authorization}")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        pieces = iter(body)
        for piece in chain([head + next(pieces, b"")], pieces):
            try:
                await connection.send(piece)
            except ConnectionLost:
                break  # refused before the end: the response has the reason
        response = Incoming(connection)
        await response.read_head()
    except BaseException:
        connection.close()
        raise
    return response


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
