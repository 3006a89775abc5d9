"""From the broker's bytes to the subscriptions: messages are parsed here, everything else by nats-py's own parser.

With nats_connection.py the only file that imports nats. The library has a queue and a task for each subscription, where we only
put a message into a bounded queue of our own (docs/adr/0007). Lines of the form that servers write are read here, without a copy
of anything but the payload; every other line goes to the library as it came, so that its results and errors are the library's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from nats.protocol.parser import AWAITING_MSG_PAYLOAD, CRLF_SIZE, MAX_CONTROL_LINE_SIZE, Parser

from aghbus.daemon.nats.events import InboundMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MESSAGE: Final = re.compile(rb"(H)?MSG (\S+) (\d{1,9}) (?:(\S+) )?(?(1)(\d{1,9}) )(\d{1,9})\r\n").match
"""Subject, number of the subscription, reply subject, bytes of headers, bytes of headers and payload.

Within its line, unlike the library's: there the sizes of a message with headers may be read out of the headers.
"""

_HEADERS: Final = re.compile(rb"NATS/1\.0\r\n((?:[!-9;-~]+:[ -~]*\r\n)+)\r\n").fullmatch
"""Names and values in printable ASCII."""

_CONTROL: Final = re.compile(rb"(?:P[IO]NG|\+OK|-ERR '[^\r\n]+'|INFO \S[^\r\n]*)\r\n(?!\s)").match
"""A line of which the library's expressions take just as much, whatever follows it: they go on over white space."""


class MessageParser(Parser):
    """Takes the place of the library's parser of one client."""

    def __init__(self, client: Any, receivers: Mapping[int, Callable[[InboundMessage], None]]) -> None:
        """`receivers`, by number, get the messages of their subscriptions at once; they must not raise.

        What is for none of them, or has headers of another than the usual form, goes to the client's `_process_msg`.
        """
        super().__init__(client)
        self._receivers = receivers

    def reset(self) -> None:
        """Forgets what has come of an unfinished message."""
        super().reset()
        self._whole = 0  # bytes that the unfinished message in `buf` will have, 0 when its line is unfinished

    async def parse(self, data: bytes = b"") -> None:
        """The next bytes of the connection, cut anywhere. ProtocolError for what no server says."""
        if self.state == AWAITING_MSG_PAYLOAD or len(self.buf) >= MAX_CONTROL_LINE_SIZE > self._whole:
            await super().parse(data)  # it is in the middle of what was left to it
            return
        if self.buf:
            self.buf += data
            if len(self.buf) < self._whole:
                return  # a large payload is looked at once, when all of it is there
            data = bytes(self.buf)
            self.buf.clear()
            self._whole = 0
        at, end = self._hand_over(data), len(data)
        while at < end:
            line = _MESSAGE(data, at)
            if line is None:
                at = await self._leave(data, at)
                continue
            _, subject, sid, reply, head, size = line.groups()
            start = line.end()
            stop = start + int(size)
            if stop + CRLF_SIZE > end:
                self.buf += data[at:]
                self._whole = stop + CRLF_SIZE - at
                return
            if start - at > MAX_CONTROL_LINE_SIZE or (head is not None and start + int(head) > stop):
                at = await self._leave(data, at)
                continue
            cut = start + int(head or 0)
            await self.nc._process_msg(int(sid), subject, reply or b"", data[cut:stop], data[start:cut] or None)
            at = self._hand_over(data, stop + CRLF_SIZE)

    def take(self, data: bytes) -> int:
        """The next bytes of the connection, as far as they need no `parse`; how many bytes that is, up to a message's end."""
        return 0 if self.buf or self.state == AWAITING_MSG_PAYLOAD else self._hand_over(data)

    def _hand_over(self, data: bytes, at: int = 0) -> int:
        """The messages from `at` on that are whole, for a receiver and of the usual form; where something else begins."""
        receivers, end = self._receivers, len(data)
        while (line := _MESSAGE(data, at)) is not None:
            _, subject, sid, reply, head, size = line.groups()
            start = line.end()
            stop = start + int(size)
            receiver = receivers.get(int(sid))
            if receiver is None or stop + CRLF_SIZE > end or start - at > MAX_CONTROL_LINE_SIZE:
                return at
            headers = None
            if head is not None:
                begin, start = start, start + int(head)
                if start > stop or (headers := plain_headers(data[begin:start])) is None:
                    return at
            receiver(InboundMessage(as_text(subject), data[start:stop], as_text(reply) if reply else "", headers))
            at = stop + CRLF_SIZE
        return at

    async def _leave(self, data: bytes, at: int) -> int:
        """Leaves one line to the library, or all that is there if the line is a strange one; where it goes on after that."""
        line = _CONTROL(data, at)
        end = len(data) if line is None else line.end()
        self.buf += data[at:end]
        await super().parse()
        return end


def plain_headers(head: bytes) -> dict[str, str] | None:
    """Headers as everybody writes them, the last of a name; None for any other form, and for a status of the server."""
    lines = _HEADERS(head)
    if lines is None:
        return None
    pairs = (line.partition(":") for line in lines[1].decode().splitlines())
    return {name: value.strip() for name, _, value in pairs}


def as_text(subject: bytes) -> str:
    """A subject as text. A publisher may have put any bytes there: those that are no text must not end the connection."""
    try:
        return subject.decode()
    except UnicodeDecodeError:
        return subject.decode(errors="replace")
