"""Which message of the inbox is handed out next: the oldest, but none before an earlier one of its group.

A group are the messages of one sender in one work, or in one container outside works. A message waits while an earlier one of its
group is leased under another token, or was returned (docs/inbox.md).
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from aghbus.protocol.api.inbox import InboxItem
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.log.segments import SEQS_OF_WORK
from aghbus.store.engine.memory.inbox import Group, Taken, waits_until
from aghbus.store.engine.sql import INBOX_STATE
from aghbus.store.tables.works import lifecycle

_RETURNED: Final = "SELECT seq FROM inbox WHERE state = 'ready' AND available_ms <= ? ORDER BY seq"
_READY_OF_WORK: Final = f"""
SELECT e.seq FROM envelopes AS e LEFT JOIN inbox AS i ON i.seq = e.seq
WHERE e.seq IN ({SEQS_OF_WORK}) AND e.work_id = ? AND {INBOX_STATE} = 'ready' AND coalesce(i.available_ms, 0) <= ?
ORDER BY e.seq
"""  # noqa: S608 - constants


Admits = Callable[[Transaction, int], bool]
"""Whether a consumer takes the message of this sequence."""


def oldest_ready(
    tx: Transaction, now_ms: int, work_id: str | None, lease: str | None, admits: Admits | None = None
) -> int | None:
    """The oldest message that is ready at `now_ms`, of `work_id` if given, that the consumer `admits` (None: all), and that need
    not wait for one that is leased under another token than `lease` (None: it never waits)."""
    if work_id is not None:
        rows = tx.db.execute(_READY_OF_WORK, (*tx.memory.log.of_work(work_id), work_id, now_ms))
        return _first(tx, (seq for (seq,) in rows), lease, admits)
    returned = _first(tx, (seq for (seq,) in tx.db.execute(_RETURNED, (now_ms,)).fetchall()), lease, admits)
    untouched = _first(tx, tx.memory.inbox.oldest_first(), lease, admits)
    return min((seq for seq in (returned, untouched) if seq is not None), default=None)


def _first(tx: Transaction, oldest_first: Iterable[int], lease: str | None, admits: Admits | None) -> int | None:
    """The first that is admitted and need not wait. Of a group whose message waits, the later ones do, too."""
    waiting: set[Group] = set()
    for seq in oldest_first:
        if admits is not None and not admits(tx, seq):
            continue
        if lease is None:
            return seq
        if (group := tx.memory.inbox.group(seq)) not in waiting:
            if not is_held_back(tx, seq, lease):
                return seq
            waiting.add(group)
    return None


def is_first(tx: Transaction, fresh: int, lease: str) -> bool:
    """Whether no unread message of its group has to be handed out before `fresh`, which a consumer waits for."""
    memory = tx.memory.inbox
    return memory.group(fresh) not in memory.held_back and not is_held_back(tx, fresh, lease)


def is_held_back(tx: Transaction, seq: int, lease: str) -> bool:
    """Whether an earlier message of the group of `seq` is leased under another token, or was returned."""
    memory = tx.memory.inbox
    group = memory.group(seq)
    for earlier, taken in memory.taken(group).items():
        held_up = taken.until is None or taken.until == _work_state(tx, group)
        if earlier < seq and taken.lease != lease and held_up:
            if group not in memory.held_back:
                memory.held_back.add(group)
                tx.undo.append(partial(memory.held_back.discard, group))
            return True
    return False


def note_taken(tx: Transaction, item: InboxItem) -> None:
    """`item` is leased, or was returned: later messages of its group wait for it."""
    message = item.message
    tx.memory.inbox.lease(tx, item.seq, Taken(item.lease, waits_until(message.kind, message.outcome)))


def _work_state(tx: Transaction, group: Group) -> str | None:
    channel, _, _, work_id = group
    known = None if work_id is None else lifecycle.find(tx, work_id, channel)
    return None if known is None else known.work.state
