"""Tables of the bridge: foreign messages by the envelopes that carried them, and positions."""

from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import msgspec

from aghbus.protocol.agh.decoding import decode_json, decoder
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.formats.derived_ids import same_json
from aghbus.protocol.formats.model import BridgeDirection, BridgedMessage
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.log.segments import SEQS_OF_WORK
from aghbus.store.engine.memory.inbox import HELD
from aghbus.store.engine.sql import INBOX_POSITION, INBOX_STATE, INTACT, Reader, insert_into, with_bools
from aghbus.store.tables.envelopes import OURS, Row, fetch, find_by_id, raw_of
from aghbus.store.tables.works import lifecycle

_WORK_W: Final = "w.workspace_id = ? AND w.channel = ? AND w.work_id = ?"
_SAME_ID: Final = 50  # messages of one id that are searched
_SAME_SCOPE: Final = 50  # own messages of one scope that are searched
_TERMINAL: Final = "('completed', 'failed', 'canceled')"

_SAME_WORK: Final = f"e.seq IN ({SEQS_OF_WORK}) AND e.workspace_id = ? AND e.channel = ? AND e.work_id = ?"

_SELECT_KNOWN: Final = f"""
SELECT b.direction, b.message, e.msg_id, e.sender, e.received_ms, e.work_id, CASE WHEN {INTACT} THEN e.raw ELSE x'7b7d' END
FROM bridge_messages AS b JOIN envelopes AS e ON e.seq = b.seq
WHERE b.format = ? AND b.workspace_id = ? AND b.channel = ?
"""  # noqa: S608 - constants
_ASSIGNED: Final = """
SELECT h.work_id FROM works AS n JOIN follow_ups AS l ON l.next = n.id JOIN works AS h ON h.id = l.assigned
WHERE n.workspace_id = ? AND n.channel = ? AND n.work_id = ?
"""
_SELECT_ENVELOPE: Final = """
SELECT e.seq, e.direction, e.workspace_id, e.channel, e.kind, e.msg_id, e.recipient, e.work_id, e.outcome, e.state_after,
    e.trust, e.received_ms, e.raw, e.seq IN (SELECT seq FROM own_terminal_messages),
    EXISTS (
        SELECT 1 FROM chain_steps AS s JOIN chain_runs AS r ON r.run_id = s.run_id
        WHERE s.work_id = e.work_id AND r.channel = e.channel)
FROM envelopes AS e
"""
_RELEASED: Final = 1_000  # openings that one flow begins with
_SELECT_ENVELOPES: Final = f"""
{_SELECT_ENVELOPE} WHERE {INTACT} AND e.seq IN (SELECT value FROM json_each(?))
    AND NOT EXISTS (SELECT 1 FROM inbox WHERE seq = e.seq AND {HELD})
ORDER BY e.seq
"""  # noqa: S608 - constants
_REMEMBER: Final = insert_into(
    "bridge_messages",
    ("seq", "format", "direction", "workspace_id", "channel", "scope", "foreign_id", "native", "message"),
    "ON CONFLICT DO UPDATE SET scope = excluded.scope, foreign_id = excluded.foreign_id, native = 0,"
    " message = excluded.message WHERE native = 1 AND excluded.native = 0",
)
_INBOX_OF: Final = f"""
SELECT i.seq FROM inbox AS i JOIN bridge_messages AS b ON b.seq = i.seq AND b.format = ?1
WHERE i.state IN ('ready', 'leased') AND i.seq <= ?2
UNION
SELECT e.seq FROM bridge_messages AS b JOIN envelopes AS e ON e.seq = b.seq
WHERE b.seq > {INBOX_POSITION} AND b.seq <= ?2 AND b.format = ?1 AND {INBOX_STATE} = 'ready'
ORDER BY 1 LIMIT ?3
"""  # noqa: S608 - constants
_OPENED_WORKS: Final = """
SELECT w.workspace_id, w.channel, w.work_id
FROM works AS w JOIN bridge_messages AS b ON b.seq = w.opened_seq AND b.format = ?
WHERE w.state = 'submitted' AND w.role = 'target' AND w.opened_seq <= ?
ORDER BY w.opened_seq LIMIT ?
"""
_DELIVERED: Final = f"""
SELECT 1 FROM works AS w JOIN bridge_messages AS b ON b.seq = w.opened_seq
WHERE {_WORK_W} AND b.format = ? AND b.direction = 'in'
"""  # noqa: S608 - constants
_RECEIVED_WORKS: Final = f"""
SELECT 1 FROM bridge_messages AS b JOIN works AS w ON w.opened_seq = b.seq
    AND w.workspace_id = b.workspace_id AND w.channel = b.channel
WHERE b.format = ? AND b.direction = 'in' AND w.role = 'target' AND w.state IN {_TERMINAL} LIMIT 1
"""  # noqa: S608 - constants
_SETTLED: Final = f"""
SELECT 1 FROM works AS w
WHERE {_WORK_W} AND w.role = 'target' AND w.state IN {_TERMINAL}
    AND (SELECT {INBOX_STATE} FROM envelopes AS e WHERE e.seq = ?) = 'acked'
"""  # noqa: S608 - constants
_TO_LOG: Final = """
SELECT e.seq FROM envelopes AS e
WHERE e.seq > ? AND e.seq <= ? AND (e.direction = 'in' OR e.seq IN (SELECT seq FROM own_terminal_messages)) AND (
    instr(e.raw, ?) > 0 OR e.work_id IS NOT NULL AND e.kind IN ('receipt', 'trace') AND EXISTS (
        SELECT 1 FROM works AS w JOIN bridge_messages AS b ON b.seq = w.opened_seq AND b.format = ?
        WHERE w.workspace_id = e.workspace_id AND w.channel = e.channel AND w.work_id = e.work_id)
) ORDER BY e.seq LIMIT ?
"""


