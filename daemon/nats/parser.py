"""From the broker's bytes to the subscriptions: messages are parsed here, everything else by nats-py's own parser.

The library has a queue and a task for each subscription, where our subscribers only put a message into a bounded queue of their own
(docs/adr/0007). Lines of the form that servers write are read here, without a copy of anything but the payload; every other line
goes to the library unchanged, so that its results and errors are the library's.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol, cast

from nats.errors import ProtocolError
from nats.protocol.parser import AWAITING_MSG_PAYLOAD, CRLF_SIZE, MAX_CONTROL_LINE_SIZE, Parser

from aghbus.daemon.nats.events import InboundMessage

MAX_EAGER_READ: Final = 4_096
"""Bytes of one read that are parsed at once; some requests and replies."""

MAX_LINE: Final = MAX_CONTROL_LINE_SIZE + 32_768
"""Bytes of a line: the longest that a server accepts and, for INFO, what the library reads of its first one."""

MAX_PAYLOAD: Final = 64 * 1024 * 1024
"""Bytes of a message with headers: no server can be configured for more."""

_SERVER_HEADERS: Final = 4_096  # bytes that a server may add to a stored message, which had the largest size allowed

MESSAGE_LINE: Final = re.compile(rb"(H)?MSG (\S+) (\d{1,9}) (?:(\S+) )?(?(1)(\d{1,9}) )(\d{1,9})\r\n").match
"""Subject, number of the subscription, reply subject, bytes of headers, bytes of headers and payload.

Within its line, unlike the library's: there the sizes of a message with headers may be read out of the headers.
"""

MESSAGE_START: Final = re.compile(rb"(H)?MSG (\S+) (\d{1,9}) ").match
"""The part of a message's line that is the same for all messages of a subject and subscription."""

_PLAIN: Final = re.compile(rb"(?:([!-\xff]+) )?()(\d{1,9})\r\n").match  # the rest of a line of MSG
_HEADED: Final = re.compile(rb"(?:([!-\xff]+) )?(\d{1,9}) (\d{1,9})\r\n").match  # the rest of a line of HMSG

_HEADERS: Final = re.compile(rb"NATS/1\.0(?:\r\n[!-9;-~]+:[ -~]*)+\r\n\r\n").fullmatch
"""Names and values in printable ASCII."""

_CONTROL: Final = re.compile(rb"(?:P[IO]NG|\+OK|-ERR '[^\r\n]+'|INFO \S[^\r\n]*)\r\n(?!\s)").match
"""A line of which the library's expressions take just as much, whatever follows it: they include white space."""

_PONG: Final = re.compile(rb"PONG\r\n(?!\s)").match


class MessageSink(Protocol):
    """Gets the messages of one subscription, as they are parsed. `received` counts them. `callback` has to bound its memory."""

    received: int
    callback: Callable[[InboundMessage], None]

    def failed(self, error: BaseException) -> None:
        """The callback has raised `error`."""


def deliver(receiver: MessageSink, message: InboundMessage) -> None:
    """Calls the subscriber. It is called in the middle of the connection's read loop, which no error of it may end."""
    receiver.received += 1
    try:
        receiver.callback(message)
    except (Exception, asyncio.CancelledError) as error:  # the latter from a future that it reads
        receiver.failed(error)


