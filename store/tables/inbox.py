"""The agent's inbox: ready -> leased -> acked | dead.

A lease hides a message until it is acked, returned or expired. Leases are counted as attempts; a message that is
returned after too many of them is dead: kept, listed, and ready again only on request.

Delivering writes no row: a delivered envelope is ready after the position of the inbox, and acked up to it. Table `inbox`
has the exceptions. A message that is leased gets a row, and keeps it for a while after it was acked.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from aghbus.protocol.agh.lifecycle import TERMINAL_STATES
from aghbus.protocol.api.inbox import InboxItem, InboxState
from aghbus.protocol.api.messages import Message
from aghbus.protocol.base.backoff import exponential_delay
from aghbus.protocol.base.errors import NotFound, Refused
from aghbus.store.engine.backup.epoch import spell
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.memory.inbox import HELD
from aghbus.store.engine.sql import INBOX_POSITION, INBOX_STATE, Connection, with_bools
from aghbus.store.engine.unit_of_work import BulkStatement, Rank
from aghbus.store.tables import inbox_order
from aghbus.store.tables.envelopes import (
    MESSAGE_COLUMNS,
    MESSAGE_TABLES,
    MessageRow,
    Row,
    buffered_message,
    message_of,
    message_row_of,
)
from aghbus.store.tables.works import lifecycle

CAPACITY: Final = 10_000  # messages that are ready or leased
MAX_ATTEMPTS: Final = 5  # leases until a message that is returned is dead
BACKOFF_MS: Final = 1_000  # the first delay of a message that was returned; doubled for each attempt
BACKOFF_LIMIT_MS: Final = 300_000
ERROR_CHARS: Final = 500  # of the agent's reason for returning a message
SWEEP_ROWS: Final = 1_024  # acked messages that keep their row; twice as many are swept to that number
PASSED_ROWS: Final = 8_192  # unread messages that one sweep passes at most: some 30 ms

_OPEN: Final = ("ready", "leased")
_NEVER: Final = 1 << 62  # milliseconds
_INSERT: Final = BulkStatement.insert("inbox", ("seq", "state", "attempts", "available_ms", "lease", "lease_until_ms"))
_MOVE: Final = BulkStatement.insert(
    "meta",
    ("key", "value"),
    "ON CONFLICT DO UPDATE SET value = excluded.value",
    rank=Rank.UPDATE,
    merge=lambda values: values[-2:],
)
_SET: Final = """
INSERT INTO inbox (seq, state, attempts, available_ms, lease, last_error) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET state = excluded.state, attempts = excluded.attempts, available_ms = excluded.available_ms,
    lease = excluded.lease, lease_until_ms = NULL, last_error = excluded.last_error
"""
_LEASE: Final = """
UPDATE inbox SET state = ?, attempts = attempts + 1, lease = ?, lease_until_ms = ? WHERE seq = ?
"""
_EXPIRE: Final = """
UPDATE inbox SET state = iif(attempts >= ?2, 'dead', 'ready'), lease = NULL, lease_until_ms = NULL,
    last_error = 'the lease expired'
WHERE state = 'leased' AND lease_until_ms <= ?1 RETURNING seq, state
"""
_NEXT_DUE: Final = """
SELECT min(at) FROM (
    SELECT min(lease_until_ms) AS at FROM inbox WHERE state = 'leased' AND lease_until_ms > ?1
    UNION ALL SELECT min(available_ms) FROM inbox WHERE state = 'ready' AND available_ms > ?1
)
"""
_WAITING: Final = """
SELECT e.kind, length(e.raw), e.channel, e.sender, e.container, e.work_id FROM envelopes AS e WHERE e.seq = ?
"""
_OLDEST_KEPT: Final = "SELECT seq FROM inbox WHERE state = 'acked' ORDER BY seq DESC LIMIT 1 OFFSET ?"
_SWEEP: Final = f"""
DELETE FROM inbox WHERE state = 'acked' AND seq < ? AND seq <= {INBOX_POSITION}
    AND EXISTS (SELECT 1 FROM envelopes AS e WHERE e.seq = inbox.seq AND e.inbox = 1)
