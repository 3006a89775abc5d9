"""One NATS connection from CONNECT to its loss; link.py makes a lasting link of such connections. nats-py's reconnecting is off."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

import nats.errors

from aghbus.daemon.nats.client import NatsClient, publish_frame
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
    PermissionDenied,
    ProblemCode,
    ServerComplaint,
    ServerInfo,
)
from aghbus.daemon.nats.jetstream import JetStreamContext, translate_error
from aghbus.daemon.nats.options import NatsOptions
from aghbus.protocol.base.text import escape

T = TypeVar("T")

CONNECT_TIMEOUT = 5.0
"""Seconds for TCP, TLS, INFO, CONNECT and the first PONG together."""

_CLOSE_TIMEOUT = 1.0  # seconds for the socket to close; a dead TLS peer never answers the closing alert
_UNLIMITED = 1_073_741_824  # bytes at which nats-py would block a publisher, even after a loss: never reached
_DRAIN_TIMEOUT = 10.0  # seconds for the PONG after an UNSUB, as long as nats-py would wait
_NEVER = 86_400 * 365  # seconds; nats-py's pings are off, the link measures the round trip itself


class NatsConnection:
    """One connection; create it with `open`. Once it is lost, all operations raise LinkDown."""

    def __init__(self, url: str, client: NatsClient) -> None:
        self._url = url
        self._contexts: dict[float, JetStreamContext] = {}
        self.client = client
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.lost.add_done_callback(self._end_pings)

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

        `on_event` gets the library's errors while the connection lives, as PermissionDenied or ServerComplaint.
        """
        client = NatsClient(require_tls=options.tls)
        connection = cls(url, client)
        seen: Exception | None = None  # the last error that the library reported while connecting

        async def report(error: Exception) -> None:
            nonlocal seen
            if not client.is_connected:
                seen = error
            elif not isinstance(error, OSError | nats.errors.StaleConnectionError):  # reported with the loss
                on_event(_typed(error))

        async def ended() -> None:
            if not connection.lost.done():
                connection.lost.set_result(
                    escape(client.parser.refused or str(client.last_error or "connection closed"))
                )

        client.on_error = report
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await client.connect(
                    [url],
                    error_cb=report,
                    closed_cb=ended,
                    name=name,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=int(CONNECT_TIMEOUT),
                    ping_interval=_NEVER,
                    pending_size=_UNLIMITED,
                    no_echo=no_echo,
                    inbox_prefix=inbox_prefix,
                    tls=_tls_context(options),
                    user_credentials=options.creds,
                    nkeys_seed=options.nkey,
                    token=options.token,
                    user=options.user,
                    password=options.password,
                    tls_hostname=tls_hostname,
                )
            if not client.is_connected:
                raise nats.errors.UnexpectedEOF
        except BaseException as error:
            await connection.close()
            if isinstance(error, Exception):
                raise ConnectFailed(_explain(error, seen, url, options)) from None
            raise
        return connection

    @property
    def info(self) -> ServerInfo:
        """The server by its INFO; its texts escaped."""
        info = self.client.info

        def text(field: str) -> str:
            return escape(str(info.get(field, "")))

        return ServerInfo(
            name=text("server_name"),
            version=text("version"),
            url=self._url,
            jetstream=bool(info.get("jetstream")),
            tls=bool(info.get("tls_required")),
            max_payload=self.client.max_payload,
        )

    @property
    def discovered(self) -> list[str]:
        """URLs of the other servers of the cluster, as this one announced them; malformed ones are left out."""
        urls = []
        for server in self.client.discovered_servers:
            with contextlib.suppress(ValueError):  # a malformed port
                if server.hostname and server.port:
                    urls.append(server.geturl())
        return urls

    def unsubscribe(self, sid: int) -> None:
        """Sends UNSUB; messages on their way are dropped. Does nothing on a lost connection."""
        if self.client.receivers.pop(sid, None) is not None:
            with contextlib.suppress(LinkDown):
                self.client.unlisten(sid)

    async def drain(self, sid: int) -> None:
        """Sends UNSUB and waits until the receiver has had everything; ends early, without error, if the connection does."""
        if sid in self.client.receivers:
            with contextlib.suppress(LinkError):
                self.client.unlisten(sid)
                await self.ping(_DRAIN_TIMEOUT)
                self.client.receivers.pop(sid, None)

    async def publish(self, subject: str, data: bytes, reply: str, headers: Mapping[str, str] | None) -> None:
        """Buffers the message; waits for the broker only when MAX_UNSENT bytes are buffered already."""
        frame = publish_frame(self.client.max_payload, subject, data, reply, headers)
        if not self.client.put(frame, bounded=True):
            await self.ping(_NEVER)
            self.client.put(frame)

    async def ping(self, timeout: float) -> float:
        """PING after everything that was sent before; the seconds until its PONG. LinkTimeout, LinkDown.

        A timeout ends the wait, not the PING: its PONG is still expected, in its place.
        """
        if self.lost.done():
            raise LinkDown(self.lost.result())
        started = time.monotonic()
        pong = self.client.ping()
        late = LinkTimeout(f"no PONG within {timeout:g} s")
        timer = asyncio.get_running_loop().call_later(timeout, _fail, pong, late)
        try:
            await pong
        finally:
            timer.cancel()
        return time.monotonic() - started

    def _end_pings(self, lost: asyncio.Future[str]) -> None:
        """No PONG comes any more."""
        for pong in self.client.pings:
            _fail(pong, LinkDown("the connection is closed" if lost.cancelled() else lost.result()))

    async def request(self, subject: str, data: bytes, timeout: float) -> InboundMessage:
        """The first reply to a request. NoResponders, LinkTimeout, LinkDown, BadPublish."""
        try:
            reply = await self._unless_lost(self.client.request(subject, data, timeout=timeout))
        except nats.errors.NoRespondersError:
            raise NoResponders(f"no responders on {escape(subject)}") from None
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
        if self.client.socket is not None:
            self.client.socket.abort()  # a broker that hangs never takes what is unsent; and a loss may be closing it just now
        if not self.lost.done():
            self.lost.set_result("closed")


def _fail(future: asyncio.Future[None], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


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
    """The system's authorities or the given one, and our certificate; None without TLS settings: the server may require it."""
    if not options.tls:
        return None
    context = ssl.create_default_context(cafile=options.tls_ca)
    if options.tls_cert:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    return context


def _explain(error: Exception, seen: Exception | None, url: str, options: NatsOptions) -> LinkProblem:
    """A failed attempt for the operator; the library's messages are only repeated where they cannot contain a secret."""
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
    """The setting to check; never its value."""
    for name in ("creds", "nkey", "token"):
        if getattr(options, name):
            return f"check nats.{name}"
    return "check nats.user and nats.password" if options.user else "the server requires credentials and none are set"
