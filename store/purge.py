"""Purging messages: removing stored text on request, all messages of a peer or of a work, or all that are older than a time.

Chosen messages are removed as retention removes old ones: the ledger keeps its hashes, the dedup window the ids. A work and its
messages go together, with the works to which it was handed over. What is still needed stays: works that have not ended, messages
that are ready or leased in the inbox, and sent ones that were neither answered nor given up.

Kill it anywhere: every step is a transaction, and the same purge finds the rest.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from aghbus.protocol.agh.lifecycle import TERMINAL_STATES
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.sql import Reader
from aghbus.store.retention import LISTED, Candidate, remove_candidates
from aghbus.store.tables.envelopes import OTHERS_PRUNED, fetch

STEP: Final = 64
"""Messages that one transaction looks at: some milliseconds of the event loop."""

_NAMES: Final = """
SELECT sender FROM flows UNION SELECT recipient FROM flows UNION SELECT pair_a FROM flows UNION SELECT pair_b FROM flows
UNION SELECT initiator FROM works UNION SELECT target FROM works
UNION SELECT sender FROM quarantine UNION SELECT peer FROM chain_steps
"""
_ANY: Final = "IN (SELECT value FROM json_each(?1))"
_FLOWS: Final = f"SELECT id FROM flows WHERE sender {_ANY} OR recipient {_ANY} OR pair_a {_ANY} OR pair_b {_ANY}"  # noqa: S608 - constants
_OF_FLOWS: Final = f"SELECT s.value FROM log_flows AS i CROSS JOIN json_each(i.seqs) AS s WHERE i.flow {_ANY}"  # noqa: S608 - constants
_OF_WORKS: Final = f"SELECT seq FROM log_works WHERE work_id {_ANY}"  # noqa: S608 - constants
_BEFORE: Final = "SELECT seq FROM log WHERE received_ms < ? ORDER BY seq"
_WORK_IDS: Final = f"SELECT DISTINCT work_id FROM log WHERE seq {_ANY} AND work_id IS NOT NULL"  # noqa: S608 - constants
_OF_PEERS: Final = f"initiator {_ANY} OR target {_ANY} OR work_id IN (SELECT value FROM json_each(?2))"  # noqa: S608 - constants
_WORKS: Final = "SELECT id, workspace_id, channel, work_id, role, state, next FROM works WHERE"


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages are chosen: those from and to the peers that `is_peer` knows, those of one work, or those that were stored
    before `before_ms`. One of the three."""

    is_peer: Callable[[str], bool] | None = None
    work_id: str | None = None
    before_ms: int = 0


class _Work(NamedTuple):
    id: int
    workspace_id: str
    channel: str
    work_id: str
    role: str
    state: str
    next: str | None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.workspace_id, self.channel, self.work_id

    @property
    def next_key(self) -> tuple[str, str, str] | None:
        return None if self.next is None else (self.workspace_id, self.channel, self.next)

    @property
    def is_ended(self) -> bool:
        return self.state in TERMINAL_STATES or self.role == "observer"


class Plan(NamedTuple):
    """What a selection has found. `names` are the chosen peers; `works` the rows of works that may be removed, `work_ids` their ids
    without those of others; `kept_works` the ids of works that have not ended; `seqs` the messages to look at."""

    names: list[str]
    works: frozenset[int]
    work_ids: list[str]
    kept_works: list[str]
    seqs: list[int]


class Found(NamedTuple):
    """Some messages of a plan: those that are removed, or would be, by kind; their sequences; works; kept messages that wait in the
    inbox (`unread`), or for their delivery (`undelivered`)."""

    kinds: Counter[str]
    seqs: list[int]
    works: int
    unread: int
    undelivered: int


