"""The in-memory state of the store, loaded when it is opened. A job's changes to it are undone with the
job."""

import sqlite3
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Final, Literal

import msgspec

from aghbus.protocol.agh.delivery.order import Predecessor
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.api.works import Role
from aghbus.store.engine.commit.chain import CommitChain
from aghbus.store.engine.log.dedup import DedupWindow
from aghbus.store.engine.log.memory import LogMemory
from aghbus.store.engine.memory.cache import GenerationalCache
from aghbus.store.engine.memory.events import EventBuffer
from aghbus.store.engine.memory.inbox import InboxMemory
from aghbus.store.engine.memory.trust import TrustRules
from aghbus.store.engine.unit_of_work import UnitOfWork

_BRIDGED: Final = """
SELECT EXISTS (SELECT 1 FROM bridge_messages) OR EXISTS (SELECT 1 FROM bridge_links) OR EXISTS (SELECT 1 FROM bridge_log)
"""

_SWEEP: Final = 4_096  # ours, streams: from there on expired ones are dropped
_OUTSTANDING: Final = """
SELECT e.workspace_id, e.channel, e.sender, e.recipient, e.container, o.seq, e.msg_id, o.expires_at
FROM outbox AS o JOIN envelopes AS e ON e.seq = o.seq
WHERE e.recipient IS NOT NULL AND o.seq IN (
    SELECT seq FROM outbox WHERE state = 'queued' AND state NOT IN ('published', 'receipted')
    UNION SELECT seq FROM outbox WHERE next_ms IS NOT NULL)
ORDER BY o.seq
"""


_NUMBERS: Final = (
    "last_seq",
    "inbox_acked",
    "inbox_due_ms",
    "quarantine_rows",
    "quarantine_bytes",
)
_numbers_of: Final[Callable[[object], tuple[int, ...]]] = attrgetter(*_NUMBERS)


class CachedWork(msgspec.Struct, frozen=True):
    """A work, its row, our role in it, the `trace_id` of its opening, and the sequences of its first and its latest
    envelope. `has_deadline`: whether it ever had one."""

    work: WorkView
    row: int
    role: Role
    trace_id: str | None
    opened_seq: int
    last_seq: int
    has_deadline: bool = False


class Addressed(msgspec.Struct, frozen=True):
    """The destination of an own envelope, and its digest."""

    workspace_id: str
    message_id: str
    sender: str
    recipient: str
    subject: str
    digest: str


Stream = tuple[str, str, str, str, str | None]
"""What one of our peer ids sends to one recipient in one container: workspace, channel, sender, recipient, container."""


_Last = tuple[int, str, int]
"""The last unanswered envelope of a stream: its sequence, its id, and from when on none of the stream is fresh."""


class OpenStreams:
    """The last unanswered envelope of each stream of ours (docs/adr/0009): the next one names it as predecessor.

    An envelope that was given up while an earlier one is unanswered stays the last of its stream until the next one is sent,
    or until it and all before it have expired: the next one is published again when the earlier one is settled.
    """

    __slots__ = ("_last", "_streams", "_sweep_at")

    def __init__(self) -> None:
        self._last: dict[Stream, _Last] = {}
        self._streams: dict[int, Stream] = {}  # by the sequence of the last envelope
        self._sweep_at = _SWEEP

    def __len__(self) -> int:
        return len(self._last)

    def predecessor(self, stream: Stream) -> Predecessor | None:
        """The last unanswered envelope of `stream`; None when everything is answered."""
        last = self._last.get(stream)
        return None if last is None else Predecessor(last[1], last[2])

    def is_last(self, seq: int) -> bool:
        """Whether our envelope `seq` is what the next one of its stream would name."""
        return seq in self._streams

    def put(self, tx: UnitOfWork, stream: Stream, seq: int, message_id: str, fresh_until: int, now: int) -> None:
        """A new envelope of `stream` is queued at Unix second `now`."""
        if len(self._last) >= self._sweep_at:
            self._sweep(now)
        before = self._last.get(stream)
        tx.save(self._last, stream)
        tx.save(self._streams, seq)
        if before is not None:
            before_seq, _, before_until = before
            tx.save(self._streams, before_seq)
            del self._streams[before_seq]
            if before_until > fresh_until:
                fresh_until = before_until
        self._last[stream] = (seq, message_id, fresh_until)
        self._streams[seq] = stream

    def settle(self, tx: UnitOfWork, seq: int) -> None:
        """Our envelope `seq` was answered, and everything before it in its stream was too, or needs no answer."""
        stream = self._streams.get(seq)
        if stream is not None:
            tx.save(self._streams, seq)
            tx.save(self._last, stream)
            del self._streams[seq], self._last[stream]

    def load(self, db: sqlite3.Connection) -> None:
        """Reads the unanswered envelopes of a store that is being opened."""
        for workspace_id, channel, sender, to, container, seq, message_id, fresh_until in db.execute(_OUTSTANDING):
            stream = (workspace_id, channel, sender, to, container)
            before = self._last.get(stream)
            self._last[stream] = (seq, message_id, fresh_until if before is None else max(before[2], fresh_until))
        self._streams = {last[0]: stream for stream, last in self._last.items()}

    def _sweep(self, now: int) -> None:
        for stream, last in list(self._last.items()):
            if last[2] <= now:
                del self._last[stream], self._streams[last[0]]
        self._sweep_at = max(_SWEEP, 2 * len(self._last))


