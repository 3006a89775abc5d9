"""One NATS connection from CONNECT to its loss; link.py makes a lasting link of such connections.

With nats_parser.py the only file that imports nats. nats-py's own reconnecting is off, and messages of our subscriptions pass by
its queues and tasks. Four of its habits are mended in `_Client`, each checked by a test: a flush that confirms less than it says,
a read loop that dies of a late PONG or of headers that somebody made up, and TLS that a server can talk us out of.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import ssl
import time
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import nats.aio.client
import nats.aio.transport
import nats.errors

from aghbus.daemon.nats.events import (
    BadPublish,
    ConnectFailed,
    InboundMessage,
    LinkDown,
    LinkError,
    LinkEvent,
    LinkProblem,
    LinkTimeout,
    NoResponders,
    PayloadTooLarge,
    PermissionDenied,
    ProblemCode,
    ServerComplaint,
    ServerInfo,
)
from aghbus.daemon.nats.frames import header_size, published
from aghbus.daemon.nats.jetstream import JetStreamContext, translate_error
from aghbus.daemon.nats.parser import MessageParser, as_text
from aghbus.daemon.nats.read_ahead import Wire
from aghbus.protocol.text import escape

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from aghbus.daemon.nats.options import NatsOptions

T = TypeVar("T")

CONNECT_TIMEOUT = 5.0
"""Seconds for TCP, TLS, INFO, CONNECT and the first PONG together."""

_CLOSE_TIMEOUT = 1.0  # seconds for the socket to close; a dead TLS peer never answers the closing alert
_WINDOW = 2_097_152  # bytes that may wait in the client's buffer before a publisher waits for the broker; nats-py's own default
_BUFFER = (
    1_073_741_824  # bytes at which nats-py would block a publisher, with no way out if the link is lost: never reached
)
_DRAIN_TIMEOUT = 10.0  # seconds for the PONG behind an UNSUB, as long as nats-py would wait
_NEVER = 86_400 * 365  # seconds; nats-py's pings are off, the link measures the round trip itself


class _Client(nats.aio.client.Client):
    """nats-py's client with its PING in the order of what was published, and TLS that is kept once asked for."""

    def __init__(self, *, require_tls: bool) -> None:
        super().__init__()
        self._require_tls = require_tls
        self.receivers: dict[int, Callable[[InboundMessage], None]] = {}
        self._ps: MessageParser = MessageParser(self, self.receivers)

    @property
    def server_info(self) -> dict[str, Any]:
        """The last INFO of the server."""
        return self._server_info

    async def listen(self, subject: str, receiver: Callable[[InboundMessage], None]) -> int:
        """Sends SUB and returns its number: the library knows nothing of this subscription but that the number is taken."""
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        self._sid += 1
        sid = self._sid
        self.receivers[sid] = receiver
        await self._send_command(b"SUB %b  %d\r\n" % (subject.encode(), sid))
        await self._flush_pending()
        return sid

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        """A message with headers of a rare form, or for one of the library's own subscriptions."""
        receiver = self.receivers.get(sid)
        if receiver is None:
            await super()._process_msg(sid, subject, reply, data, headers)  # type: ignore[arg-type] # it passes None itself
            return
        read = await self._process_headers(headers)
        receiver(InboundMessage(as_text(subject), data, as_text(reply), read))

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        """Headers that cannot be read are reported, and the message comes without. In the library they end the read loop."""
        try:
            return await super()._process_headers(headers)
        except (ValueError, LookupError):
            await self._error_cb(nats.errors.Error("a message has headers that cannot be read"))
            return None

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        """Puts PING behind what waits in the buffer. The library writes it ahead of that, so its PONG confirms too little."""
        self._pongs.append(future or asyncio.get_running_loop().create_future())
        await self._send_command(nats.aio.client.PING_PROTO)
        self.push()

    def put(self, frame: bytes, *, at_once: bool = False) -> None:
        """Puts what we say behind what waits in the buffer; `at_once` writes all of it to the socket, if that takes it. LinkDown.

        Otherwise, and where the socket is full, the library's own task writes it: it waits for room.
        """
        if not self.is_connected:
            raise LinkDown("the connection is closed")
        self._pending.append(frame)
        self._pending_data_size += len(frame)
        if at_once and self._has_room():
            self.push()
        elif self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())

    def _has_room(self) -> bool:
        """Whether the socket takes what it is given: then nothing waits in front of it."""
        writer = getattr(self._transport, "_io_writer", None)  # a web socket has none
        return writer is not None and writer.transport.get_write_buffer_size() == 0

    def push(self) -> None:
        """Writes what waits in the buffer to the socket now. The library's own task does it at the next turn of the loop.

        On a connection that has ended it does nothing: whoever reads from it tells everybody.
        """
        if not self._pending or self._transport is None:
            return
        with contextlib.suppress(
            RuntimeError
        ):  # uvloop's word for a transport that is closed; asyncio's takes no notice
            self._transport.writelines(self._pending)
            self._pending = []
            self._pending_data_size = 0

    async def _read_loop(self) -> None:
        """The library's, which is passed by as far as it can be."""
        own: Any = self._transport
        if isinstance(self._transport, nats.aio.transport.TcpTransport):
            own._io_reader = Wire(own._io_reader, own._io_writer, self._ps.take)
        await super()._read_loop()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """The library writes what still waits before it tells anybody: on a closed transport of uvloop nobody would be told."""
        self.push()
        self._pending = []
        self._pending_data_size = 0
        await super()._close(status, do_cbs)

    async def _send_command(self, cmd: bytes, priority: bool = False) -> None:
        """Nothing waits to be written any more once `_close` has begun."""
        if not self.is_closed:
            await super()._send_command(cmd, priority)

    async def _process_pong(self) -> None:
        """A PONG for someone who has stopped waiting is no error. In the library it ends the read loop."""
        if self._pongs and self._pongs[0].done():
            self._pongs.pop(0)
            self._pings_outstanding = 0
        else:
            await super()._process_pong()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Before CONNECT, and so before any secret is sent: a server without TLS is refused when TLS was asked for."""
        if initial_connection and self._require_tls:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise nats.errors.SecureConnWantedError
            self._server_info["tls_required"] = True
        await super()._process_info(info, initial_connection)


class NatsConnection:
    """One connection; create it with `open`. Everything that can be lost with it raises LinkDown once it is."""

    def __init__(self, url: str, client: _Client, no_echo: bool) -> None:
        self._url = url
        self._no_echo = no_echo
        self._trouble: Exception | None = None
        self._contexts: dict[float, JetStreamContext] = {}
        self.client = client
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(
        cls,
        url: str,
        options: NatsOptions,
        *,
        name: str,
        no_echo: bool,
        inbox_prefix: str,
        tls_hostname: str | None,
        on_event: Callable[[LinkEvent], None],
    ) -> NatsConnection:
        """Connects to one server; ConnectFailed with cause and hint.

        Replies to requests go to subjects below `inbox_prefix`.
        `tls_hostname` replaces the URL's host in the check of the server's certificate.

        `on_event` gets what the library reports while the connection lives, as PermissionDenied or ServerComplaint.
        """
        connection = cls(url, _Client(require_tls=options.tls), no_echo)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await connection._connect(options, name, inbox_prefix, tls_hostname, on_event)
            if not connection.client.is_connected:
                raise nats.errors.UnexpectedEOF
        except BaseException as error:
            await connection.close()
            if isinstance(error, Exception):
                raise ConnectFailed(_explain(error, connection._trouble, url, options)) from None
            raise
        return connection

    async def _connect(
        self,
        options: NatsOptions,
        name: str,
        inbox_prefix: str,
        tls_hostname: str | None,
        on_event: Callable[[LinkEvent], None],
    ) -> None:
        async def report(error: Exception) -> None:
            if not self.client.is_connected:
                self._trouble = error
            elif not isinstance(error, OSError | nats.errors.StaleConnectionError):  # the loss itself says these
                on_event(_typed(error))

        async def ended() -> None:
            if not self.lost.done():
                self.lost.set_result(escape(str(self.client.last_error or "connection closed")))

        await self.client.connect(
            [self._url],
            error_cb=report,
            closed_cb=ended,
            name=name,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=int(CONNECT_TIMEOUT),
            ping_interval=_NEVER,
            pending_size=_BUFFER,
            no_echo=self._no_echo,
            inbox_prefix=inbox_prefix,
            tls=_tls_context(options),
            user_credentials=options.creds,
            nkeys_seed=options.nkey,
            token=options.token,
            user=options.user,
            password=options.password,
            tls_hostname=tls_hostname,
        )

    @property
    def info(self) -> ServerInfo:
        """The server as it introduced itself; its texts escaped."""
        said = self.client.server_info

        def text(field: str) -> str:
            return escape(str(said.get(field, "")))

        return ServerInfo(
            name=text("server_name"),
            server_id=text("server_id"),
            version=text("version"),
            url=self._url,
            cluster=text("cluster"),
            jetstream=bool(said.get("jetstream")),
            tls=bool(said.get("tls_required")),
            max_payload=self.client.max_payload,
        )

    @property
    def discovered(self) -> list[str]:
        """URLs of other servers of the cluster that this one has told of; what is none is passed over."""
        urls = []
        for server in self.client.discovered_servers:
            with contextlib.suppress(ValueError):  # a port that is none
                if server.hostname and server.port:
                    urls.append(server.geturl())
        return urls

    async def subscribe(self, subject: str, receiver: Callable[[InboundMessage], None]) -> int:
        """Sends SUB and returns its number here; live at the broker after the next `ping`. LinkDown.

        `receiver` gets each message as it is parsed, on the loop. It must not raise, and has to bound what it keeps.
        """
        try:
            return await self.client.listen(subject, receiver)
        except nats.errors.Error as error:
            raise LinkDown(str(error)) from None

    async def unsubscribe(self, sid: int) -> None:
        """Sends UNSUB; what is still on its way goes nowhere. Nothing to do on a lost connection."""
        if self.client.receivers.pop(sid, None) is not None and not self.client.is_closed:
            with contextlib.suppress(nats.errors.Error):
                await self.client._send_unsubscribe(sid)

    async def drain(self, sid: int) -> None:
        """Sends UNSUB and waits until the receiver has had everything; ends early, without error, if the connection does."""
        if sid in self.client.receivers and not self.client.is_closed:
            with contextlib.suppress(nats.errors.Error, LinkError):
                await self.client._send_unsubscribe(sid)
                await self.ping(_DRAIN_TIMEOUT)
                self.client.receivers.pop(sid, None)

    async def publish(self, subject: str, data: bytes, reply: str, headers: Mapping[str, str] | None) -> None:
        """Puts the message into the client's buffer; waits for the broker only when two MiB wait there already."""
        frame = self._frame(subject, data, reply, headers)
        if self.client.pending_data_size > _WINDOW:
            await self.ping(_NEVER)
        self.client.put(frame)

    def post(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None, reply: str = "", *, at_once: bool
    ) -> bool:
        """The same without a wait: False when two MiB are there. `at_once` it goes to the socket, not at the loop's next turn."""
        frame = self._frame(subject, data, reply, headers)
        if self.client.pending_data_size > _WINDOW:
            return False
        self.client.put(frame, at_once=at_once)
        return True

    def publish_all_nowait(self, messages: Iterable[tuple[str, bytes]]) -> bool:
        """All of these messages as one piece, at the loop's next turn, or none: False when two MiB wait there already."""
        frames = b"".join([self._frame(subject, data, "", None) for subject, data in messages])
        if self.client.pending_data_size > _WINDOW:
            return False
        self.client.put(frames)
        return True

    def _frame(self, subject: str, data: bytes, reply: str, headers: Mapping[str, str] | None) -> bytes:
        size = len(data) if headers is None else len(data) + header_size(headers)
        if size > self.client.max_payload:
            raise PayloadTooLarge(size, self.client.max_payload)
        return published(subject, data, reply, headers)

    async def ping(self, timeout: float) -> float:
        """PING behind all that was sent before; the seconds until its PONG. LinkTimeout, LinkDown.

        A timeout here ends the wait, not the PING: its PONG is still expected, in its place.
        """
        if self.lost.done():
            raise LinkDown(self.lost.result())
        started = time.monotonic()
        pong: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await self.client._send_ping(pong)
        await asyncio.wait({pong, self.lost}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if pong.done():
            return time.monotonic() - started
        if self.lost.done():
            raise LinkDown(self.lost.result())
        raise LinkTimeout(f"no PONG within {timeout:g} s")

    async def request(self, subject: str, data: bytes, timeout: float) -> InboundMessage:
        """The first reply to a request. NoResponders, LinkTimeout, LinkDown, BadPublish."""
        try:
            reply = await self._unless_lost(self.client.request(subject, data, timeout=timeout))
        except nats.errors.NoRespondersError:
            raise NoResponders(f"nobody listens on {escape(subject)}") from None
        except nats.errors.TimeoutError:
            raise LinkTimeout(f"no reply within {timeout:g} s") from None
        except nats.errors.BadSubjectError:
            raise BadPublish(f"{escape(subject)!r} is not a subject") from None
        except nats.errors.Error as error:
            raise LinkDown(str(error)) from None
        return InboundMessage(reply.subject, reply.data, reply.reply, reply.headers)

    async def jetstream(self, operation: Callable[[JetStreamContext], Awaitable[T]], timeout: float) -> T:
        """The result of `operation` on the client library's JetStream context, whose requests wait `timeout` seconds.

        Raises JetStreamError, LinkTimeout; LinkDown as soon as the connection is lost.
        """
        if timeout not in self._contexts:
            self._contexts[timeout] = self.client.jetstream(timeout=timeout)
        try:
            return await self._unless_lost(operation(self._contexts[timeout]))
        except Exception as error:
            raise translate_error(error) from None

    async def _unless_lost(self, operation: Awaitable[T]) -> T:
        task = asyncio.ensure_future(operation)
        ends: set[asyncio.Future[Any]] = {task, self.lost}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise LinkDown(f"the NATS connection was lost before the answer: {self.lost.result()}")
        finally:
            task.cancel()

    async def close(self) -> None:
        """Closes the socket and ends the library's tasks; never raises, may be called twice."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self.client.close()
        if not self.lost.done():
            self.lost.set_result("closed")


def is_address(host: str | None) -> bool:
    """Whether `host` is an IP address and not a name."""
    try:
        ipaddress.ip_address(host or "")
    except ValueError:
        return False
    return True


def _typed(error: Exception) -> LinkEvent:
    detail = escape(str(error))
    return PermissionDenied(detail) if "permissions violation" in detail.lower() else ServerComplaint(detail)


def _tls_context(options: NatsOptions) -> ssl.SSLContext | None:
    """The system's authorities or the given one, and our certificate; None leaves it to the server to ask for TLS."""
    if not options.tls:
        return None
    context = ssl.create_default_context(cafile=options.tls_ca)
    if options.tls_cert:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    return context


def _explain(error: Exception, seen: Exception | None, url: str, options: NatsOptions) -> LinkProblem:
    """The operator's words for a failed attempt; the library's own are only repeated where no secret can be in them."""
    where = urlsplit(url).netloc
    error = seen if isinstance(error, nats.errors.NoServersError) and seen is not None else error
    text = str(error).lower()
    code: ProblemCode
    if isinstance(error, ssl.SSLError):
        reason = getattr(error, "verify_message", "") or error.reason or "handshake failed"
        code, cause, hint = "tls", f"{where}: TLS: {reason}", "check nats.tls_ca, nats.tls_cert and the host's name"
    elif isinstance(error, nats.errors.SecureConnWantedError):
        code, cause = "tls", f"{where} offers no TLS"
        hint = "enable TLS on the server, or drop tls:// and nats.tls_* if plain text is meant"
    elif "authorization" in text or "authentication" in text:
        code, cause, hint = "auth", f"{where} refuses our credentials", _auth_hint(options)
    elif isinstance(error, TimeoutError):
        code, cause, hint = "timeout", f"{where} does not answer", "check address, port and firewall"
    elif isinstance(error, OSError):
        code, cause, hint = "unreachable", f"{where}: {error.strerror or error}", "is the server running there?"
    elif isinstance(error, nats.errors.UnexpectedEOF):
        code, cause, hint = "protocol", f"{where} closed the connection", "its log says why; a TLS port needs tls://"
    elif isinstance(error, nats.errors.Error):
        code, cause, hint = "protocol", f"{where}: {error}", "is this a NATS server?"
    else:  # the nkeys package, on a seed that it cannot read; its text might quote the seed
        code, cause, hint = "auth", f"our credentials cannot be used: {type(error).__name__}", _auth_hint(options)
    return LinkProblem(code=code, cause=escape(cause), hint=hint, at=time.time())


def _auth_hint(options: NatsOptions) -> str:
    """Which setting to look at; never its value."""
    for name in ("creds", "nkey", "token"):
        if getattr(options, name):
            return f"check nats.{name}"
    return "check nats.user and nats.password" if options.user else "the server wants credentials and none are set"
