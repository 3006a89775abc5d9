"""The stream's answers to our publishes, which only the stream can give.

A publish reaches the peers of core NATS together with its reply subject. That subject ends with a random token of its own, so that
nobody can answer for a message that he was not sent, and is below a root that no other inbox shares. An answer counts only if it
names our stream, and says only what a header of the publish asked for. Every other message on these subjects is ignored.
"""

import asyncio
import secrets
from collections.abc import Mapping
from typing import Final

import msgspec

from aghbus.daemon.jetstream.stream import STREAM
from aghbus.daemon.nats.jetstream import refusal
from aghbus.daemon.nats.link import InboundMessage, JetStreamError, Link, NoJetStream

MESSAGE_ID: Final = "Nats-Msg-Id"
"""Header by which the stream recognizes a message that it has."""
ONLY_IN_STREAM: Final = "Nats-Expected-Stream"
"""Header that names the only stream which may store the message."""
NO_STREAM: Final = "-"
"""A name that no stream has: the stream refuses the copy, and peers of core NATS get it."""
NOT_STORED: Final = 0
"""The outcome of a publish that no stream should store."""

_NOT_THIS_STREAM: Final = 10060
_NO_RESPONDERS: Final = "503"  # NATS status: no stream takes the subject

Outcome = int | JetStreamError
"""The sequence in the stream or NOT_STORED, or why the stream refused the message."""


class _Error(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _Answer(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: _Error | None = None


_decode: Final = msgspec.json.Decoder(_Answer).decode


class Confirmations:
    """One subscription for all publishes, over all connections of the link."""

    def __init__(self, link: Link, root: str) -> None:
        """The stream answers below the subject `root`, which must be random."""
        self._root = root
        self._expected: dict[str, tuple[asyncio.Future[Outcome], Mapping[str, str]]] = {}
        link.subscribe(f"{root}.*", self._take)

    def expect(self, headers: Mapping[str, str]) -> tuple[str, asyncio.Future[Outcome]]:
        """The reply subject for a publish with `headers`, and its outcome. It is expected until it is done or cancelled."""
        token = secrets.token_hex(16)
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        outcome.add_done_callback(lambda _done: self._expected.pop(token, None))
        self._expected[token] = (outcome, headers)
        return f"{self._root}.{token}", outcome

    def _take(self, message: InboundMessage) -> None:
        outcome, headers = self._expected.get(message.subject.rpartition(".")[2], (None, {}))
        if outcome is None or outcome.done():
            return
        found = _outcome(message, headers)
        if found is not None:
            outcome.set_result(found)


def _outcome(message: InboundMessage, headers: Mapping[str, str]) -> Outcome | None:
    """The outcome of a publish with `headers` by this answer; None if it is none of our stream to that publish."""
    if not message.data and (message.headers or {}).get("Status") == _NO_RESPONDERS:
        return NoJetStream()
    try:
        answer = _decode(message.data)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    if answer.error is not None:
        if answer.error.err_code == _NOT_THIS_STREAM and headers.get(ONLY_IN_STREAM) == NO_STREAM:
            return NOT_STORED
        return refusal(answer.error.err_code, answer.error.description)
    if answer.stream != STREAM or answer.seq < 1 or (answer.duplicate and MESSAGE_ID not in headers):
        return None
    return answer.seq