class InMemoryState:
    """`last_seq` is the last sequence that an envelope was given; `inbox_acked` about how many acked messages have a row
    in the inbox; `inbox_due_ms` a time before which no lease expires and no returned message is ready; `excess` how many
    bytes of envelopes retention may not remove, and the store has no room for; `quarantine_rows` and
    `quarantine_bytes` the size of the quarantine. `bridged`: whether there may be messages of a foreign format.
    `acknowledging`: whether the daemon of a peer acknowledges commits, by peer id; the presence table keeps it.

    Caches: `works` that were opened, by id, of each id the one that changed last; the destinations of own messages
    (`addressed`), by sequence; the own messages that have `arrived`, by workspace and id.
    """

    __slots__ = (
        "acknowledging",
        "addressed",
        "arrived",
        "bridged",
        "chain",
        "dedup",
        "events",
        "excess",
        "inbox",
        "inbox_acked",
        "inbox_due_ms",
        "last_seq",
        "log",
        "quarantine_bytes",
        "quarantine_rows",
        "streams",
        "trust",
        "works",
    )

    def __init__(self) -> None:
        self.last_seq = 0
        self.inbox_acked = 0
        self.inbox_due_ms = 0
        self.excess = 0
        self.quarantine_rows = 0
        self.quarantine_bytes = 0
        self.bridged = False
        self.acknowledging: dict[str, bool] = {}
        self.chain = CommitChain()
        self.dedup = DedupWindow()
        self.inbox = InboxMemory()
        self.events = EventBuffer()
        self.log = LogMemory()
        self.streams = OpenStreams()
        self.trust = TrustRules()
        self.works = GenerationalCache[str, CachedWork]()
        self.addressed = GenerationalCache[int, Addressed]()
        self.arrived = GenerationalCache[tuple[str, str], Literal[True]]()

    def restoring_numbers(self) -> Callable[[], None]:
        """A step of undo: the numbers are what they are now."""
        return partial(self._set_numbers, _numbers_of(self))

    def committed(self) -> None:
        """The open transaction is durable."""
        self.chain.records.clear()
        self.chain.entries.clear()
        self.inbox.changed_works.clear()
        self.events.publish()

    def _set_numbers(self, values: tuple[int, ...]) -> None:
        for name, value in zip(_NUMBERS, values, strict=True):
            setattr(self, name, value)

    def load(self, db: sqlite3.Connection) -> None:
        """Reads everything from a store that is being opened: tenths of a second per hundred thousand ids of the dedup
        window."""
        self.log.load(db)
        self.dedup.load(db, self.log.ids)
        self.streams.load(db)
        self.trust.load(db)
        (bridged,) = db.execute(_BRIDGED).fetchone()
        self.bridged = bool(bridged)
        self.chain.load(db)
        (stored,) = db.execute("SELECT coalesce(max(seq), 0) FROM log").fetchone()
        self.last_seq = max(self.chain.head.last_seq, stored)  # a chain may have lost its end to another program
        self.inbox.load(db, self.last_seq)
        (self.inbox_acked,) = db.execute("SELECT count(*) FROM inbox WHERE state = 'acked'").fetchone()
        self.quarantine_rows, self.quarantine_bytes = db.execute(
            "SELECT count(*), coalesce(sum(length(raw)), 0) FROM quarantine"
        ).fetchone()
