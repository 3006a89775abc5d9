"""nats-py's client for one connection: all private names of the library that we use are here and in parser.py (docs/adr/0007).

Messages of our subscriptions bypass its queues and tasks, and our frames its publishing. Three of its habits are corrected, each
checked by a test: a read loop that ends at a late PONG or at malformed headers, a loss that is not reported, and TLS that a server
can talk us out of.
"""

import asyncio
import itertools
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import nats.aio.client
import nats.errors

from aghbus.daemon.nats.events import BadPublish, InboundMessage, LinkDown, PayloadTooLarge
from aghbus.daemon.nats.parser import EagerReader, MessageParser, MessageSink, as_text, deliver
from aghbus.protocol.base.text import escape

MAX_UNSENT = 2_097_152
"""Bytes that may wait for the socket before a publisher waits for the broker; nats-py's own default."""

MAX_DISCOVERED = 64
"""Other servers that are remembered; a cluster is 3 to 9."""

_FIRST_SID: Final = 100_000_000  # the library counts its own subscriptions from 1
_WHITE: Final = re.compile(r"[ \t\r\n]").search  # slow; a subject with a line end in it could contain any other command
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+").fullmatch  # RFC 7230's token
_ONE_LINE: Final = str.maketrans("\r\n", "  ")


async def _ignore(_error: Exception) -> None:
    pass