"""  # noqa: S608 - constants
# A message without a row that is acked was leased once, as far as is known.
_COLUMNS: Final = f"""{INBOX_STATE}, coalesce(i.attempts, e.seq <= {INBOX_POSITION}), i.lease, i.lease_until_ms,
    coalesce(i.available_ms, 0), i.last_error"""
_WORK_STATE: Final = """(SELECT w.state FROM works AS w
    WHERE w.work_id = e.work_id AND w.channel = e.channel AND w.workspace_id = e.workspace_id)"""
SELECT_ITEM: Final = f"SELECT {MESSAGE_COLUMNS}, {_COLUMNS}, {_WORK_STATE} {MESSAGE_TABLES}"
"""Rows for `read_item`, also of envelopes that are not in the inbox: their state is NULL."""
_SELECT_HELD: Final = f"""
SELECT {_COLUMNS}, i.seq IS NULL FROM envelopes AS e LEFT JOIN inbox AS i ON i.seq = e.seq WHERE e.seq = ?
"""  # noqa: S608 - constants


class _Held(NamedTuple):
    """A message in the inbox. `implied`: it has no row, and is ready or acked by the position alone."""

    state: InboxState
    attempts: int
    lease: str | None
    lease_until_ms: int | None
    available_ms: int
    last_error: str | None
    implied: bool

    @property
    def is_held(self) -> bool:
        """Whether it is an opening that is held since a restore."""
        return self.state == "dead" and not self.attempts and (self.last_error or "").startswith("held: ")


def notify(tx: Transaction, seq: int, error: str) -> None:
    """Notifies the agent that its message was given up: puts the envelope `seq` into the inbox, with the reason. Another reason
    than before is another notice.

    The capacity of the inbox does not apply: the message was a committed request.
    """
    tx.flush()
    held = tx.db.execute("SELECT state, last_error FROM inbox WHERE seq = ?", (seq,)).fetchone()
    if held is None or held[1] != error[:ERROR_CHARS]:
        tx.db.execute(_SET, (seq, "ready", 0, 0, None, error[:ERROR_CHARS]))
        if held is None or held[0] not in _OPEN:
            _enter(tx, seq)
    _due_at(tx, 0)


def hold(tx: Transaction, seq: int, restored_ms: int) -> None:
    """Puts the opening `seq`, which was stored as not delivered, into the inbox as dead: it may have been carried out before
    the restore at Unix millisecond `restored_ms`."""
    when = f"it may have been carried out before the restore of {spell(restored_ms)}"
    why = f"held: {when}; `aghctl inbox requeue {seq}` runs it"
    tx.flush()
    tx.db.execute(_SET, (seq, "dead", 0, 0, None, why))
    tx.memory.inbox.holding = True


def count_held(db: Connection) -> int:
    """How many openings are held."""
    return int(db.execute(f"SELECT count(*) FROM inbox WHERE {HELD}").fetchone()[0])  # noqa: S608 - a constant


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
    concurrent: bool = False,
    admits: inbox_order.Admits | None = None,
) -> InboxItem | None:
    """Leases the oldest ready message (of `work_id`, when given) until `now_ms + visibility_ms`; None when there is
    none. With `admits` only one for which it is true.

    With `ack` it is acked immediately. `fresh` is a message that this job has delivered, for a caller that found no
    older one; it may have been settled since. Expired leases are ready again, or dead after `max_attempts`.
    A message for which an earlier one of its group is leased under another token, or was returned, is left unless
    `concurrent`.
    """
    state: InboxState = "acked" if ack else "leased"
    until = None if ack else now_ms + visibility_ms
    leased = None
    memory = tx.memory
    if (
        fresh is not None
        and memory.inbox.is_untouched(fresh)
        and (memory.inbox.waiting == 1 or now_ms < memory.inbox_due_ms)
        and (concurrent or inbox_order.is_first(tx, fresh, lease_token))
        and (admits is None or admits(tx, fresh))
    ):
        leased = _lease_fresh(tx, fresh, state, lease_token, until)
    if leased is None:
        oldest = partial(inbox_order.oldest_ready, tx, now_ms, work_id, None if concurrent else lease_token, admits)
        leased = _lease_oldest(tx, now_ms, state, lease_token, until, max_attempts, oldest)
    if leased is not None and until is None:
        memory.inbox.leave(tx, leased.seq)
        _sweep(tx)
    elif leased is not None and until is not None:
        inbox_order.note_taken(tx, leased)
        _due_at(tx, until)
    return leased


def lease(
    tx: Transaction,
    seq: int,
    lease_token: str,
    now_ms: int,
    visibility_ms: int,
    max_attempts: int = MAX_ATTEMPTS,
    *,
    in_order: bool = False,
) -> tuple[InboxItem, bool]:
    """Leases the ready message `seq` until `now_ms + visibility_ms`, or renews its lease `lease_token`. Returns the item,
    and whether the lease is new.

    Raises NotFound, and Refused when another lease is the current one, or the message is not ready; with `in_order` also
    when an earlier one of its group holds it back.
    """
    expire_leases(tx, now_ms, max_attempts)
    held, until = _held(tx, seq, None), now_ms + visibility_ms
    renewed = held.state == "leased" and held.lease == lease_token
    if renewed:
        tx.db.execute("UPDATE inbox SET lease_until_ms = ? WHERE seq = ?", (until, seq))
    elif (
        held.state != "ready"
        or held.available_ms > now_ms
        or (in_order and inbox_order.is_held_back(tx, seq, lease_token))
    ):
        code = "conflict" if held.state in ("acked", "dead") else "lease_lost"
        raise Refused(f"inbox message {seq} is {held.state}, and not under this lease", code=code)
    elif held.implied:
        _take(tx, seq, "leased", lease_token, until)
    else:
        tx.db.execute(_LEASE, ("leased", lease_token, until, seq))
    _due_at(tx, until)
    leased = item(tx, seq)
    inbox_order.note_taken(tx, leased)
    return leased, not renewed


def _lease_fresh(tx: Transaction, seq: int, state: InboxState, lease: str, until: int | None) -> InboxItem | None:
    """None when the message is not in the append buffer any more, so that the file has to be queried."""
    message = buffered_message(tx, seq, state)
    if message is None:
        return None
    _take(tx, seq, state, lease, until)
    work = None
    if message.work_id is not None:
        work = lifecycle.load(tx, message.workspace_id, message.channel, message.work_id)
    return _item_of((state, 1, lease, until, 0, None, None if work is None else work.state), message)


def _lease_oldest(
    tx: Transaction,
    now_ms: int,
    state: InboxState,
    lease: str,
    until: int | None,
    max_attempts: int,
    oldest: Callable[[], int | None],
) -> InboxItem | None:
    if not tx.memory.inbox.waiting:
        tx.memory.inbox_due_ms = _NEVER
        return None
    expire_leases(tx, now_ms, max_attempts)
    tx.flush()
    while (seq := oldest()) is not None:
        if seq == tx.memory.inbox.oldest or not tx.db.execute(_LEASE, (state, lease, until, seq)).rowcount:
            _take(tx, seq, state, lease, until)
        elif state == "acked":
            tx.memory.inbox_acked += 1
        leased = item(tx, seq)
        if not leased.message.damaged or leased.message.direction == "out":  # a notice counts for its reason
            return leased
        values = (seq, "dead", leased.attempts, 0, None, "the stored envelope is damaged")
        tx.db.execute(_SET, values)  # the agent never gets it
        tx.memory.inbox.leave(tx, seq)
        _died(tx, seq)
    return None


def _died(tx: Transaction, seq: int) -> None:
    tx.after_commit(partial(tx.memory.inbox.on_dead, seq))


def _take(tx: Transaction, seq: int, state: InboxState, lease: str | None, until: int | None) -> None:
    """Leases or acks an untouched message. One that is acked in order needs no row, but the position."""
    if tx.memory.inbox.take(tx, seq) and state == "acked":
        _write_position(tx)
    else:
        tx.append(_INSERT, (seq, state, 1, 0, lease, until))
        tx.memory.inbox_acked += state == "acked"


def advance(tx: Transaction) -> None:
    """Moves the position as far as possible, so that opening the store searches little, and writes it."""
    tx.memory.inbox.advance(tx, tx.memory.last_seq)
    _write_position(tx)


def _write_position(tx: Transaction) -> None:
    tx.append(_MOVE, ("inbox_position", tx.memory.inbox.seq))


def expire_leases(tx: Transaction, now_ms: int, max_attempts: int = MAX_ATTEMPTS) -> int:
    """Makes leases that expired by `now_ms` ready again, or dead after `max_attempts`. Returns how many they were."""
    if now_ms < tx.memory.inbox_due_ms:
        return 0
    tx.flush()
    expired = tx.db.execute(_EXPIRE, (now_ms, max_attempts)).fetchall()
    for seq, state in expired:
        if state == "dead":
            tx.memory.inbox.leave(tx, seq)
            _died(tx, seq)
    (next_ms,) = tx.db.execute(_NEXT_DUE, (now_ms,)).fetchone()
    tx.memory.inbox_due_ms = _NEVER if next_ms is None else next_ms
    return len(expired)


def due_ms(tx: Transaction) -> int | None:
    """A time before which no lease expires and no returned message is ready; None when there is nothing to wait for."""
    at_ms = tx.memory.inbox_due_ms
    return None if at_ms == _NEVER else at_ms


def _due_at(tx: Transaction, at_ms: int) -> None:
    """A message is ready, or a lease expires, at `at_ms`: from then on the file has to be queried."""
    tx.memory.inbox_due_ms = min(at_ms, tx.memory.inbox_due_ms)


def ack(tx: Transaction, seq: int, lease: str | None = None) -> InboxItem:
    """The agent has handled it; acking again is not an error. Raises NotFound, or Refused when `lease` is no longer the
    current one.

    Without a row the lease of an acked message is not known: then any lease is accepted, without effect.
    """
    held = _held(tx, seq, lease)
    if held.state != "acked":
        _change(tx, seq, held, held._replace(state="acked", attempts=max(held.attempts, 1)))
        _sweep(tx)
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
    held = _held(tx, seq, lease)
    if held.state not in _OPEN:
        raise Refused(
            f"inbox message {seq} is {held.state}", code="conflict", hint="`aghctl inbox requeue` makes it ready"
        )
    delay = backoff_ms(held.attempts) if delay_ms is None else max(0, delay_ms)
    state: InboxState = "dead" if held.attempts >= max_attempts else "ready"
    reason = error[:ERROR_CHARS] if error else None
    _change(tx, seq, held, held._replace(state=state, lease=None, available_ms=now_ms + delay, last_error=reason))
    returned = item(tx, seq)
    if state == "ready":
        inbox_order.note_taken(tx, returned)
    else:
        _died(tx, seq)
    return returned


def give_back(tx: Transaction, seq: int, lease: str) -> InboxItem | None:
    """Undoes the lease `lease`, also when acked: its client never got the message. None when another lease replaced it."""
    held = _find(tx, seq)
    if held is None or held.state not in ("leased", "acked") or not (held.implied or held.lease == lease):
        return None
    _change(tx, seq, held, held._replace(state="ready", attempts=held.attempts - 1, lease=None))
    _due_at(tx, 0)
    return item(tx, seq)


def give_up(tx: Transaction, seq: int, error: str) -> None:
    """Dead at once, even if it is leased, for the reason `error`. Raises NotFound."""
    held = _held(tx, seq, None)
    _change(tx, seq, held, held._replace(state="dead", lease=None, available_ms=0, last_error=error[:ERROR_CHARS]))


def settle(tx: Transaction, seq: int) -> bool:
    """Acks a message that nobody needs any more, because its work has ended, even if it is leased. Returns whether it was
    ready, leased or held since a restore; any other sequence has no effect."""
    held = _find(tx, seq) if tx.memory.inbox.may_wait(seq) else None
    if held is None or (held.state not in _OPEN and not held.is_held):
        return False
    _change(tx, seq, held, held._replace(state="acked", attempts=max(held.attempts, 1)))
    _sweep(tx)
    return True


def requeue(tx: Transaction, seq: int) -> InboxItem:
    """Ready immediately, with its attempts forgotten: for dead letters, and to read an acked message again. Raises
    NotFound, and Refused for the opening of a work that has ended: nobody can carry it out any more."""
    held, found = _held(tx, seq, None), item(tx, seq)
    if found.message.outcome == "opened" and found.work_state in TERMINAL_STATES:
        raise Refused(
            f"inbox message {seq} opened a work that is {found.work_state}: no worker can take it any more",
            code="work_closed",
            hint="its initiator knows, and may open another work; `aghctl inbox ack` removes the message from the list",
        )
    _change(tx, seq, held, held._replace(state="ready", attempts=0, lease=None, available_ms=0))
    return item(tx, seq)


def _change(tx: Transaction, seq: int, before: _Held, after: _Held) -> None:
    """Writes the row of a message; one that is acked in order needs none."""
    passed = before.implied and before.state == "ready" and tx.memory.inbox.take(tx, seq)
    if passed and after.state == "acked":
        _write_position(tx)
    else:
        values = (seq, after.state, after.attempts, after.available_ms, after.lease, after.last_error)
        tx.db.execute(_SET, values)
        tx.memory.inbox_acked += after.state == "acked"
    if (change := (after.state in _OPEN) - (before.state in _OPEN)) > 0:
        _enter(tx, seq)
    elif change:
        tx.memory.inbox.leave(tx, seq)
    if after.state == "ready":
        _due_at(tx, after.available_ms)


def _enter(tx: Transaction, seq: int) -> None:
    """Message `seq`, which did not wait, does."""
    kind, size, channel, sender, container, work_id = tx.db.execute(_WAITING, (seq,)).fetchone()
    tx.memory.inbox.enter(tx, seq, kind, size, (channel, sender, container, work_id))


def _sweep(tx: Transaction) -> None:
    """Removes the rows of acked messages when there are many, but for the newest.

    Older messages that nobody has taken, because all consumers ask for those of a work, get a row then: the position
    passes them, up to PASSED_ROWS at a time. The acked messages after it keep their rows until later sweeps.
    """
    if tx.memory.inbox_acked < 2 * SWEEP_ROWS:
        return
    tx.flush()
    row = tx.db.execute(_OLDEST_KEPT, (SWEEP_ROWS - 1,)).fetchone()
    kept = 0 if row is None else row[0]
    for _ in range(PASSED_ROWS):
        if (seq := tx.memory.inbox.oldest) is None or seq >= kept:
            break
        tx.memory.inbox.take(tx, seq)
        tx.append(_INSERT, (seq, "ready", 0, 0, None, None))
    advance(tx)
    tx.flush()
    tx.db.execute(_SWEEP, (kept,))
    tx.memory.inbox_acked = SWEEP_ROWS


def backoff_ms(attempts: int) -> int:
    """How long a message waits after its `attempts`-th lease was returned: 1 s, 2 s, 4 s, up to five minutes."""
    return int(exponential_delay(max(attempts, 1), BACKOFF_MS, BACKOFF_LIMIT_MS))


def item(tx: Transaction, seq: int) -> InboxItem:
    """The inbox row of envelope `seq`. Raises NotFound."""
    tx.flush()
    row = tx.db.execute(f"{SELECT_ITEM} WHERE e.seq = ? AND {INBOX_STATE} IS NOT NULL", (seq,)).fetchone()
    if row is None:
        raise _not_found(seq)
    return read_item(row)


def _held(tx: Transaction, seq: int, lease: str | None) -> _Held:
    held = _find(tx, seq)
    if held is None:
        raise _not_found(seq)
    if lease is not None and lease != held.lease and not (held.implied and held.state == "acked"):
        raise Refused(
            f"inbox message {seq} is not leased under this lease id",
            code="lease_lost",
            hint="it expired and the message went back to the inbox: lease it again with `aghctl inbox next`",
        )
    return held


def _find(tx: Transaction, seq: int) -> _Held | None:
    tx.flush()
    row = tx.db.execute(_SELECT_HELD, (seq,)).fetchone()
    return None if row is None or row[0] is None else _Held(*with_bools(row, -1))  # implied


def _not_found(seq: int) -> NotFound:
    return NotFound(f"no inbox message {seq}", hint="`aghctl inbox list` shows them")


def read_item(row: Row) -> InboxItem:
    """The item of a row of SELECT_ITEM."""
    size = len(MessageRow._fields)
    return _item_of(row[size:], message_of(message_row_of(row[:size])))


def _item_of(columns: Row, message: Message) -> InboxItem:
    state, attempts, lease, lease_until_ms, available_ms, last_error, work_state = columns
    return InboxItem(
        seq=message.seq,
        state=state,
        attempts=attempts,
        lease=lease if state == "leased" else None,
        lease_until_ms=lease_until_ms,
        available_ms=available_ms,
        last_error=last_error,
        work_state=work_state,
        message=message,
    )
