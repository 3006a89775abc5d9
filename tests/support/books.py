"""The books of one daemon: everything that its API says of its messages and works at one moment.

A message is kept as a row of a few hundred bytes, its envelope as a digest, so that a million of them fit into memory.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import msgspec

from tests.support.daemons import Daemon, UnixClient

TERMINAL: Final = frozenset({"completed", "failed", "canceled"})
_PAGE: Final = 1_000  # works at once
_READ: Final = 1 << 20  # bytes
_READ_WAIT: Final = 60.0  # seconds between two reads of the event stream


class Row(NamedTuple):
    """One stored message, and what it did to its work."""

    seq: int
    id: str
    direction: Literal["in", "out", "observed"]
    kind: str
    channel: str
    sender: str
    to: str | None
    room: str | None  # its thread or direct room
    work_id: str | None
    received_ms: int
    outcome: str | None  # the decision of the work's state machine
    reason: str | None  # of that decision
    delivery: str | None
    delivery_detail: str | None
    digest: bytes  # of the envelope
    mark: str  # status of a receipt, state of a trace
    for_id: str | None  # the message that a receipt answers
    reason_code: str | None  # of a receipt
    event: str | None  # of the state machine
    after: str | None  # the state of the work after it; None when there is no such work

    @property
    def is_step(self) -> bool:
        """Whether it is in the history of its work."""
        return self.after is not None and self.outcome in ("opened", "advanced", "unchanged")

    def line(self) -> str:
        """For the report of a failure."""
        return (
            f"{self.seq:5} {self.received_ms} {self.direction:3} {self.id} {self.kind} {self.mark}"
            f" -> {self.outcome} {self.reason or ''} [{self.delivery}: {self.delivery_detail or ''}]"
        )


class Books:
    """Views of the rows of one daemon. Every view is computed once, in one pass over the rows."""

    def __init__(
        self,
        name: str,
        rows: Sequence[Row],
        states: Mapping[str, str],
        status: Mapping[str, Any] | None = None,
        starts: Sequence[int] = (),
    ) -> None:
        """`states` are those of all works, by work id. `status` is that of the API, `starts` the times of the daemon's starts
        in milliseconds; empty when it was never restarted."""
        self.name = name
        self.rows = rows
        self.states = states
        self.status = status or {}
        self.starts = starts

    @cached_property
    def sent(self) -> dict[str, Row]:
        """Sent messages by id. Fails when an id is there twice."""
        return self._by_id("out")

    @cached_property
    def arrived(self) -> dict[str, Row]:
        """Received messages by id. Fails when one of a sender is there twice."""
        return self._by_id("in")

    @cached_property
    def by_work(self) -> dict[str, list[Row]]:
        """The messages of each work."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            if row.work_id is not None:
                found.setdefault(row.work_id, []).append(row)
        return found

    def steps(self, work_id: str) -> dict[str, Row]:
        """The history of a work, by message id. Fails when a message was applied twice."""
        rows = [row for row in self.by_work.get(work_id, ()) if row.is_step]
        steps = {row.id: row for row in rows}
        assert len(steps) == len(rows), f"a step of {work_id} was applied twice: {self.story(work_id)}"
        return steps

    def story(self, work_id: str) -> list[str]:
        """One line for each message of a work, for the report of a failure."""
        return [f"{self.name} {row.line()}" for row in self.by_work.get(work_id, ())]

    def unsettled(self) -> list[str]:
        """What is still under way here: directed messages without an answer, messages that the agent has not acked."""
        return [
            row.line()
            for row in self.rows
            if (row.direction == "out" and row.to and row.delivery not in ("receipted", "refused"))
            or (row.direction == "in" and row.delivery in ("ready", "leased"))
        ]

    def started_before(self, at_ms: int) -> int:
        """The last start of the daemon up to this time; 0 when it is not known."""
        return max((start for start in self.starts if start <= at_ms), default=0)

    def _by_id(self, direction: str) -> dict[str, Row]:
        chosen = [row for row in self.rows if row.direction == direction]
        found = {row.id: row for row in chosen}
        if len(found) < len(chosen):
            twice = [one for one, times in Counter((row.sender, row.id) for row in chosen).items() if times > 1]
            assert not twice, f"{self.name} has {direction} messages twice: {twice}"
        return found


