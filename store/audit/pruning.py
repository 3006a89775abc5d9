"""Shortening the chain, and what it says of envelopes that retention removes (docs/audit.md)."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

from aghbus.store.audit.events import PRUNED, REMOVED, note_policy
from aghbus.store.audit.records import decode_records, encode_ranges, encode_records, ranges_of, records_of
from aghbus.store.engine.commit.chain import Head, as_pruned, pruned
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.engine.sql import Connection

AUDIT_STEP_ROWS: Final = 1024  # links that one job removes: about a millisecond
_SLACK: Final = (
    16  # pruning continues to one part in so many below the bound, so that a full chain is not pruned all the time
)
_LINK_AFTER: Final = "SELECT n, last_seq FROM chain WHERE n >= ? ORDER BY n LIMIT 1"
_SET_PRUNED: Final = """
INSERT INTO meta (key, value) VALUES ('audit_pruned', ?) ON CONFLICT DO UPDATE SET value = excluded.value
"""


async def sweep_audit(store: Store, max_rows: int, max_age: float, now_ms: int) -> int:
    """Removes the oldest links beyond `max_rows`, and those older than `max_age` seconds. Returns how many.

    Each step is a separate write job. Its own link has an entry that names the last link removed, with its hash.
    """
    before_ms, total = now_ms - int(max_age * 1000), 0
    while True:
        removed = await store.write(partial(_prune, max_rows=max_rows, before_ms=before_ms, now_ms=now_ms))
        total += removed
        if removed < AUDIT_STEP_ROWS:
            return total


def _prune(tx: Transaction, max_rows: int, before_ms: int, now_ms: int) -> int:
    last, start = tx.memory.chain.head.n, pruned(tx.db).n
    surplus = 0 if last - start <= max_rows else last - max_rows + max_rows // _SLACK
    found = tx.db.execute(
        "SELECT n, at_ms, hash, last_seq FROM chain ORDER BY n LIMIT ?", (AUDIT_STEP_ROWS,)
    ).fetchall()
    end: Head | None = None
    for n, at_ms, digest, last_seq in found:
        if n > surplus and at_ms >= before_ms:
            break
        end = Head(n, digest, last_seq)
    if end is None:
        return 0
    tx.db.execute(_SET_PRUNED, (as_pruned(end),))
    removed = tx.db.execute("DELETE FROM chain WHERE n <= ?", (end.n,)).rowcount
    note_policy(tx, now_ms, PRUNED, as_pruned(end))
    return removed


class _Link(NamedTuple):
    """A link whose envelopes are in `first` to `last`."""

    n: int
    first: int
    last: int


def record_removal(tx: Transaction, at_ms: int, seqs: list[int]) -> None:
    """Retention is about to remove the stored envelopes `seqs`, ascending: call it before it does.

    The entry says which. A link that keeps other envelopes gets the records of those that go, since its content is a
    hash over all.
    """
    if not seqs:
        return
    removed = set(seqs)
    tx.flush()
    for link in _links_of(tx.db, seqs):
        rows = tx.db.execute("SELECT seq FROM envelopes WHERE seq BETWEEN ? AND ?", (link.first, link.last))
        stored = {seq for (seq,) in rows}
        if stored <= removed:
            tx.db.execute("UPDATE chain SET removed = NULL WHERE n = ? AND removed IS NOT NULL", (link.n,))
        else:
            _keep_records(tx.db, link.n, sorted(stored & removed))
    tx.memory.chain.note(tx, (at_ms, "policy", REMOVED, encode_ranges(ranges_of(seqs))))


def _keep_records(db: Connection, n: int, seqs: list[int]) -> None:
    (blob,) = db.execute("SELECT removed FROM chain WHERE n = ?", (n,)).fetchone()
    try:
        earlier = decode_records(blob)
    except ValueError:
        return  # overwritten by another program: `aghctl audit verify` reports it
    db.execute("UPDATE chain SET removed = ? WHERE n = ?", (encode_records([*earlier, *records_of(db, seqs)]), n))


def _links_of(db: Connection, seqs: Iterable[int]) -> Iterator[_Link]:
    """The links that hold `seqs`, which are ascending; not those that were pruned."""
    start = pruned(db)
    before, through = (start.n, start.last_seq), start.last_seq
    for seq in seqs:
        if seq <= through:
            continue
        before, found = _find(db, before, seq)
        if found is None:
            return
        yield _Link(found[0], before[1] + 1, found[1])
        before, through = found, found[1]


def _find(db: Connection, before: tuple[int, int], seq: int) -> tuple[tuple[int, int], tuple[int, int] | None]:
    """The first link from `before` on (number and last sequence) that reaches `seq`, and the one before it; None when
    none does. In steps that double, then halve: the next one is mostly near."""
    step, doubling = 1, True
    while True:
        found = db.execute(_LINK_AFTER, (before[0] + step,)).fetchone()
        if found is not None and found[1] < seq:
            before, step = found, step * 2 if doubling else step
        elif step == 1:
            return before, found
        else:
            doubling = False
        if not doubling:
            step = max(1, step // 2)
