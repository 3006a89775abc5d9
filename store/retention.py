"""Retention by age and by size, in steps so small that messages are not delayed.

A sweep goes through the envelopes from the oldest; if the store is too large, through those of others first. A work and its
envelopes are removed together, once it has ended and its last change is past the bound. Never removed: envelopes of open works
in which we take part, of inbox messages that are ready or leased, and of sent messages that are queued or wait for an answer.
`InMemoryState.kept` says how many bytes these are, if the store is too large then.
"""

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgspec

from aghbus.protocol.agh.lifecycle import TERMINAL_STATES
from aghbus.store.audit.pruning import record_removal
from aghbus.store.engine import meta
from aghbus.store.engine.commit.state import NOTHING_KEPT, Kept
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.engine.log.removal import remove
from aghbus.store.engine.sql import INBOX_STATE, Connection
from aghbus.store.tables import inbox, peers, rooms
from aghbus.store.tables.envelopes import OTHERS_PRUNED, PRUNED, fetch

SWEEP_ROWS: Final = 64  # rows that one job looks at or removes: 3 ms on a slow core
SWEEP_IDS: Final = 1_024  # ids of the dedup window that one job forgets: less than a millisecond
VACUUM_PAGES: Final = 64  # pages (128 KiB) that one job gives back to the file system: some 4 ms there
_PEER_AGE_MS: Final = 7 * 86_400_000  # for which a peer is known after its last greet, however short messages are kept
_SPARE_PAGES: Final = 2_048  # free pages (4 MiB) that stay in the file for the next messages

_CANDIDATES: Final = f"""
SELECT e.seq, e.received_ms, {INBOX_STATE}, iif(o.next_ms IS NULL, o.state, 'queued'), w.id, w.state, w.role, w.updated_ms,
    w.last_seq, w.opened_seq, length(e.raw), e.sender, e.recipient, e.kind,
    w.next IS NOT NULL AND EXISTS (
        SELECT 1 FROM works AS n WHERE n.work_id = w.next AND n.channel = w.channel AND n.workspace_id = w.workspace_id)
FROM envelopes AS e
LEFT JOIN outbox AS o ON o.seq = e.seq
LEFT JOIN works AS w
    ON w.workspace_id = e.workspace_id AND w.channel = e.channel AND w.work_id = e.work_id AND e.seq >= w.opened_seq
"""  # noqa: S608 - constants
_NEXT: Final = f"{_CANDIDATES} WHERE e.seq > ? ORDER BY e.seq LIMIT ?"
LISTED: Final = f"{_CANDIDATES} WHERE e.seq IN (SELECT value FROM json_each(?)) ORDER BY e.seq"  # noqa: S608 - as above
_PAIRS: Final = "SELECT DISTINCT sender, coalesce(recipient, '') FROM flows"
_FLOWS_OF: Final = """
SELECT id FROM flows
WHERE (sender, coalesce(recipient, '')) IN (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?))
"""
_SIZES_OF: Final = """
SELECT l.seq, length(l.raw) FROM (
    SELECT s.value AS seq FROM log_flows AS i CROSS JOIN json_each(i.seqs) AS s WHERE i.flow IN (SELECT value FROM json_each(?))
    UNION ALL SELECT value FROM json_each(?)
) AS found CROSS JOIN log AS l ON l.seq = found.seq ORDER BY l.seq
"""

# Two queries: SQLite searches for one end of a table, and scans it for both.
_ENDS: Final = "SELECT (SELECT min(seq) FROM log), (SELECT max(seq) FROM log WHERE seq <= ?)"


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds: `max_age` in seconds, `max_bytes` of pages in use; None means without bound. `is_other` says of a peer id whether
    it is one of others, neither ours nor a contact's."""

    max_age: float | None
    max_bytes: int | None
    is_other: Callable[[str], bool] = lambda _peer: False


