"""The agent's inbox: ready -> leased -> acked | dead.

A lease hides a message until it is acked, returned or expired. Leases are counted as attempts; a message that is
returned after too many of them is dead: kept, listed, and ready again only on request.
"""

from typing import Final, NamedTuple

import msgspec

from aghbus.protocol.api.inbox import InboxItem
from aghbus.protocol.api.messages import Message
from aghbus.protocol.base.backoff import exponential_delay
from aghbus.protocol.errors import NotFound, Refused
from aghbus.store.engine.append_buffer import BulkStatement
from aghbus.store.engine.sql import Reader, placeholders
from aghbus.store.engine.transaction import Transaction
from aghbus.store.errors import InboxFull
from aghbus.store.tables.envelopes import (
    MESSAGE_COLUMNS,
    MESSAGE_TABLES,
    MessageRow,
    Row,
    buffered_message,
    fetch,
    message_of,
    within_bytes,
)

CAPACITY: Final = 10_000  # messages that are ready or leased
MAX_ATTEMPTS: Final = 5  # leases until a message that is returned is dead
BACKOFF_MS: Final = 1_000  # the first delay of a message that was returned; doubled for each attempt
BACKOFF_LIMIT_MS: Final = 300_000
ERROR_CHARS: Final = 500  # of the agent's reason for returning a message

_NEVER: Final = 1 << 62  # milliseconds
_INSERT: Final = BulkStatement.insert("inbox", ("seq", "state", "attempts", "available_ms", "lease", "lease_until_ms"))

_LEASE: Final = """
UPDATE inbox SET state = ?4, attempts = attempts + 1, lease = ?1, lease_until_ms = ?2
WHERE seq = (
    SELECT seq FROM inbox WHERE state = 'ready' AND state IN ('ready', 'leased', 'dead') AND available_ms <= ?3
    ORDER BY seq LIMIT 1
) RETURNING seq
"""  # The index inbox_open is used only where its own condition is repeated: SQLite does not conclude IN from =.
_LEASE_OF_WORK: Final = """
UPDATE inbox SET state = ?4, attempts = attempts + 1, lease = ?1, lease_until_ms = ?2
WHERE seq = (
    SELECT i.seq FROM log AS e CROSS JOIN inbox AS i ON i.seq = e.seq
    WHERE e.work_id = ?5 AND i.state = 'ready' AND i.available_ms <= ?3 ORDER BY e.seq LIMIT 1
) RETURNING seq
"""
_EXPIRE: Final = """
UPDATE inbox SET state = iif(attempts >= ?2, 'dead', 'ready'), lease = NULL, lease_until_ms = NULL,
    last_error = 'the lease expired'
WHERE state = 'leased' AND state IN ('ready', 'leased', 'dead') AND lease_until_ms <= ?1 RETURNING state
"""
_BURY: Final = """
UPDATE inbox SET state = 'dead', lease = NULL, lease_until_ms = NULL, last_error = 'the stored envelope is damaged'
WHERE seq = ?
"""
_NEXT_DUE: Final = """
SELECT min(at) FROM (
    SELECT min(lease_until_ms) AS at FROM inbox
    WHERE state = 'leased' AND state IN ('ready', 'leased', 'dead') AND lease_until_ms > ?1
    UNION ALL SELECT min(available_ms) FROM inbox
    WHERE state = 'ready' AND state IN ('ready', 'leased', 'dead') AND available_ms > ?1
)
"""
_COLUMNS: Final = "i.state, i.attempts, i.lease, i.lease_until_ms, i.available_ms, i.last_error"
_SELECT_ITEM: Final = f"SELECT {MESSAGE_COLUMNS}, {_COLUMNS} {MESSAGE_TABLES}"


def require_room(tx: Transaction, capacity: int) -> None:
    """Raises InboxFull when the inbox has no room: call it before anything is written (spec section 5, Overload)."""
    if tx.memory.inbox_waiting >= capacity:
        raise InboxFull(capacity)


