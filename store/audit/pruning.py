"""Shortening the ledger, and what it says of envelopes that retention removes (docs/audit.md)."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

from aghbus.store.audit.events import PRUNED, REMOVED, note_policy
from aghbus.store.audit.records import decode_records, encode_ranges, encode_records, ranges_of, records_of
from aghbus.store.engine.commit.ledger import Head, as_pruned, pruned
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.engine.sql import Connection

PRUNE_ROWS: Final = 1024  # entries that one job removes: about a millisecond
_SLACK: Final = (
    16  # pruning continues to one part in so many below the bound, so that a full ledger is not pruned all the time
)
_ENTRY_AFTER: Final = "SELECT n, last_seq FROM ledger WHERE n >= ? ORDER BY n LIMIT 1"
_SET_PRUNED: Final = """
INSERT INTO meta (key, value) VALUES ('audit_pruned', ?) ON CONFLICT DO UPDATE SET value = excluded.value
"""


async def sweep_audit(store: Store, max_rows: int, max_age: float, now_ms: int) -> int:
    """Removes the oldest entries beyond `max_rows`, and those older than `max_age` seconds. Returns how many.

    Each step is a separate write job. Its own entry has an event that names the last entry removed, with its hash.
    """
    before_ms, total = now_ms - int(max_age * 1000), 0
    while True:
        removed = await store.write(partial(_prune, max_rows=max_rows, before_ms=before_ms, now_ms=now_ms))
        total += removed
        if removed < PRUNE_ROWS:
            return total


def _prune(tx: Transaction, max_rows: int, before_ms: int, now_ms: int) -> int:
    last, start = tx.memory.ledger.head.n, pruned(tx.db).n
    surplus = 0 if last - start <= max_rows else last - max_rows + max_rows // _SLACK
    found = tx.db.execute("SELECT n, at_ms, hash, last_seq FROM ledger ORDER BY n LIMIT ?", (PRUNE_ROWS,)).fetchall()
    end: Head | None = None
    for n, at_ms, digest, last_seq in found:
        if n > surplus and at_ms >= before_ms:
            break
        end = Head(n, digest, last_seq)
    if end is None:
        return 0
    tx.db.execute(_SET_PRUNED, (as_pruned(end),))
    removed = tx.db.execute("DELETE FROM ledger WHERE n <= ?", (end.n,)).rowcount
    note_policy(tx, now_ms, PRUNED, as_pruned(end))
    return removed


class _Affected(NamedTuple):
    """An entry whose envelopes are in `first` to `last`."""

    n: int
    first: int
    last: int


def record_removal(tx: Transaction, at_ms: int, seqs: list[int]) -> None:
    """Retention is about to remove the stored envelopes `seqs`, ascending: call it before it does.

    The event says which. An entry that keeps other envelopes gets the records of those that go, since its content is a
    hash over all.
    """
    if not seqs:
        return
    removed = set(seqs)
    tx.flush()
    for entry in _entries_of(tx.db, seqs):
        rows = tx.db.execute("SELECT seq FROM envelopes WHERE seq BETWEEN ? AND ?", (entry.first, entry.last))
        stored = {seq for (seq,) in rows}
        if stored <= removed:
            tx.db.execute("UPDATE ledger SET removed = NULL WHERE n = ? AND removed IS NOT NULL", (entry.n,))
        else:
            _keep_records(tx.db, entry.n, sorted(stored & removed))
    tx.memory.ledger.note(tx, (at_ms, "policy", REMOVED, encode_ranges(ranges_of(seqs))))


def _keep_records(db: Connection, n: int, seqs: list[int]) -> None:
    (blob,) = db.execute("SELECT removed FROM ledger WHERE n = ?", (n,)).fetchone()
    try:
        earlier = decode_records(blob)
    except ValueError:
        return  # overwritten by another program: `aghctl audit verify` reports it
    db.execute("UPDATE ledger SET removed = ? WHERE n = ?", (encode_records([*earlier, *records_of(db, seqs)]), n))


def _entries_of(db: Connection, seqs: Iterable[int]) -> Iterator[_Affected]:
    """The entries that hold `seqs`, which are ascending; not those that were pruned."""
    start = pruned(db)
    before, through = (start.n, start.last_seq), start.last_seq
    for seq in seqs:
        if seq <= through:
            continue
        before, found = _find(db, before, seq)
        if found is None:
            return
        yield _Affected(found[0], before[1] + 1, found[1])
        before, through = found, found[1]


def _find(db: Connection, before: tuple[int, int], seq: int) -> tuple[tuple[int, int], tuple[int, int] | None]:
    """The first entry from `before` on (number and last sequence) that reaches `seq`, and the one before it; None when
    none does. In steps that double, then halve: the next one is mostly near."""
    step, doubling = 1, True
    while True:
        found = db.execute(_ENTRY_AFTER, (before[0] + step,)).fetchone()
        if found is not None and found[1] < seq:
            before, step = found, step * 2 if doubling else step
        elif step == 1:
            return before, found
        else:
            doubling = False
        if not doubling:
            step = max(1, step // 2)
