"""Retention by age and by size, in steps so small that the flow of messages does not notice.

A sweep walks the envelopes from the oldest. What belongs to a work lives and dies with it: the work goes once it is over and its
last change is past the bound, and its envelopes with it. Never removed: envelopes of open works that we take part in, of inbox
messages that are ready or leased, and of what is still queued or waits for an answer.
"""

import sqlite3
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from aghbus.protocol.lifecycle import TERMINAL_STATES
from aghbus.store.engine import meta
from aghbus.store.engine.database import Store
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables import peers, rooms

STEP_ROWS: Final = 64  # ours, rows that one job looks at or removes: 3 ms on a slow core
VACUUM_PAGES: Final = 64  # ours, pages (256 KiB) that one job gives back to the file system: 4 ms there
_SPARE_PAGES: Final = 1_024  # ours, free pages (4 MiB) that stay in the file for the next messages

_CANDIDATES: Final = """
SELECT e.seq, e.received_ms, i.state, iif(o.next_ms IS NULL, o.state, 'queued'), w.id, w.state, w.role, w.updated_ms,
    w.last_seq, w.opened_seq, e.workspace_id, e.channel, e.surface, e.container, e.pair_a, e.pair_b
FROM envelopes AS e
LEFT JOIN inbox AS i ON i.seq = e.seq
LEFT JOIN outbox AS o ON o.seq = e.seq
LEFT JOIN works AS w
    ON w.workspace_id = e.workspace_id AND w.channel = e.channel AND w.work_id = e.work_id AND e.seq >= w.opened_seq
WHERE e.seq > ? ORDER BY e.seq LIMIT ?
"""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept: `max_age` in seconds, `max_bytes` of pages in use; None means without bound."""

    max_age: float | None
    max_bytes: int | None


class Swept(msgspec.Struct):
    """What a sweep removed: `pages` were given back to the file system."""

    envelopes: int = 0
    works: int = 0
    ids: int = 0
    peers: int = 0
    rooms: int = 0
    pages: int = 0


class _Bound(msgspec.Struct, frozen=True):
    """What may go: older than `before_ms`, or up to sequence `through`."""

    before_ms: int
    through: int

    def passed(self, at_ms: int, seq: int) -> bool:
        return at_ms < self.before_ms or seq <= self.through


class _Candidate(msgspec.Struct, frozen=True, array_like=True):
    seq: int
    received_ms: int
    inbox: str | None
    outbox: str | None
    work: int | None
    work_state: str | None
    work_role: str | None
    work_updated_ms: int | None
    work_last_seq: int | None
    work_opened_seq: int | None
    workspace_id: str
    channel: str
    surface: str | None
    container: str | None
    pair_a: str | None
    pair_b: str | None

    @property
    def place(self) -> rooms.Place:
        surface, container = self.surface or "", self.container or ""
        return rooms.Place(self.workspace_id, self.channel, surface, container, self.pair_a, self.pair_b)

    def work_may_go(self, bound: _Bound) -> bool:
        over = self.work_state in TERMINAL_STATES or self.work_role == "observer"
        return over and bound.passed(self.work_updated_ms or 0, self.work_last_seq or 0)

    def may_go(self, bound: _Bound) -> bool:
        if self.inbox in ("ready", "leased") or self.outbox == "queued":
            return False
        return bound.passed(self.received_ms, self.seq) if self.work is None else self.work_may_go(bound)


class _Step(NamedTuple):
    """What one window gave, and where the next begins; None at the end of the sweep."""

    cursor: int | None
    envelopes: int
    works: int
    rooms: int


async def sweep(store: Store, policy: Policy, now_ms: int) -> Swept:
    """Removes what is past the bounds at `now_ms`, and dedup ids past their time; what went.

    Each step is a write job of its own. Call it from time to time. StoreUnavailable ends it; the next sweep goes on.
    """
    swept = Swept()
    now = now_ms // 1000
    while count := await store.write(lambda tx: tx.memory.dedup.expire(tx, now, STEP_ROWS)):
        swept.ids += count
    before_ms = 0 if policy.max_age is None else now_ms - int(policy.max_age * 1000)
    through = await store.write(lambda tx: _too_much(tx.db, policy.max_bytes))
    await _sweep_envelopes(store, _Bound(before_ms, through), swept)
    while stale := await peers.stale(store.reader, before_ms, STEP_ROWS):
        await store.write(partial(peers.forget, rows=stale))
        swept.peers += len(stale)
    while count := await store.write(_vacuum):
        swept.pages += count
    return swept


async def _sweep_envelopes(store: Store, bound: _Bound, swept: Swept) -> None:
    cursor: int | None = 0
    while cursor is not None:
        step = await store.write(partial(_step, bound=bound, after=cursor))
        cursor = step.cursor
        swept.envelopes += step.envelopes
        swept.works += step.works
        swept.rooms += step.rooms


def _step(tx: Transaction, bound: _Bound, after: int) -> _Step:
    """One window after sequence `after`. The sweep ends where a whole window holds nothing past the bounds: single rows may be
    out of order in time, after a clock was set."""
    found = [_Candidate(*row) for row in tx.db.execute(_CANDIDATES, (after, STEP_ROWS))]
    works = {row.work for row in found if row.seq == row.work_opened_seq and row.work_may_go(bound)}
    gone = [row for row in found if row.may_go(bound)]
    tx.db.executemany("DELETE FROM works WHERE id = ?", [(work,) for work in works])
    if works:
        tx.memory.works.clear()
    tx.db.executemany("DELETE FROM envelopes WHERE seq = ?", [(row.seq,) for row in gone])
    emptied = rooms.forget_empty(tx, {row.place for row in gone if row.surface is not None})
    if gone:
        meta.put(tx.db, "pruned_through", max(gone[-1].seq, meta.get(tx.db, "pruned_through") or 0))
    ended = not any(bound.passed(row.received_ms, row.seq) for row in found)
    return _Step(None if ended else found[-1].seq, len(gone), len(works), emptied)


def _too_much(db: sqlite3.Connection, size_bytes: int | None) -> int:
    """The sequence through which envelopes must go for the store to fit `size_bytes`, about; 0 when it fits."""
    used = _used_bytes(db)
    if size_bytes is None or used <= size_bytes:
        return 0
    first, last = db.execute("SELECT min(seq), max(seq) FROM envelopes").fetchone()
    if first is None:
        return 0
    # The share of sequences that is the share of bytes too many; kept rows below what was pruned do not count.
    first = max(first, meta.get(db, "pruned_through") or 0)
    return int(first + max((last - first) * (used - size_bytes) / used, STEP_ROWS))


def _used_bytes(db: sqlite3.Connection) -> int:
    return (_pragma(db, "page_count") - _pragma(db, "freelist_count")) * _pragma(db, "page_size")


def _vacuum(tx: Transaction) -> int:
    """Gives free pages back, but for a reserve: the size of the file follows what is in it. How many it were."""
    if _pragma(tx.db, "freelist_count") <= _SPARE_PAGES + VACUUM_PAGES:
        return 0
    before = _pragma(tx.db, "page_count")
    for _ in range(VACUUM_PAGES):
        # One page is one step of the statement, and Python's module takes only the first of one without columns.
        tx.db.execute("PRAGMA incremental_vacuum(1)")
    meta.bump(tx.db, "vacuums")
    return before - _pragma(tx.db, "page_count")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    row: tuple[Any, ...] = db.execute(f"PRAGMA {name}").fetchone()
    return int(row[0])