def add(tx: Transaction, seq: int) -> None:
    """Puts the envelope `seq` into the inbox, ready."""
    # Available since 1970: a clock that steps back must not hide it.
    tx.rows[_INSERT] += (seq, "ready", 0, 0, None, None)
    tx.memory.inbox_waiting += 1


def notify(tx: Transaction, seq: int, error: str) -> None:
    """Notifies the agent that its message was given up: puts the envelope `seq` into the inbox, with the reason.

    The capacity of the inbox does not apply: the message was a committed request.
    """
    added = tx.db.execute(
        "INSERT OR IGNORE INTO inbox (seq, state, attempts, available_ms, last_error) VALUES (?, 'ready', 0, 0, ?)",
        (seq, error[:ERROR_CHARS]),
    ).rowcount
    tx.memory.inbox_waiting += added
    _due_at(tx, 0)


def lease_next(
    tx: Transaction,
    now_ms: int,
    visibility_ms: int,
    lease_token: str,
    work_id: str | None = None,
    *,
    ack: bool = False,
    fresh: int | None = None,
    max_attempts: int = MAX_ATTEMPTS,
) -> InboxItem | None:
    """Leases the oldest ready message (of `work_id`, when given) until `now_ms + visibility_ms`; None when there is
    none.

    With `ack` it is acked immediately. `fresh` is a message that this job has delivered, for a caller that found no
    older one. Expired leases are ready again, or dead after `max_attempts`.
    """
    state, until = ("acked", None) if ack else ("leased", now_ms + visibility_ms)
    leased = None
    if fresh is not None and now_ms < tx.memory.inbox_due_ms:
        leased = _lease_fresh(tx, fresh, state, lease_token, until)
    if leased is None:
        leased = _lease_oldest(tx, now_ms, state, lease_token, until, work_id, max_attempts)
    if leased is not None and until is None:
        tx.memory.inbox_waiting -= 1
    elif leased is not None and until is not None:
        _due_at(tx, until)
    return leased


def _lease_fresh(tx: Transaction, seq: int, state: str, lease: str, until: int | None) -> InboxItem | None:
    """None when the message is not in the append buffer any more, so that the file has to be queried."""
    values = tx.rows[_INSERT]
    where, message = _INSERT.find(values, "seq", seq), buffered_message(tx, seq, state)
    if where is None or message is None:
        return None
    values[where] = (seq, state, 1, 0, lease, until)
    return _item_of((state, 1, lease, until, 0, None), message)


def _lease_oldest(
    tx: Transaction, now_ms: int, state: str, lease: str, until: int | None, work_id: str | None, max_attempts: int
) -> InboxItem | None:
    if not tx.memory.inbox_waiting:
        tx.memory.inbox_due_ms = _NEVER
        return None
    expire_leases(tx, now_ms, max_attempts)
    while True:
        if work_id is None:
            row = tx.db.execute(_LEASE, (lease, until, now_ms, state)).fetchone()
        else:
            row = tx.db.execute(_LEASE_OF_WORK, (lease, until, now_ms, state, work_id)).fetchone()
        if row is None:
            return None
        leased = item(tx, row[0])
        if not leased.message.damaged or leased.message.direction == "out":  # a notice counts for its reason
            return leased
        tx.db.execute(_BURY, (leased.seq,))  # the agent never gets it
        tx.memory.inbox_waiting -= 1


def expire_leases(tx: Transaction, now_ms: int, max_attempts: int = MAX_ATTEMPTS) -> int:
    """Makes leases that expired by `now_ms` ready again, or dead after `max_attempts`. Returns how many they were."""
    if now_ms < tx.memory.inbox_due_ms:
        return 0
    states = [state for (state,) in tx.db.execute(_EXPIRE, (now_ms, max_attempts)).fetchall()]
    tx.memory.inbox_waiting -= states.count("dead")
    (next_ms,) = tx.db.execute(_NEXT_DUE, (now_ms,)).fetchone()
    tx.memory.inbox_due_ms = _NEVER if next_ms is None else next_ms
    return len(states)