class BridgeEnvelope(NamedTuple):
    """A stored envelope as the bridge reads it: `raw` as received, the outcome and the work's state after it, `received_ms`
    in Unix milliseconds. `ended_by_daemon`: our daemon ended the work with it, because no answer came. `opened_by_run`: a
    own chain run opened the work."""

    seq: int
    direction: str
    workspace_id: str
    channel: str
    kind: str
    message_id: str
    recipient: str | None
    work_id: str | None
    outcome: str | None
    state_after: str | None
    trust: str
    received_ms: int
    raw: bytes
    ended_by_daemon: bool
    opened_by_run: bool


@dataclass(slots=True, eq=False)
class StoredMessageHistory:
    """`adapters.model.MessageHistory` of format `name` on one channel, inside a transaction; `us` is our peer id."""

    tx: Transaction
    name: str
    workspace_id: str
    channel: str
    us: str

    @property
    def whole(self) -> bool:
        """True: a message that is not stored did not cross here, or retention removed it."""
        return True

    def find(self, foreign_id: str, scope: str = "", direction: BridgeDirection | None = None) -> BridgedMessage | None:
        """The latest message with this foreign id in this scope; in any scope when it is empty."""
        where, params = "AND b.foreign_id = ?", [foreign_id]
        for clause, value in (("AND b.scope = ?", scope), ("AND b.direction = ?", direction)):
            if value:
                where, params = f"{where} {clause}", [*params, value]
        return self._known(f"{where} ORDER BY b.seq DESC LIMIT 1", *params)

    def arrived(self, foreign_id: str) -> list[BridgedMessage]:
        """Received messages with this foreign id, latest first: the newest fifty."""
        return self._all_known(
            "AND b.foreign_id = ? AND b.direction = 'in' ORDER BY b.seq DESC LIMIT ?", foreign_id, _SAME_ID
        )

    def last(self, scope: str) -> BridgedMessage | None:
        """The latest message of this scope."""
        return self._known("AND b.scope = ? ORDER BY b.seq DESC LIMIT 1", scope)

    def work(self, work_id: str) -> WorkView | None:
        """Our copy of a work."""
        return lifecycle.load(self.tx, self.workspace_id, self.channel, work_id)

    def assigned_works(self) -> tuple[WorkView, ...]:
        """Open works that our agent is the target of, oldest first; without those that wait for the end of the next
        one."""
        rows = self.tx.db.execute(
            "SELECT work_id FROM works AS w WHERE state IN ('submitted', 'working', 'needs_input') AND role = 'target'"
            " AND workspace_id = ? AND channel = ?"
            " AND NOT EXISTS (SELECT 1 FROM follow_ups AS l"
            " WHERE l.assigned = w.id AND (l.outcome IS NULL OR l.outcome <> x'')) ORDER BY opened_seq",
            (self.workspace_id, self.channel),
        ).fetchall()
        found = (self.work(work_id) for (work_id,) in rows)
        return tuple(work for work in found if work is not None)

    def was_delivered(self, work: WorkView) -> bool:
        """Whether our agent got the message of this format, or the native one, that opened a work."""
        row = self.tx.db.execute(_DELIVERED, (*_key(work), self.name)).fetchone()
        return row is not None

    def received_works(self) -> bool:
        """Whether a work that has ended since was delivered to our agent in this format."""
        return self.tx.db.execute(_RECEIVED_WORKS, (self.name,)).fetchone() is not None

    def holds(self, envelope_id: str) -> bool:
        """Whether an envelope of this id is stored from this channel."""
        where = "e.workspace_id = ? AND e.channel = ?"
        tx = self.tx
        return find_by_id(tx, "1", envelope_id, where, self.workspace_id, self.channel) is not None

    def opening(self, work: WorkView) -> BridgedMessage | None:
        """The message of this format that opened a work; None when a native envelope did."""
        return self._known(
            "AND b.native = 0 AND b.seq = (SELECT opened_seq FROM works"
            " WHERE workspace_id = b.workspace_id AND channel = b.channel AND work_id = ?)",
            work.work_id,
        )

    def reported(self, work: WorkView) -> BridgedMessage | None:
        """The latest message of our agent that is a trace of this work."""
        of_work = self.tx.memory.log.of_work(work.work_id)
        where = f"AND b.direction = 'out' AND e.kind = 'trace' AND e.work_id = ? AND e.seq IN ({SEQS_OF_WORK})"
        return self._known(f"{where} ORDER BY b.seq DESC LIMIT 1", work.work_id, *of_work)

    def reports(self, scope: str) -> list[BridgedMessage]:
        """Our agent's messages of this scope, with the assigned works that they are about, latest first: the newest fifty."""
        found = self._all_known(
            "AND b.scope = ? AND b.direction = 'out' ORDER BY b.seq DESC LIMIT ?", scope, _SAME_SCOPE
        )
        return [self._with_assigned(known) for known in found if known.work is not None]

    def answered(self, work: WorkView) -> str:
        """Id of the envelope that our next message on this work answers."""
        kinds = "('say', 'capability')" if work.target == self.us else "('trace')"
        sql = f"""SELECT e.msg_id FROM envelopes AS e
            WHERE {_SAME_WORK} AND e.sender = ? AND e.kind IN {kinds} AND e.outcome IN ('opened', 'advanced', 'unchanged')
            ORDER BY e.seq DESC LIMIT 1"""  # noqa: S608 - constants
        of_work = self.tx.memory.log.of_work(work.work_id)
        self.tx.flush()
        row = self.tx.db.execute(sql, (*of_work, *_key(work), work.other(self.us))).fetchone()
        return work.opening_id if row is None else str(row[0])

    def sent(self, envelope_id: str) -> WorkView | Literal[True] | None:
        """Whether we sent an envelope of this id before: None, else its work as it is now (True: it has none)."""
        tx = self.tx
        row = find_by_id(tx, "e.channel, e.work_id", envelope_id, OURS, self.workspace_id)
        if row is None:
            return None
        work = lifecycle.load(self.tx, self.workspace_id, row[0], row[1]) if row[1] is not None else None
        return True if work is None else work

    def _with_assigned(self, known: BridgedMessage) -> BridgedMessage:
        """`known` with the assigned work that closes with its work, if there is one."""
        row = None if known.work is None else self.tx.db.execute(_ASSIGNED, _key(known.work)).fetchone()
        return known if row is None else msgspec.structs.replace(known, work=self.work(row[0]))

    def _known(self, where: str, *params: Any) -> BridgedMessage | None:
        found = self._all_known(where, *params)
        return found[0] if found else None

    def _all_known(self, where: str, *params: Any) -> list[BridgedMessage]:
        self.tx.flush()
        rows = self.tx.db.execute(
            f"{_SELECT_KNOWN} {where}", (self.name, self.workspace_id, self.channel, *params)
        ).fetchall()
        return [self._as_known(row) for row in rows]

    def _as_known(self, row: tuple[Any, ...]) -> BridgedMessage:
        direction, message, envelope_id, sender, received_ms, work_id, raw = row
        return BridgedMessage(
            message=_message(self.name, message, raw),
            direction=direction,
            envelope_id=envelope_id,
            sender=sender,
            at=received_ms // 1000,
            work=None if work_id is None else self.work(work_id),
        )