def read_books(daemon: Daemon) -> Books:
    """The books of a daemon whose agents are at rest. Reads each message and each page of works once."""
    return Books(
        daemon.name, list(_rows(daemon)), dict(_states(daemon)), daemon.get("/v1/status"), tuple(daemon.starts)
    )


class _Body(msgspec.Struct):
    status: Any = None
    state: Any = None
    for_id: Any = None
    reason_code: Any = None


class _Envelope(msgspec.Struct):
    body: _Body


class _Message(msgspec.Struct):
    id: str
    direction: Literal["in", "out", "observed"]
    kind: str
    channel: str
    sender: str
    to: str | None
    thread_id: str | None
    direct_id: str | None
    work_id: str | None
    received_ms: int
    outcome: str | None
    reason: str | None
    delivery: str | None
    delivery_detail: str | None
    envelope: msgspec.Raw


class _Change(msgspec.Struct):
    event: str
    after: str | None


class _Event(msgspec.Struct):
    seq: int
    type: str
    message: _Message | None = None
    work: _Change | None = None


_EVENTS: Final = msgspec.json.Decoder(_Event)
_ENVELOPES: Final = msgspec.json.Decoder(_Envelope)


def _rows(daemon: Daemon) -> Iterator[Row]:
    """From the event stream, which says what each message did to its work, up to the message that is the newest now.

    With another reader attached, the newest events show their messages as committed: too early, so never settled wrongly.
    """
    newest = daemon.get("/v1/messages?last=1&limit=1")["messages"]
    if not newest:
        return
    for line in _lines(daemon, "/v1/events?since=0"):
        if line.startswith(b"data:"):
            event = _EVENTS.decode(line[5:])
            yield _row(event)
            if event.seq >= newest[0]["seq"]:
                return
    raise AssertionError(f"the stream of {daemon.name} ended before message {newest[0]['seq']}")


def _lines(daemon: Daemon, path: str) -> Iterator[bytes]:
    """The lines of a response without end, until it ends."""
    client = UnixClient(daemon.socket_path, _READ_WAIT)
    try:
        client.request("GET", path)
        response = client.getresponse()
        assert response.status == 200, response.read()
        rest = b""
        while piece := response.read1(_READ):
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines
    finally:
        client.close()


def _row(event: _Event) -> Row:
    message, change = event.message, event.work
    assert message is not None, f"retention removed messages, or the stream has a problem: {event}"
    envelope = bytes(message.envelope)
    body = _ENVELOPES.decode(envelope).body if message.kind in ("receipt", "trace") else _Body()
    return Row(
        event.seq,
        message.id,
        message.direction,
        message.kind,
        message.channel,
        message.sender,
        message.to,
        message.thread_id or message.direct_id,
        message.work_id,
        message.received_ms,
        message.outcome,
        message.reason,
        message.delivery,
        message.delivery_detail,
        hashlib.blake2b(envelope, digest_size=16).digest(),
        mark=body.status or body.state or "",
        for_id=body.for_id,
        reason_code=body.reason_code,
        event=change.event if change else None,
        after=change.after if change else None,
    )


def _states(daemon: Daemon) -> Iterator[tuple[str, str]]:
    """The state of each work. One that changes meanwhile is seen again."""
    query = f"limit={_PAGE}"
    while True:
        page = daemon.get(f"/v1/works?{query}")
        for work in page["works"]:
            yield work["work_id"], work["state"]
        if page["next_before"] is None:
            return
        query = f"limit={_PAGE}&before={page['next_before']}"
