"""What a client says to the broker to publish: PUB and HPUB, as bytes (the protocol of NATS, and its ADR-4 for headers)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from aghbus.daemon.nats.events import BadPublish
from aghbus.protocol.text import escape

if TYPE_CHECKING:
    from collections.abc import Mapping

_WHITE: Final = re.compile(r"[ \t\r\n]").search  # a subject with a line end in it could say anything else to the broker
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+").fullmatch  # RFC 7230's token
_ONE_LINE: Final = str.maketrans("\r\n", "  ")


def published(subject: str, data: bytes, reply: str, headers: Mapping[str, str] | None) -> bytes:
    """A message on its way to the broker. BadPublish for a subject or the name of a header that NATS does not allow."""
    if not subject or not _is_whole(subject) or not _is_whole(reply):
        raise BadPublish(f"{escape(subject)!r}, {escape(reply)!r}: not subjects")
    to = f"{subject} {reply}".encode() if reply else subject.encode()
    if headers is None:
        return b"PUB %b %d\r\n%b\r\n" % (to, len(data), data)
    head = b"NATS/1.0\r\n%b\r\n" % b"".join([_line(name, value) for name, value in headers.items()])
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (to, len(head), len(head) + len(data), head, data)


def _is_whole(subject: str) -> bool:
    """Whether it has no white space in it; the regular expression, which is slow, only looks at what is unusual."""
    return " " not in subject and (subject.isprintable() or not _WHITE(subject))


def header_size(headers: Mapping[str, str]) -> int:
    """Bytes that NATS headers take on the wire: `NATS/1.0`, one line each, an empty line."""
    return 12 + sum(len(key.encode()) + len(value.encode()) + 4 for key, value in headers.items())


def _line(name: str, value: str) -> bytes:
    if not _NAME(name):
        raise BadPublish(f"{escape(name)!r} is not the name of a header")
    return f"{name}: {value.strip().translate(_ONE_LINE)}\r\n".encode()