def remember(
    tx: Transaction,
    envelope: BridgeEnvelope,
    name: str,
    direction: BridgeDirection,
    *,
    message: Any,
    foreign_id: str | None,
    scope: str,
    native: bool = False,
) -> bool:
    """Records that `envelope` carried `message`; False when that is recorded already.

    A message that could not be fetched at first replaces the native one that was delivered in its place.
    """
    carried = _carried(name, envelope.raw)
    tx.memory.bridged = True
    tx.flush()
    stored = None if carried is not None and same_json(carried[0], message) else msgspec.json.encode(message)
    return (
        tx.db.execute(
            _REMEMBER,
            (
                envelope.seq,
                name,
                direction,
                envelope.workspace_id,
                envelope.channel,
                scope,
                foreign_id,
                int(native),
                stored,
            ),
        ).rowcount
        > 0
    )


def load_envelope(tx: Transaction, seq: int) -> BridgeEnvelope | None:
    """The envelope of this sequence; None when it is not stored (any more)."""
    return next(iter(_envelopes(tx, "WHERE e.seq = ?", seq)), None)


def envelopes_of_work(tx: Transaction, work: WorkView, limit: int) -> list[BridgeEnvelope]:
    """The newest envelopes of a work, newest first."""
    where = f"WHERE {_SAME_WORK} ORDER BY e.seq DESC LIMIT ?"
    return _envelopes(tx, where, *tx.memory.log.of_work(work.work_id), *_key(work), limit)