class MessageParser(Parser):
    """Replaces the library's parser of one client."""

    def __init__(self, client: Any, receivers: Mapping[int, MessageSink], on_pong: Callable[[], None]) -> None:
        """`receivers`, by number, get the messages of their subscriptions immediately. `on_pong` must not raise.

        `max_payload` is what the server has announced. It is compared with a message that does not arrive in one read: only that
        is kept in memory.

        Messages for other subscriptions, and those with headers of an unusual form, go to the client's `_process_msg`.
        """
        super().__init__(client)
        self.max_payload = MAX_PAYLOAD
        self.refused = ""  # why the connection is to end
        # How the last line began: its bytes, what reads the rest, number of the subscription, subject.
        self._line_start = (b"\n", _PLAIN, 0, "")
        self._receivers = receivers
        self._on_pong = on_pong

    def reset(self) -> None:
        """Drops the bytes of an unfinished message."""
        super().reset()
        self._whole = 0  # bytes that the unfinished message in `buf` will have, 0 when its line is unfinished

    async def parse(self, data: bytes = b"") -> None:
        """The next bytes of the connection, cut anywhere. ProtocolError for bytes that no server sends, and for too many."""
        if self.state == AWAITING_MSG_PAYLOAD or len(self.buf) >= MAX_CONTROL_LINE_SIZE > self._whole:
            await super().parse(data)  # it is in the middle of a delegated message
            self._check_delegated()
            return
        if self.buf:
            self.buf += data
            if len(self.buf) < self._whole:
                return  # a large payload is parsed once, when all of it is there
            data = bytes(self.buf)
            self.buf.clear()
            self._whole = 0
        at, end = self.dispatch(data), len(data)
        while at < end:
            line = MESSAGE_LINE(data, at)
            if line is None:
                at = await self._delegate(data, at)
                continue
            _, subject, sid, reply, head, size = line.groups()
            start = line.end()
            stop = start + int(size)
            if stop + CRLF_SIZE > end:
                self._check_size(int(size))
                self.buf += data[at:]
                self._whole = stop + CRLF_SIZE - at
                return
            if start - at > MAX_CONTROL_LINE_SIZE or (head is not None and start + int(head) > stop):
                at = await self._delegate(data, at)
                continue
            cut = start + int(head or 0)
            await self.nc._process_msg(int(sid), subject, reply or b"", data[cut:stop], data[start:cut] or None)
            at = self.dispatch(data, stop + CRLF_SIZE)

    def dispatch(self, data: bytes, at: int = 0) -> int:
        """Gives the complete messages of the usual form in `data[at:]` to their receivers, and notes PONGs, up to anything else.

        Returns the position of the latter; `data` continues the connection's bytes. In the middle of a message it does nothing.
        """
        if self.buf or self.state == AWAITING_MSG_PAYLOAD:
            return at
        receivers, end = self._receivers, len(data)
        begin, read_rest, sid, subject = self._line_start
        while True:
            if not data.startswith(begin, at):
                line = MESSAGE_START(data, at)
                if line is None:
                    pong = _PONG(data, at)
                    if pong is None:
                        return at
                    self._on_pong()
                    at = pong.end()
                    continue
                begin, read_rest, sid, subject = line[0], _HEADED if line[1] else _PLAIN, int(line[3]), as_text(line[2])
                self._line_start = begin, read_rest, sid, subject
            receiver = receivers.get(sid)
            line = read_rest(data, at + len(begin))
            if receiver is None or line is None:
                return at
            reply, head, size = line.groups()
            start = line.end()
            stop = start + int(size)
            if stop + CRLF_SIZE > end or start - at > MAX_CONTROL_LINE_SIZE:
                return at
            headers = None
            if head:
                first, start = start, start + int(head)
                if start > stop or (headers := plain_headers(data[first:start])) is None:
                    return at
            try:
                answers = reply.decode() if reply else ""
            except UnicodeDecodeError:
                answers = as_text(reply)
            receiver.received += 1
            try:  # in the middle of the read loop, which no error of a subscriber may end
                receiver.callback(InboundMessage(subject, data[start:stop], answers, headers))
            except (Exception, asyncio.CancelledError) as error:
                receiver.failed(error)
            at = stop + CRLF_SIZE

    async def _delegate(self, data: bytes, at: int) -> int:
        """Gives the library one line, or everything if the line is of an unknown form; returns the position after that."""
        line = _CONTROL(data, at)
        end = len(data) if line is None else line.end()
        self.buf += data[at:end]
        await super().parse()
        self._check_delegated()
        return end

    def _check_delegated(self) -> None:
        """ProtocolError if the library waits for the rest of a message or of a line that is too long."""
        if self.state == AWAITING_MSG_PAYLOAD:
            self._check_size(self.needed)
        elif len(self.buf) > MAX_LINE:
            self._refuse(f"the server sent a line of more than {MAX_LINE} bytes")

    def _check_size(self, size: int) -> None:
        """ProtocolError for an unfinished message of `size` bytes with headers that is larger than the server may send."""
        if size > min(self.max_payload, MAX_PAYLOAD) + _SERVER_HEADERS:
            self._refuse(f"the server sent a message of {size} bytes, its max_payload is {self.max_payload}")

    def _refuse(self, why: str) -> None:
        self.refused = why
        raise ProtocolError(why)