class NatsClient(nats.aio.client.Client):
    """One connection. `receivers` are our subscriptions by number, `pings` our PINGs without a PONG, `info` the first INFO."""

    def __init__(self, *, require_tls: bool) -> None:
        super().__init__()
        self.require_tls = require_tls
        self.receivers: dict[int, MessageSink] = {}
        self.pings: deque[asyncio.Future[None]] = deque()
        self.info: dict[str, Any] = {}
        self.on_error: Callable[[Exception], Awaitable[None]] = _ignore
        self.socket: asyncio.Transport | None = None
        self.parser = self._ps = MessageParser(self, self.receivers, self.on_pong)
        self._sids = itertools.count(_FIRST_SID)
        self._flush_handle: asyncio.Handle | None = None

    # what we send

    def listen(self, subject: str, receiver: MessageSink) -> int:
        """Sends SUB and returns its number; live at the broker after the next `ping`. LinkDown."""
        sid = next(self._sids)
        self.put(b"SUB %b  %d\r\n" % (subject.encode(), sid))
        self.receivers[sid] = receiver
        return sid

    def unlisten(self, sid: int) -> None:
        """Sends UNSUB. Messages on their way still reach the receiver, while it is there. LinkDown."""
        self.put(b"UNSUB %d\r\n" % sid)

    def ping(self) -> asyncio.Future[None]:
        """Sends PING after everything that was sent before; the result is done at its PONG. LinkDown."""
        pong: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.put(b"PING\r\n", flush=True)
        self.pings.append(pong)
        return pong

    def on_pong(self) -> None:
        """A PONG has come, for the oldest PING."""
        if self.pings and not (pong := self.pings.popleft()).done():
            pong.set_result(None)

    def put(self, frame: bytes, *, flush: bool = False, bounded: bool = False) -> bool:
        """Buffers `frame` for the next turn of the loop, or writes it and the buffer to the socket if it takes them. LinkDown.

        If `bounded`: False, and nothing is done, while more than MAX_UNSENT bytes are in our buffer and in the socket's.
        """
        if not self.is_connected:
            raise LinkDown("the connection is closed")
        unsent = self.socket.get_write_buffer_size() if self.socket is not None else 0
        if bounded and self._pending_data_size + unsent > MAX_UNSENT:
            return False
        self._pending.append(frame)
        self._pending_data_size += len(frame)
        if flush and self.socket is not None and not unsent:
            self.flush_now()
        elif self._flush_handle is None:
            self._flush_handle = asyncio.get_running_loop().call_soon(self.flush_now)
        return True

    def flush_now(self) -> None:
        """Writes the buffer to the socket. Does nothing on a connection that was lost: the read loop reports that."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        if not self._pending or self.socket is None:
            return
        try:
            self.socket.writelines(self._pending)
        except RuntimeError:  # raised by a closed transport of uvloop; asyncio's ignores the write
            return
        self._pending = []
        self._pending_data_size = 0

    # what the library does differently

    async def _read_loop(self) -> None:
        """Lets our parser read ahead of the library's read loop."""
        transport: Any = self._transport
        self.socket = transport._io_writer.transport
        assert self.socket is not None
        transport._io_reader = EagerReader(transport._io_reader, self.socket, self.parser.dispatch)
        self.flush_now()
        self.parser.max_payload = self.max_payload
        await super()._read_loop()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        """A message with headers of an unusual form, or for one of the library's own subscriptions."""
        receiver = self.receivers.get(sid)
        if receiver is None:
            await super()._process_msg(sid, subject, reply, data, headers)  # type: ignore[arg-type] # it passes None itself
            return
        read = await self._process_headers(headers)
        deliver(receiver, InboundMessage(as_text(subject), data, as_text(reply), read))

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        """Malformed headers are reported, and the message delivered without. In the library they end the read loop."""
        try:
            return await super()._process_headers(headers)
        except (ValueError, LookupError):
            await self.on_error(nats.errors.Error("a message has headers that cannot be read"))
            return None

    async def _process_pong(self) -> None:
        """A PONG that the library parsed. Its own: one whose waiter has gone ends the read loop, and PING overtakes the buffer."""
        self.on_pong()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Before CONNECT, and so before any secret is sent: a server without TLS is refused when TLS is required."""
        if initial_connection:
            if self.require_tls:
                if not (info.get("tls_required") or info.get("tls_available")):
                    raise nats.errors.SecureConnWantedError
                info["tls_required"] = True
            if type(size := info.get("max_payload")) is not int or size < 1:
                info.pop("max_payload", None)  # the library's default is used
            self.info = info
        if "connect_urls" in info:  # the library keeps all that it ever gets
            urls, room = info["connect_urls"], MAX_DISCOVERED - len(self.discovered_servers)
            info["connect_urls"] = urls[: max(room, 0)] if isinstance(urls, list) else []
        await super()._process_info(info, initial_connection)

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """The library writes its buffer before it reports the loss: a closed transport of uvloop raises then."""
        self.flush_now()
        self._pending = []
        self._pending_data_size = 0
        await super()._close(status, do_cbs)


# frames (the protocol of NATS, and its ADR-4 for headers)


def publish_frame(
    limit: int, subject: str, data: bytes, reply: str = "", headers: Mapping[str, str] | None = None
) -> bytes:
    """PUB or HPUB as bytes.

    PayloadTooLarge for more than `limit` bytes with headers, BadPublish for a subject or a header name that NATS does not allow.
    """
    if len(data) > limit:
        raise PayloadTooLarge(len(data), limit)
    names = f"{subject} {reply}" if reply else subject
    usual = subject.split() == [subject] and (not reply or reply.split() == [reply])
    if not usual and (not subject or _WHITE(subject) or _WHITE(reply)):
        raise BadPublish(f"{escape(subject)!r}, {escape(reply)!r}: not subjects")
    to = names.encode()
    if headers is None:
        return b"PUB %b %d\r\n%b\r\n" % (to, len(data), data)
    head = b"NATS/1.0\r\n%b\r\n" % b"".join([_header_line(name, value) for name, value in headers.items()])
    if len(head) + len(data) > limit:
        raise PayloadTooLarge(len(head) + len(data), limit)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (to, len(head), len(head) + len(data), head, data)


def publish_frames(limit: int, messages: Sequence[tuple[str, bytes]]) -> bytes:
    """PUB of each of these subjects and payloads, at least one, in order. Raises as `publish_frame` does."""
    subjects, payloads = zip(*messages, strict=True)
    names = " ".join(subjects)
    if tuple(names.split()) != subjects or max(map(len, payloads)) > limit:
        return b"".join([publish_frame(limit, *message) for message in messages])
    parts = zip(names.encode().split(b" "), map(len, payloads), payloads, strict=True)
    return b"".join(map(b"PUB %b %d\r\n%b\r\n".__mod__, parts))


def _header_line(name: str, value: str) -> bytes:
    if not _NAME(name):
        raise BadPublish(f"{escape(name)!r} is not the name of a header")
    return f"{name}: {value.strip().translate(_ONE_LINE)}\r\n".encode()