def envelope_by_id(tx: Transaction, workspace_id: str, message_id: str, sender: str) -> BridgeEnvelope | None:
    """The envelope of this id and sender."""
    where = "e.workspace_id = ? AND e.sender = ?"
    row = find_by_id(tx, "e.seq", message_id, where, workspace_id, sender)
    return None if row is None else load_envelope(tx, row[0])


def sent_as(tx: Transaction, workspace_id: str, message_id: str) -> bool:
    """Whether we sent an envelope of this id."""
    return find_by_id(tx, "1", message_id, OURS, workspace_id) is not None


def trace_id_of(tx: Transaction, workspace_id: str, message_id: str, sender: str) -> str | None:
    """The trace id in the envelope of this id and sender; None when it has none or is not stored."""
    raw = raw_of(tx, workspace_id, message_id, sender)
    found = None if raw is None else _decode_outer(raw).trace_id
    return found if isinstance(found, str) else None


def _envelopes(tx: Transaction, where: str, *params: str | int) -> list[BridgeEnvelope]:
    tx.flush()
    return [_envelope_of(row) for row in tx.db.execute(f"{_SELECT_ENVELOPE} {where}", params).fetchall()]


def _envelope_of(row: Row) -> BridgeEnvelope:
    return BridgeEnvelope(*with_bools(row, -2, -1))  # ended_by_daemon, opened_by_run