def due_ms(tx: Transaction) -> int | None:
    """A time before which no lease expires and no returned message is ready; None when there is nothing to wait for."""
    at_ms = tx.memory.inbox_due_ms
    return None if at_ms == _NEVER else at_ms


def _due_at(tx: Transaction, at_ms: int) -> None:
    """A message is ready, or a lease expires, at `at_ms`: from then on the file has to be queried."""
    tx.memory.inbox_due_ms = min(at_ms, tx.memory.inbox_due_ms)


def ack(tx: Transaction, seq: int, lease: str | None = None) -> InboxItem:
    """The agent has handled it; acking again is not an error. Raises NotFound, or Refused when `lease` is no longer the
    current one."""
    state = _held(tx, seq, lease)
    if state != "acked":
        tx.db.execute("UPDATE inbox SET state = 'acked', lease_until_ms = NULL WHERE seq = ?", (seq,))
        if state != "dead":
            tx.memory.inbox_waiting -= 1
    return item(tx, seq)


def nack(
    tx: Transaction,
    seq: int,
    *,
    now_ms: int,
    lease: str | None = None,
    delay_ms: int | None = None,
    max_attempts: int = MAX_ATTEMPTS,
    error: str | None = None,
) -> InboxItem:
    """Back into the queue after `delay_ms` (None: backoff by attempts), or dead after `max_attempts` leases.

    Raises NotFound, and Refused when it is acked or dead or `lease` is no longer the current one.
    """
    state = _held(tx, seq, lease)
    if state not in ("ready", "leased"):
        raise Refused(f"inbox message {seq} is {state}", code="conflict", hint="`aghctl inbox requeue` makes it ready")
    (attempts,) = tx.db.execute("SELECT attempts FROM inbox WHERE seq = ?", (seq,)).fetchone()
    dead = attempts >= max_attempts
    delay = backoff_ms(attempts) if delay_ms is None else max(0, delay_ms)
    tx.db.execute(
        "UPDATE inbox SET state = ?, available_ms = ?, lease = NULL, lease_until_ms = NULL, last_error = ? WHERE seq = ?",
        ("dead" if dead else "ready", now_ms + delay, error[:ERROR_CHARS] if error else None, seq),
    )
    if dead:
        tx.memory.inbox_waiting -= 1
    else:
        _due_at(tx, now_ms + delay)
    return item(tx, seq)


def give_back(tx: Transaction, seq: int, lease: str) -> InboxItem | None:
    """Undoes the lease `lease`, also when acked: its client never got the message. None when another lease replaced it."""
    row = tx.db.execute(
        "SELECT state FROM inbox WHERE seq = ? AND lease = ? AND state IN ('leased', 'acked')", (seq, lease)
    ).fetchone()
    if row is None:
        return None
    tx.db.execute(
        "UPDATE inbox SET state = 'ready', attempts = attempts - 1, lease = NULL, lease_until_ms = NULL WHERE seq = ?",
        (seq,),
    )
    if row[0] == "acked":
        tx.memory.inbox_waiting += 1
    _due_at(tx, 0)
    return item(tx, seq)


def requeue(tx: Transaction, seq: int) -> InboxItem:
    """Ready immediately, with its attempts forgotten: for dead letters, and to read an acked message again. Raises
    NotFound."""
    state = _held(tx, seq, None)
    tx.db.execute(
        "UPDATE inbox SET state = 'ready', attempts = 0, available_ms = 0, lease = NULL, lease_until_ms = NULL WHERE seq = ?",
        (seq,),
    )
    if state in ("acked", "dead"):
        tx.memory.inbox_waiting += 1
    _due_at(tx, 0)
    return item(tx, seq)