class EagerReader(asyncio.Protocol):
    """The protocol of a connection's socket, and the reader of the library's read loop.

    A small read that arrives while the read loop waits is parsed immediately, one loop iteration earlier. Large reads go to the
    loop, which parses them in pieces between which other tasks run, and pauses the socket while too much is buffered.
    """

    def __init__(
        self, reader: asyncio.StreamReader, transport: asyncio.Transport, dispatch: Callable[[bytes], int]
    ) -> None:
        """`dispatch` gets bytes that follow everything read so far, and returns how many of them it has processed."""
        self._reader = reader
        self._library = cast(asyncio.StreamReaderProtocol, transport.get_protocol())
        self._dispatch = dispatch
        self._is_empty = False  # the library's reader, as far as known
        self._is_awaited = False  # the read loop waits, and has parsed everything that came before
        transport.set_protocol(self)

    # for the socket

    def data_received(self, data: bytes) -> None:
        """The next bytes, cut anywhere."""
        if self._is_awaited and len(data) <= MAX_EAGER_READ:
            data = data[self._dispatch(data) :]
            if not data:
                return
        self._is_awaited = self._is_empty = False
        self._library.data_received(data)

    def eof_received(self) -> bool | None:
        """The broker has closed its side."""
        return self._library.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._library.connection_lost(exc)

    def pause_writing(self) -> None:
        """The socket's buffer is full."""
        self._library.pause_writing()

    def resume_writing(self) -> None:
        """The socket's buffer has room again."""
        self._library.resume_writing()

    # for the read loop

    async def read(self, size: int) -> bytes:
        """Up to `size` bytes, as soon as there are any; none at the end."""
        self._is_awaited = self._is_empty
        data = await self._reader.read(size)
        self._is_awaited, self._is_empty = False, len(data) < size
        return data

    def at_eof(self) -> bool:
        """Whether everything was read, and nothing more will come."""
        return self._reader.at_eof()


class PlainHeaders(Mapping[str, str]):
    """Headers in printable ASCII, of which most are never asked for: they stay bytes until then. The last of a name counts."""

    __slots__ = ("_head",)

    def __init__(self, head: bytes) -> None:
        """`head` matches _HEADERS."""
        self._head = head

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a header without white space around it, or `default`. `name` has no colon."""
        head, key = self._head, b"\r\n%b:" % name.encode()
        at = head.rfind(key) + len(key)
        return default if at < len(key) else head[at : head.index(b"\r", at)].strip().decode()

    def __getitem__(self, name: str) -> str:
        return self._pairs()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pairs())

    def __len__(self) -> int:
        return len(self._pairs())

    def _pairs(self) -> dict[str, str]:
        pairs = (line.partition(":") for line in self._head.decode().splitlines()[1:-1])
        return {name: value.strip() for name, _, value in pairs}


def plain_headers(head: bytes) -> PlainHeaders | None:
    """Headers of the usual form; None for any other form, and for a status of the server."""
    return None if _HEADERS(head) is None else PlainHeaders(head)


def as_text(subject: bytes) -> str:
    """A subject as text. A publisher may put any bytes there: those that are not UTF-8 must not end the connection."""
    return subject.decode(errors="replace")