async def load_envelopes(reader: Reader, seqs: list[int]) -> list[BridgeEnvelope]:
    """The envelopes of these sequences, ascending; removed and damaged ones are missing, and openings that are held."""
    rows = await fetch(reader, _SELECT_ENVELOPES, [msgspec.json.encode(seqs).decode()])
    return [_envelope_of(row) for row in rows]


async def released(reader: Reader, upto: int) -> list[int]:
    """The openings up to sequence `upto` that were held since a restore, and that the operator made ready."""
    sql = "SELECT seq FROM inbox WHERE state = 'ready' AND last_error LIKE 'held: %' AND seq <= ? ORDER BY seq LIMIT ?"
    return [seq for (seq,) in await fetch(reader, sql, [upto, _RELEASED])]


def is_settled(tx: Transaction, envelope: BridgeEnvelope) -> bool:
    """Whether our agent need not see this message any more: its inbox item is acked and its work has ended."""
    if envelope.direction != "in" or envelope.kind not in ("say", "capability") or envelope.work_id is None:
        return False
    key = (envelope.workspace_id, envelope.channel, envelope.work_id, envelope.seq)
    tx.flush()
    return tx.db.execute(_SETTLED, key).fetchone() is not None


def mark_ended_by_daemon(tx: Transaction, seq: int) -> None:
    """Our envelope `seq` ended a work of our agent without its request: the agent must be notified."""
    tx.flush()
    tx.db.execute("INSERT OR IGNORE INTO own_terminal_messages (seq) VALUES (?)", (seq,))


# positions


async def position(reader: Reader, name: str) -> int:
    """The sequence kept under `name`; 0 when none is."""
    rows = await fetch(reader, "SELECT seq FROM bridge_positions WHERE name = ?", [name])
    return int(rows[0][0]) if rows else 0


def advance_position(tx: Transaction, name: str, seq: int) -> int:
    """Moves a position forward, never back; where it is then."""
    (now,) = tx.db.execute(
        "INSERT INTO bridge_positions (name, seq) VALUES (?, ?)"
        " ON CONFLICT DO UPDATE SET seq = max(seq, excluded.seq) RETURNING seq",
        (name, seq),
    ).fetchone()
    return int(now)


def inbox_of(tx: Transaction, name: str, upto: int, limit: int) -> list[int]:
    """Sequences up to `upto` that wait in the inbox and crossed in this format."""
    tx.flush()
    return [seq for (seq,) in tx.db.execute(_INBOX_OF, (name, upto, limit))]


def opened_by_messages(tx: Transaction, name: str, upto: int, limit: int) -> list[WorkView]:
    """Works that messages of this format up to `upto` opened for us and that are not accepted yet."""
    found = [lifecycle.load(tx, *row) for row in tx.db.execute(_OPENED_WORKS, (name, upto, limit)).fetchall()]
    return [work for work in found if work is not None]


# queries of the follower


async def to_log(reader: Reader, name: str, after: int, upto: int, limit: int) -> list[int]:
    """Envelopes after `after`, up to `upto`, that carry a message of this format or answer an own one: those that
    came, and the terminal messages that our daemon made."""
    params = [after, upto, f"{name}.message".encode(), name, limit]
    return [seq for (seq,) in await fetch(reader, _TO_LOG, params)]


def _key(work: WorkView) -> tuple[str, str, str]:
    return work.workspace_id, work.channel, work.work_id


def _message(name: str, stored: bytes | None, raw: bytes) -> Any:
    if stored is not None:
        return decode_json(stored)
    carried = _carried(name, raw)
    return None if carried is None else carried[0]


def _carried(name: str, raw: bytes) -> tuple[Any] | None:
    """The message in `ext`, as a tuple of one; None when the envelope carries none."""
    ext = _decode_outer(raw).ext
    if isinstance(ext, dict) and f"{name}.message" in ext:
        return (ext[f"{name}.message"],)
    return None


class _Outer(msgspec.Struct):
    ext: Any = None
    trace_id: Any = None


_decode_outer: Final = decoder(_Outer)