def backoff_ms(attempts: int) -> int:
    """How long a message waits after its `attempts`-th lease was returned: 1 s, 2 s, 4 s, up to five minutes."""
    return int(exponential_delay(max(attempts, 1), BACKOFF_MS, BACKOFF_LIMIT_MS))


def item(tx: Transaction, seq: int) -> InboxItem:
    """The inbox row of envelope `seq`. Raises NotFound."""
    row = tx.db.execute(f"{_SELECT_ITEM} WHERE e.seq = ? AND i.seq IS NOT NULL", (seq,)).fetchone()
    if row is None:
        raise _not_found(seq)
    return _read_item(row)


class InboxPage(NamedTuple):
    """Inbox rows, oldest first, and the sequence after which the next page begins; None at the end."""

    items: list[InboxItem]
    next_since: int | None


async def items(reader: Reader, *, states: frozenset[str] = frozenset(), since: int = 0, limit: int = 100) -> InboxPage:
    """Up to `limit` rows after sequence `since` in one of `states` (none given: all but acked); fewer when PAGE_BYTES are
    reached."""
    wanted = sorted(states or {"ready", "leased", "dead"})
    hits = await fetch(
        reader,
        "SELECT i.seq, length(e.raw) FROM inbox AS i JOIN log AS e ON e.seq = i.seq"  # noqa: S608 - constants
        f" WHERE i.seq > ? AND i.state IN ({placeholders(wanted)}) ORDER BY i.seq LIMIT ?",
        [since, *wanted, limit + 1],
    )
    seqs, full = within_bytes(hits[:limit])
    rows = await fetch(
        reader,
        f"{_SELECT_ITEM} WHERE e.seq IN (SELECT value FROM json_each(?)) AND i.seq IS NOT NULL ORDER BY e.seq",  # noqa: S608 - constants
        [msgspec.json.encode(seqs).decode()],
    )
    more = full or len(hits) > limit
    return InboxPage([_read_item(row) for row in rows], seqs[-1] if more else None)


async def counts(reader: Reader) -> dict[str, int]:
    """How many are ready, leased and dead. Acked ones are history, and not counted."""
    sql = "SELECT state, count(*) FROM inbox WHERE state IN ('ready', 'leased', 'dead') GROUP BY state"
    found: dict[str, int] = dict(await fetch(reader, sql, []))
    return {state: found.get(state, 0) for state in ("ready", "leased", "dead")}


async def some_expired(reader: Reader, now_ms: int) -> bool:
    """Whether a lease has expired by `now_ms`."""
    sql = "SELECT 1 FROM inbox WHERE state = 'leased' AND state IN ('ready', 'leased', 'dead') AND lease_until_ms <= ? LIMIT 1"
    return bool(await fetch(reader, sql, [now_ms]))


def _held(tx: Transaction, seq: int, lease: str | None) -> str:
    row: tuple[str, str | None] | None = tx.db.execute(
        "SELECT state, lease FROM inbox WHERE seq = ?", (seq,)
    ).fetchone()
    if row is None:
        raise _not_found(seq)
    if lease is not None and lease != row[1]:
        raise Refused(
            f"inbox message {seq} is not leased under this lease id",
            code="lease_lost",
            hint="it expired and the message went back to the inbox: lease it again with `aghctl inbox next`",
        )
    return row[0]


def _not_found(seq: int) -> NotFound:
    return NotFound(f"no inbox message {seq}", hint="`aghctl inbox list` shows them")


def _read_item(row: Row) -> InboxItem:
    size = len(MessageRow._fields)
    return _item_of(row[size:], message_of(MessageRow(*row[:size])))


def _item_of(columns: Row, message: Message) -> InboxItem:
    state, attempts, lease, lease_until_ms, available_ms, last_error = columns
    return InboxItem(
        seq=message.seq,
        state=state,
        attempts=attempts,
        lease=lease if state == "leased" else None,
        lease_until_ms=lease_until_ms,
        available_ms=available_ms,
        last_error=last_error,
        message=message,
    )