class Swept(msgspec.Struct):
    """How much a sweep removed; `pages` were given back to the file system."""

    envelopes: int = 0
    works: int = 0
    ids: int = 0
    peers: int = 0
    rooms: int = 0
    pages: int = 0

    def add(self, step: "_Step") -> None:
        """A window was swept."""
        self.envelopes += step.envelopes
        self.works += step.works
        self.rooms += step.rooms


class _Bound(msgspec.Struct, frozen=True):
    """The removable rows: older than `before_ms`, or up to sequence `through`. `is_other` is that of the policy."""

    before_ms: int
    through: int
    is_other: Callable[[str], bool]

    def includes(self, at_ms: int, seq: int) -> bool:
        return at_ms < self.before_ms or seq <= self.through


class Candidate(msgspec.Struct, frozen=True, array_like=True):
    """A row of LISTED: an envelope, its delivery, and its work."""

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
    size: int
    sender: str
    recipient: str | None
    kind: str
    handed_over: int  # 1: the work to which it was handed over is still here, and its id stands for that one

    @property
    def is_waiting(self) -> bool:
        """Whether it is ready or leased in the inbox, or still to be sent or answered."""
        return self.inbox in ("ready", "leased") or self.outbox == "queued"

    @property
    def is_ended(self) -> bool:
        """Whether its work has ended, or is one of others."""
        return self.work_state in TERMINAL_STATES or self.work_role == "observer"

    def may_remove_work(self, bound: _Bound) -> bool:
        return (
            self.is_ended
            and not self.handed_over
            and bound.includes(self.work_updated_ms or 0, self.work_last_seq or 0)
        )

    def may_remove(self, bound: _Bound) -> bool:
        if self.is_waiting:
            return False
        return bound.includes(self.received_ms, self.seq) if self.work is None else self.may_remove_work(bound)


class _Step(NamedTuple):
    """How much one window removed, the bytes of the envelopes that it kept, all and those of others, and where the next begins;
    None at the end of the sweep."""

    cursor: int | None
    envelopes: int
    works: int
    rooms: int
    kept: int
    kept_of_others: int


async def sweep(store: Store, policy: RetentionPolicy, now_ms: int) -> Swept:
    """Removes envelopes, works and peers past the bounds at `now_ms`, and expired dedup ids. Returns how much.

    Each step is a separate write job. Call it periodically. StoreUnavailable ends it; the next sweep continues.
    """
    swept = Swept()
    now = now_ms // 1000
    while count := await store.write(lambda tx: tx.memory.dedup.expire(tx, now, SWEEP_IDS)):
        swept.ids += count
    await store.write(inbox.advance)
    before_ms = 0 if policy.max_age is None else now_ms - int(policy.max_age * 1000)
    bound = _Bound(before_ms, 0, policy.is_other)
    await _sweep_envelopes(store, bound, now_ms, swept)
    if policy.max_bytes is not None:
        end = store.memory.ledger.head.last_seq
        await _sweep_others(store, policy.max_bytes, msgspec.structs.replace(bound, through=end), now_ms, swept)
        await _sweep_surplus(store, policy.max_bytes, msgspec.structs.replace(bound, through=end), now_ms, swept)
    unseen_ms = min(before_ms, now_ms - _PEER_AGE_MS)
    while stale := await peers.stale(store.reader, unseen_ms, SWEEP_ROWS):
        await store.write(partial(peers.forget, rows=stale))
        swept.peers += len(stale)
    while count := await store.write(_vacuum):
        swept.pages += count
    return swept