async def plan(reader: Reader, wanted: Selection) -> Plan:
    """What is chosen now."""
    names: list[str] = []
    if wanted.is_peer is not None:
        names = [name for (name,) in await fetch(reader, _NAMES, []) if name and wanted.is_peer(name)]
        flows = {flow for (flow,) in await fetch(reader, _FLOWS, [_json(names)])}
        seqs = {seq for seq, _, flow, _ in reader.log.tail.rows if flow in flows}
        seqs |= {seq for (seq,) in await fetch(reader, _OF_FLOWS, [_json(flows)])}
        ids = [work_id for (work_id,) in await fetch(reader, _WORK_IDS, [_json(seqs)])]
        works = await _linked(reader, await _works(reader, _OF_PEERS, _json(names), _json(ids)))
    elif wanted.work_id is not None:
        works = await _linked(reader, await _works(reader, "work_id = ?", wanted.work_id))
        seqs = await _of_works(reader, {wanted.work_id})
    else:
        works = await _works(reader, "updated_ms < ?", wanted.before_ms)
        seqs = {seq for (seq,) in await fetch(reader, _BEFORE, [wanted.before_ms])}
    removable = _removable(works, {work.key for work in await _works(reader, "work_id IN (SELECT next FROM works)")})
    if wanted.is_peer is not None or wanted.work_id is not None:
        seqs |= await _of_works(reader, {work.work_id for work in removable})
    kept = [work.work_id for work in works if not work.is_ended]
    ours = [work.work_id for work in removable if work.role != "observer"]
    return Plan(names, frozenset(work.id for work in removable), ours, kept, sorted(seqs))


async def look(reader: Reader, chosen: Plan, seqs: Sequence[int]) -> Found:
    """What `remove` would do with these messages."""
    return _found(_choose(chosen, await fetch(reader, LISTED, [_json(seqs)])))


def remove(tx: Transaction, chosen: Plan, seqs: Sequence[int], now_ms: int) -> Found:
    """Removes those of the messages `seqs` that may be. Call it with STEP at a time."""
    tx.flush()
    rows = _choose(chosen, tx.db.execute(LISTED, (_json(seqs),)))
    remove_candidates(tx, [row for row in rows if not row.is_waiting], now_ms, OTHERS_PRUNED)
    return _found(rows)


def _choose(chosen: Plan, rows: Any) -> list[Candidate]:
    """The rows without a work that is kept."""
    found = [Candidate(*row) for row in rows]
    return [row for row in found if row.work is None or (row.work in chosen.works and row.is_ended)]


def _found(rows: list[Candidate]) -> Found:
    waiting, gone = [row for row in rows if row.is_waiting], [row for row in rows if not row.is_waiting]
    return Found(
        Counter(row.kind for row in gone),
        [row.seq for row in gone],
        sum(row.seq == row.work_opened_seq for row in gone),
        unread=sum(row.inbox in ("ready", "leased") for row in waiting),
        undelivered=sum(row.inbox not in ("ready", "leased") for row in waiting),
    )


async def _works(reader: Reader, where: str, *params: object) -> list[_Work]:
    return [_Work(*row) for row in await fetch(reader, f"{_WORKS} {where}", list(params))]


async def _linked(reader: Reader, works: list[_Work]) -> list[_Work]:
    """These works, and those from which and to which they were handed over."""
    links = [(work.key, work.next_key) for work in await _works(reader, "next IS NOT NULL")]
    known = {work.key for work in works}
    wanted, size = set(known), -1
    while size != len(wanted):
        size = len(wanted)
        wanted |= {key for link in links if wanted & {*link} for key in link if key is not None}
    ids = sorted({work_id for _, _, work_id in wanted - known})
    return [*works, *(work for work in await _works(reader, f"work_id {_ANY}", _json(ids)) if work.key in wanted)]


def _removable(works: list[_Work], stored_nexts: Collection[tuple[str, str, str]]) -> list[_Work]:
    """Those that have ended, and whose next one, if it is stored, is among them: the id of the former stands for it."""
    ended = {work.key: work for work in works if work.is_ended}
    while blocked := [
        key for key, work in ended.items() if work.next_key in stored_nexts and work.next_key not in ended
    ]:
        for key in blocked:
            del ended[key]
    return [*ended.values()]


async def _of_works(reader: Reader, work_ids: Collection[str]) -> set[int]:
    recent = {seq for seq, _, _, work_id in reader.log.tail.rows if work_id in work_ids}
    return recent | {seq for (seq,) in await fetch(reader, _OF_WORKS, [_json(work_ids)])}


def _json(values: Collection[object]) -> str:
    return msgspec.json.encode([*values]).decode()
