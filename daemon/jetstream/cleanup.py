"""Room in a stream that is nearly full: messages that every consumer of their subject has acknowledged are purged.

The stream keeps messages by age and size, because a peer that joins must not depend on others (spec section 7). So a stream can be
full of messages that all have read. Each daemon that notices it purges, subject by subject, up to the lowest sequence that all
consumers of that subject have settled. Subjects without a consumer are left alone: nobody has read their messages.
"""

import time
from collections import deque
from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from aghbus.daemon.jetstream.stream import STREAM, StreamStatus, covers
from aghbus.daemon.nats.link import JetStreamError, Link
from aghbus.protocol.agh.nats.names import JETSTREAM_API

_NEARLY_FULL: Final = 0.75  # of max_bytes
_TIMEOUT: Final = 5.0  # seconds for one request
_FULL_PAUSE: Final = (
    5.0  # seconds before the next attempt after one that freed nothing, while the stream refuses messages
)
_NEARLY_FULL_PAUSE: Final = 30.0  # the same, while it takes them
_SETTLED_AFTER: Final = 1.0  # seconds until each consumer has noticed a message of the stream: replicas lag
_MAX_SUBJECTS: Final = 64  # subjects purged at a time, those with the most messages first
_MAX_PAGES: Final = 64  # of a list of consumers, 256 each

R = TypeVar("R")


class _Config(msgspec.Struct):
    filter_subject: str = ""
    filter_subjects: list[str] = []


class _Position(msgspec.Struct):
    stream_seq: int = 0


class _Consumer(msgspec.Struct):
    config: _Config
    delivered: _Position
    ack_floor: _Position
    num_ack_pending: int = 0
    num_pending: int = 0

    @property
    def filters(self) -> list[str]:
        return self.config.filter_subjects or [self.config.filter_subject or ">"]


class _Error(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _Answer(msgspec.Struct):
    error: _Error | None = None


class _ConsumerList(_Answer):
    total: int = 0
    consumers: list[_Consumer] = []
    missing: list[str] | None = None


class _State(msgspec.Struct):
    subjects: dict[str, int] = {}


class _StreamInfo(_Answer):
    state: _State = msgspec.field(default_factory=_State)


class _Purged(_Answer):
    purged: int = 0


class StreamCleanup:
    """Purges for one daemon; `check` at each check of the stream."""

    def __init__(self, link: Link, full_pause: float = _FULL_PAUSE) -> None:
        """`full_pause` in seconds is the time between two attempts while the stream refuses messages."""
        self._link = link
        self._full_pause = full_pause
        self._observed: deque[tuple[float, int]] = deque(maxlen=8)  # monotonic second, last sequence of the stream
        self._not_before = 0.0

    def forget(self) -> None:
        """The stream is another one: its sequences are others."""
        self._observed.clear()

    async def check(self, stream: StreamStatus, *, full: bool) -> int:
        """Purge if the stream is nearly full, or `full`: it refused a message. Returns how many messages left it.

        Raises JetStreamError, LinkError.
        """
        now = time.monotonic()
        settled = max((last for at, last in self._observed if now - at >= _SETTLED_AFTER), default=0)
        if not self._observed or now - self._observed[-1][0] >= _SETTLED_AFTER:
            self._observed.append((now, stream.last_seq))
        nearly = 0 < stream.max_bytes * _NEARLY_FULL <= stream.bytes
        if not (full or nearly) or now < self._not_before:
            return 0
        self._not_before = now + (self._full_pause if full else _NEARLY_FULL_PAUSE)  # also when it raises
        consumers = await self._consumers()
        if not consumers:
            return 0
        purged = 0
        for subject in await self._subjects():
            floor = _floor(subject, consumers, settled)
            if floor:
                request = msgspec.json.encode({"filter": subject, "seq": floor + 1})
                purged += (await self._request(f"STREAM.PURGE.{STREAM}", request, _Purged)).purged
        if purged:
            self._not_before = 0.0
        return purged

    async def _consumers(self) -> list[_Consumer]:
        """All consumers of the stream; none if a server of the cluster did not list its consumers."""
        found: list[_Consumer] = []
        for _ in range(_MAX_PAGES):
            request = msgspec.json.encode({"offset": len(found)})
            page = await self._request(f"CONSUMER.LIST.{STREAM}", request, _ConsumerList)
            found += page.consumers
            if page.missing or (not page.consumers and len(found) < page.total):
                return []
            if len(found) >= page.total:
                return found
        return []

    async def _subjects(self) -> list[str]:
        """The subjects with the most messages."""
        info = await self._request(f"STREAM.INFO.{STREAM}", b'{"subjects_filter": ">"}', _StreamInfo)
        counts = info.state.subjects
        return sorted(counts, key=lambda subject: -counts[subject])[:_MAX_SUBJECTS]

    async def _request(self, operation: str, request: bytes, kind: type[R]) -> R:
        reply = await self._link.request(f"{JETSTREAM_API}.{operation}", request, _TIMEOUT)
        try:
            answer = msgspec.json.decode(reply.data, type=kind)
        except msgspec.MsgspecError as error:
            raise JetStreamError(0, f"an answer of JetStream is not understood: {error}") from None
        assert isinstance(answer, _Answer)
        if answer.error is not None:
            raise JetStreamError(answer.error.err_code, answer.error.description)
        return answer


def _floor(subject: str, consumers: Iterable[_Consumer], settled: int) -> int:
    """The stream sequence up to which all consumers of `subject` have settled everything; 0 where there is none."""
    floors = [_settled(one, settled) for one in consumers if any(covers(pattern, subject) for pattern in one.filters)]
    return min(floors, default=0)


def _settled(consumer: _Consumer, settled: int) -> int:
    """`settled` is a sequence of the stream that each idle consumer has noticed."""
    if consumer.num_ack_pending:
        return consumer.ack_floor.stream_seq
    if consumer.num_pending:
        return consumer.delivered.stream_seq
    return max(settled, consumer.delivered.stream_seq)