async def _sweep_others(store: Store, max_bytes: int, bound: _Bound, now_ms: int, swept: Swept) -> None:
    """Removes the oldest envelopes of others until the store fits, or all of them that may be. Each pass begins at the oldest, so
    that no work is removed in part, and goes for half of what is too much: an envelope takes more than its own bytes."""
    surplus = await store.write(partial(_surplus, max_bytes=max_bytes))
    sizes = await _envelopes_of_others(store, bound) if surplus else []
    total, end, step = list(accumulate(size for _, size in sizes)), 0, SWEEP_ROWS
    while surplus and end < len(sizes):
        half = bisect_left(total, (total[end - 1] if end else 0) + surplus // 2)
        end, before = min(max(half, end + step), len(sizes)), swept.envelopes
        seqs = [seq for seq, _ in sizes[:end]]
        listed = msgspec.structs.replace(bound, through=seqs[-1])
        for at in range(0, end, SWEEP_ROWS):
            window = seqs[at : at + SWEEP_ROWS]
            swept.add(await store.write(partial(_step_of_others, bound=listed, seqs=window, now_ms=now_ms)))
        step = SWEEP_ROWS if swept.envelopes > before else 2 * step
        surplus = await store.write(partial(_surplus, max_bytes=max_bytes))


async def _envelopes_of_others(store: Store, bound: _Bound) -> list[tuple[int, int]]:
    """The sequence and size of each envelope, up to the bound, of conversations in which one of others takes part, in order."""
    reader, tail = store.reader, store.reader.log.tail
    pairs = [pair for pair in await fetch(reader, _PAIRS, []) if any(peer and bound.is_other(peer) for peer in pair)]
    flows = {flow for (flow,) in await fetch(reader, _FLOWS_OF, [msgspec.json.encode(pairs).decode()])}
    recent = [seq for seq, _, flow, _ in tail.rows if flow in flows]
    found = await fetch(reader, _SIZES_OF, [msgspec.json.encode(values).decode() for values in (list(flows), recent)])
    return [(seq, size) for seq, size in found if seq <= bound.through]


async def _sweep_surplus(store: Store, max_bytes: int, bound: _Bound, now_ms: int, swept: Swept) -> None:
    """Removes the oldest envelopes until the store fits. Each pass estimates how many, and begins at the oldest, so that no
    work is removed in part. A pass that finds nothing to remove doubles the step. Envelopes that are committed meanwhile
    are left to the next sweep: else this one would not end while messages come.

    What the last pass kept is too much then, as far as envelopes are the reason: see InboxAdmission. Other tables have bounds of
    their own, and nobody who fills one of them makes the daemon reject messages.
    """
    through, step, kept, end = 0, SWEEP_ROWS, NOTHING_KEPT, bound.through
    while True:
        surplus, last = await store.write(partial(_next_bound, max_bytes=max_bytes, span=(through, end), step=step))
        if last is None:
            break
        before, through = swept.envelopes, last
        kept = await _sweep_envelopes(store, msgspec.structs.replace(bound, through=through), now_ms, swept)
        step = SWEEP_ROWS if swept.envelopes > before else 2 * step
    store.memory.kept = kept if surplus else NOTHING_KEPT


async def _sweep_envelopes(store: Store, bound: _Bound, now_ms: int, swept: Swept) -> Kept:
    """Removes envelopes past the bounds. Returns the bytes of those that it looked at and kept."""
    cursor: int | None = 0
    kept = of_others = 0
    while cursor is not None:
        step = await store.write(partial(_step, bound=bound, after=cursor, now_ms=now_ms))
        cursor = step.cursor
        kept += step.kept
        of_others += step.kept_of_others
        swept.add(step)
    return Kept(kept - of_others, of_others)


def _step(tx: Transaction, bound: _Bound, after: int, now_ms: int) -> _Step:
    """One window after sequence `after`. The sweep ends when a whole window holds nothing past the bounds: single rows
    may be out of order in time, after the clock was set."""
    tx.flush()
    return _remove(tx, bound, [Candidate(*row) for row in tx.db.execute(_NEXT, (after, SWEEP_ROWS))], now_ms, PRUNED)


def _step_of_others(tx: Transaction, bound: _Bound, seqs: list[int], now_ms: int) -> _Step:
    """One window of these sequences. They are not the oldest of the store: others begin after them."""
    tx.flush()
    found = tx.db.execute(LISTED, (msgspec.json.encode(seqs).decode(),))
    return _remove(tx, bound, [Candidate(*row) for row in found], now_ms, OTHERS_PRUNED)


def _remove(tx: Transaction, bound: _Bound, found: list[Candidate], now_ms: int, mark: str) -> _Step:
    """Removes what may be removed of a window; the value `mark` of table `meta` is the last sequence removed."""
    removed = [row for row in found if row.may_remove(bound)]
    works, emptied = remove_candidates(tx, removed, now_ms, mark)
    ended = not any(bound.includes(row.received_ms, row.seq) for row in found)
    gone = {row.seq for row in removed}
    kept = [row for row in found if row.seq not in gone]
    of_others = [
        row.size for row in kept if bound.is_other(row.sender) or (row.recipient and bound.is_other(row.recipient))
    ]
    cursor = None if ended else found[-1].seq
    return _Step(cursor, len(removed), works, emptied, sum([row.size for row in kept]), sum(of_others))


def remove_candidates(tx: Transaction, removed: list[Candidate], now_ms: int, mark: str) -> tuple[int, int]:
    """Removes these envelopes, ascending, and the works that they opened. Returns how many works, and how many threads and rooms
    have no envelope any more. The value `mark` of table `meta` is the last sequence removed."""
    memory, seqs = tx.memory, [row.seq for row in removed]
    works = {row.work for row in removed if row.seq == row.work_opened_seq}
    tx.db.executemany("DELETE FROM works WHERE id = ?", [(work,) for work in works])
    if works:
        memory.works.clear()
    record_removal(tx, now_ms, seqs)
    emptied = rooms.forget_empty(tx, remove(tx, memory.log, memory.dedup, seqs))
    if seqs:
        meta.put(tx.db, mark, max(seqs[-1], meta.get(tx.db, mark) or 0))
    return len(works), emptied


def _surplus(tx: Transaction, max_bytes: int) -> int:
    """How much larger than `max_bytes` the store is."""
    tx.flush()
    return max(0, _used_bytes(tx.db) - max_bytes)


def _next_bound(tx: Transaction, max_bytes: int, span: tuple[int, int], step: int) -> tuple[int, int | None]:
    """How much larger than `max_bytes` the store is, and the sequence in `span` through which envelopes must be removed, about:
    at least `step` more.

    The sequence is None when the store fits, or when all of `span` were removed that may be.
    """
    done, end = span
    surplus = _surplus(tx, max_bytes)
    first, last = tx.db.execute(_ENDS, (end,)).fetchone()
    if not surplus or first is None or done >= last:
        return surplus, None
    # As large a share of the sequences as of the bytes is surplus; rows kept below the last one that was removed do not count.
    first = max(first, meta.get(tx.db, PRUNED) or 0, done)
    return surplus, min(last, int(first + max((last - first) * surplus / (max_bytes + surplus), step)))


def _used_bytes(db: Connection) -> int:
    return (_pragma(db, "page_count") - _pragma(db, "freelist_count")) * _pragma(db, "page_size")


def _vacuum(tx: Transaction) -> int:
    """Gives free pages back to the file system, but for a reserve. Returns how many."""
    if _pragma(tx.db, "freelist_count") <= _SPARE_PAGES + VACUUM_PAGES:
        return 0
    before = _pragma(tx.db, "page_count")
    for _ in range(VACUUM_PAGES):
        # One page is one step of the statement, and Python's module takes only the first of one without columns.
        tx.db.execute("PRAGMA incremental_vacuum(1)")
    meta.bump(tx.db, "vacuums")
    return before - _pragma(tx.db, "page_count")


def _pragma(db: Connection, name: str) -> int:
    row: tuple[Any, ...] = db.execute(f"PRAGMA {name}").fetchone()
    return int(row[0])
